//! Warnings about single limits: settings that have no effect, bans that hit the wrong clients, and
//! sketches that are too noisy.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::config::reader::Located;
use crate::limit::{OVERCOUNT_DIVISOR, SketchSize};
use crate::policy::{Count, Limit, Override, OverrideTarget, Source};

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
        if let Some(index) = covered_network(&limit.terms.overrides) {
            let number = index + 1;
            let message =
                format!("override {number} never applies: an earlier one covers its network");
            list.add(Code::ShadowedOverride, at, message, "put it first, or remove it");
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

/// The index of an override for a network that an earlier override contains.
fn covered_network(overrides: &[Override]) -> Option<usize> {
    let network = |rule: &Override| match rule.target {
        OverrideTarget::Network(network) => Some(network),
        OverrideTarget::Keys(_) => None,
    };
    (1..overrides.len()).find(|&index| {
        network(&overrides[index]).is_some_and(|later| {
            overrides[..index].iter().filter_map(network).any(|earlier| earlier.contains(&later))
        })
    })
}
