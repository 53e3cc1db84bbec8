//! Bans: a key that was denied too often is refused for a while and charged nothing.
//!
//! `store::Bans` keeps the denials and bans; this module decides which verdicts count as denials. Neither an outage nor
//! a lack of room is a denial by the limit.

use std::net::IpAddr;

use super::counters::{VerdictKind, VerdictKinds};
use super::decision::{Decision, LimitVerdict, Outcome};
use super::generation::Generation;
use super::loaded_limit::LoadedLimit;
use super::state::Engine;
use super::target::Target;
use crate::clock::{Nanos, Now, RoundedSpan};
use crate::limit::Verdict;
use crate::policy::{KeyHash, Penalty};

impl Engine {
    /// Refuses a request if one of its keys is banned, and returns whether it did. Nothing else is asked or charged
    /// then.
    pub(super) fn refuse_banned(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
    ) -> bool {
        if !generation.may_ban {
            return false;
        }
        for target in targets.iter().filter(|target| !target.shadow) {
            let limit = generation.policy().limit(target.limit);
            let by_penalty = match limit.penalty {
                Some(_) => self.bans.remaining(target.key, decision.at.mono).unwrap_or_default(),
                None => Nanos::ZERO,
            };
            let left = by_penalty.max(target.banned_for);
            if left == Nanos::ZERO {
                continue;
            }
            self.refuse_as_banned(generation, target, left, decision);
            return true;
        }
        false
    }

    /// Refuses a request whose key is banned for `left` more.
    pub(super) fn refuse_as_banned(
        &self,
        generation: &Generation,
        target: &Target,
        left: Nanos,
        decision: &mut Decision,
    ) {
        let limit = generation.policy().limit(target.limit);
        let max = || limit.max_cost();
        let verdict = Verdict {
            allowed: false,
            limit: limit.quota(target.rate).map_or_else(max, |quota| quota.limit()),
            remaining: 0,
            delay: Nanos::ZERO,
            reset: left,
            retry_after: Some(left),
        };
        let tier = limit.count.tier();
        let denial = LimitVerdict::new(target, tier, verdict, VerdictKinds::NORMAL);
        decision.verdicts.push(LimitVerdict { banned: true, ..denial });
        decision.outcome = Outcome::Limited;
    }

    /// Records denials, and bans keys that have too many. These do not count: an override that denies, a lack of room
    /// for a key or of delay slots, and a store that fails. (With `on_store_failure: local` this node's own count
    /// denies, which counts.)
    pub(super) fn record_denials(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &Decision,
    ) {
        if decision.outcome != Outcome::Limited || !generation.has_penalties {
            return;
        }
        for denial in decision.refusing().filter(|denial| !denial.banned) {
            let counts = matches!(denial.kind, VerdictKind::Denied | VerdictKind::DegradedDenied);
            let limit = generation.policy().limit(denial.limit);
            let mut targets = targets.iter().filter(|target| !target.denied);
            let target = targets.find(|target| target.limit == denial.limit);
            let Some((rule, target)) = limit.penalty.as_ref().zip(target).filter(|_| counts) else {
                continue;
            };
            let loaded = generation.loaded(denial.limit);
            let ban = {
                let _no_switch = self.succession.hold_denials();
                self.tell_denial(&limit.name, target.key);
                self.count_denial(loaded, target.key, rule, decision.at)
            };
            if let Some(span) = ban {
                generation.counters(denial.limit).record_ban();
                let span = RoundedSpan(span);
                log::info!("limit {} bans key {} for {span}", limit.name, target.key);
            }
        }
    }

    /// Counts a denial. Returns the length of the ban, if the denial leads to one.
    pub(super) fn count_denial(
        &self,
        loaded: &LoadedLimit,
        key: KeyHash,
        rule: &Penalty,
        now: Now,
    ) -> Option<Nanos> {
        let by_this_node = self.bans.record_denial(key, rule, now.mono);
        let Some(denials) = &loaded.fleet_denials else {
            return by_this_node;
        };
        if by_this_node.is_none() && self.bans.remaining(key, now.mono).is_some() {
            return None;
        }
        self.clear_banned_denials(denials.view(), rule.within, key);
        if by_this_node.is_some() {
            return by_this_node;
        }
        let elsewhere = denials.record(&self.confirm, key, now) as usize;
        let counted = self.bans.denials(key, now.mono).saturating_add(elsewhere);
        if elsewhere == 0 || counted < rule.after as usize {
            return None;
        }
        let length = self.bans.ban(key, rule, now.mono);
        self.clear_banned_denials(denials.view(), rule.within, key);
        length
    }

    /// Whether a ban refuses the connections of a client (`penalty: { at: connection }`).
    pub fn bans_connections(
        &self,
        generation: &Generation,
        client: IpAddr,
        ipv6_prefix: u8,
        now: Now,
    ) -> bool {
        generation.connection_bans().iter().any(|limit| {
            let hasher = &generation.loaded(*limit).hasher;
            let key = hasher.hash_address(client, ipv6_prefix);
            let rules = &generation.policy().limit(*limit).terms.key_rules;
            self.bans.remaining(key, now.mono).is_some()
                || (!rules.is_empty() && rules.banned_for(key, self.date(now)).is_some())
        })
    }
}
