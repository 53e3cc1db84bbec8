//! A limit with the rules that operators made for its keys.
//!
//! A rule with a rate is another variant of its limit, as an override of the configuration is, so that everything the key
//! spends counts under every variant. What must always hold: the rules of a limit leave its configured rates, and their
//! indices, as they are.

use super::key_rules::{KeyRule, KeyRules, Ruling, RulingError};
use super::limit::{Count, Limit, Mode};
use super::override_action::{OverrideAction, RateIndex};
use crate::limit::{MAX_WINDOWS, Quota, Rate, WindowLengths};

impl Limit {
    /// Checks that the limit can follow a ruling.
    ///
    /// # Errors
    /// [`RulingError`].
    pub fn check_ruling(&self, ruling: &Ruling) -> Result<(), RulingError> {
        match ruling {
            Ruling::Allow => Ok(()),
            Ruling::Ban | Ruling::Deny if self.mode == Mode::Shadow => Err(RulingError::Shadow),
            Ruling::Ban | Ruling::Deny if !self.terms.rollout.is_complete() => {
                Err(RulingError::Rollout)
            }
            Ruling::Ban | Ruling::Deny => Ok(()),
            Ruling::Rate { rate, burst } => {
                let quota = self.quota_at(*rate, *burst)?;
                self.check_windows(&quota)
            }
        }
    }

    /// Replaces the rules for the keys of this limit. Rules of other limits, and those that the limit cannot follow,
    /// are left out.
    pub fn set_key_rules<'r>(&mut self, rules: impl Iterator<Item = &'r KeyRule>) {
        let configured = self.terms.quotas.len() - self.terms.key_rules.quotas();
        self.terms.quotas.truncate(configured);
        self.terms.key_rules = KeyRules::default();
        for rule in rules {
            if rule.limit != self.name || self.check_ruling(&rule.ruling).is_err() {
                continue;
            }
            let action = match rule.ruling {
                Ruling::Ban => None,
                Ruling::Allow => Some(OverrideAction::Allow),
                Ruling::Deny => Some(OverrideAction::Deny),
                Ruling::Rate { rate, burst } => {
                    let Ok(quota) = self.quota_at(rate, burst) else {
                        continue;
                    };
                    Some(OverrideAction::Rate(self.obtain_rate(quota)))
                }
            };
            let rules = &mut self.terms.key_rules;
            match action {
                None => rules.ban(rule.key, rule.until),
                Some(action) => rules.put_override(rule.key, action, rule.until),
            }
        }
        self.terms.key_rules.set_quotas(self.terms.quotas.len() - configured);
    }

    /// The quota of another rate of this limit.
    fn quota_at(&self, rate: Rate, burst: Option<u32>) -> Result<Quota, RulingError> {
        match &self.count {
            Count::Exact { quota, .. } => Ok(quota.with_rate(rate, burst)?),
            Count::Estimate { .. } | Count::InFlight { .. } => Err(RulingError::NoRates),
        }
    }

    fn check_windows(&self, quota: &Quota) -> Result<(), RulingError> {
        let own = self.quota(0).into_iter();
        let all = own.chain(&self.terms.quotas).chain([quota]);
        match WindowLengths::of(all).lengths().len() {
            0..=MAX_WINDOWS => Ok(()),
            _ => Err(RulingError::Windows),
        }
    }

    /// The index of a quota, which is added if no variant of the limit has it.
    fn obtain_rate(&mut self, quota: Quota) -> RateIndex {
        let quotas = &mut self.terms.quotas;
        let index = quotas.iter().position(|other| *other == quota).unwrap_or_else(|| {
            quotas.push(quota);
            quotas.len() - 1
        });
        // A limit has far fewer quotas than a u32 counts: rules and configured overrides are bounded.
        RateIndex::try_from(index + 1).unwrap_or(0)
    }
}
