//! Warnings about single limits: settings that have no effect, bans that hit the wrong clients, and
//! sketches that are too noisy.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::config::reader::Located;
use crate::limit::{OVERCOUNT_DIVISOR, Quota, SketchSize};
use crate::policy::condition::Condition;
use crate::policy::{Count, Limit, Override, OverrideAction, OverrideTarget, RequestMatch, Source};

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.limits.iter() {
        let (limit, at) = (&defined.limit, &defined.at);
        warn_of_noise(limit, at, list);
        warn_of_untrusted_plan(input, limit, at, list);
        if limit.terms.rollout.ppm == 0 {
            let message =
                format!("limit {:?} has a rollout of 0 %: it refuses nothing", limit.name);
            let cure = "raise the share, or write mode: shadow";
            list.add(Code::RolledOutToNobody, at, message, cure);
        }
        warn_of_bans(limit, at, list);
        warn_of_spoofable_classes(limit, at, list);
        let has_no_key =
            |rule: &Override| matches!(&rule.target, OverrideTarget::Keys(keys) if keys.is_empty());
        if let Some(index) = limit.terms.overrides.iter().position(has_no_key) {
            let number = index + 1;
            let message = format!("override {number} never applies: its key_file has no key");
            list.add(Code::EmptyKeyFile, at, message, "write one key on each line, or remove it");
        }
    }
}

fn warn_of_noise(limit: &Limit, at: &Located<'_>, list: &mut WarningList<'_>) {
    let Count::Estimate { rate, expect_per_second } = &limit.count else {
        return;
    };
    let over = SketchSize::new(*rate, *expect_per_second).expected_overcount();
    if over * OVERCOUNT_DIVISOR > u64::from(rate.count()) {
        let message = format!(
            "the sketch over-counts by about {over} of {}: every key becomes a suspect",
            rate.count()
        );
        list.add(Code::EstimateNoise, at, message, "use a shorter window, or tier: exact");
    }
}

fn warn_of_untrusted_plan(
    input: &WarningInput<'_>,
    limit: &Limit,
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) {
    if let Some(plans) = &limit.terms.plans
        && plans.by.is_written_by_clients()
        && input.clients.trusted_proxies.is_empty()
    {
        let by = &plans.by;
        let message =
            format!("a plan from {by} is accepted from trusted proxies only, and there is none");
        let cure = "write clients: { trusted_proxies: [..] }, or use a jwt claim";
        list.add(Code::PlanUntrusted, at, message, cure);
    }
}

fn warn_of_bans(limit: &Limit, at: &Located<'_>, list: &mut WarningList<'_>) {
    if limit.penalty.is_none() {
        return;
    }
    let (name, key) = (&limit.name, &limit.key);
    if key.sources().iter().all(Source::is_shared_by_clients) {
        let message = format!(
            "limit {name:?} bans by {key}, which many clients share: one of them can lock all of \
             them out"
        );
        list.add(Code::SharedBan, at, message, "ban by client_ip, a header or a token's claim");
    }
    if key.sources().iter().all(Source::is_written_by_clients) {
        let message = format!(
            "limit {name:?} bans by {key}: a client that sends the key of another one often enough \
             has it banned"
        );
        list.add(Code::SpoofableBan, at, message, "ban by client_ip, or by a token's claim");
    }
}

/// Warns of classes that lift a limit and that clients enter by what they write.
fn warn_of_spoofable_classes(limit: &Limit, at: &Located<'_>, list: &mut WarningList<'_>) {
    let own = limit.quota(0);
    let lifts = |rate| match (own, limit.quota(rate)) {
        (Some(own), Some(other)) => per_second(other) > per_second(own),
        _ => false,
    };
    let overridden =
        limit.terms.overrides.iter().filter_map(|rule| match (&rule.target, rule.action) {
            (OverrideTarget::Class(class), OverrideAction::Allow) => Some(class),
            (OverrideTarget::Class(class), OverrideAction::Rate(rate)) if lifts(rate) => {
                Some(class)
            }
            _ => None,
        });
    let plans = limit.terms.plans.iter().flat_map(|plans| {
        let rates = plans.by.classes().iter().zip(&plans.rates);
        rates.filter(|(_, (_, rate))| lifts(*rate)).map(|(class, _)| class)
    });
    for class in overridden.chain(plans).filter(|class| is_claimed_by_clients(&class.matches)) {
        let message = format!(
            "class {:?} lifts limit {:?}, and a client enters it by what it writes into its request",
            class.name, limit.name
        );
        let cure = "add client: [..] or listener: [..] to the class, or use keys or tokens";
        list.add(Code::SpoofableClass, at, message, cure);
    }
}

/// Whether a client decides by its own words whether it fulfils a match.
fn is_claimed_by_clients(matches: &RequestMatch) -> bool {
    let is_bound = !matches.clients.is_empty() || !matches.listeners.is_empty();
    !is_bound && matches.values.iter().any(Condition::needs_value)
}

/// Units in a billion seconds, to compare rates.
fn per_second(quota: &Quota) -> u128 {
    u128::from(quota.limit()) * 1_000_000_000_000_000_000 / u128::from(quota.window().get().max(1))
}
