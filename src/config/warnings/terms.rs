//! What is probably not meant by a limit's own words.

use super::{Code, WarningInput, WarningList};
use crate::policy::{Cost, Limit, Override, OverrideTarget, Source};

pub(super) fn look(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    for (limit, at) in looked.limits.limits.iter().zip(&looked.limits.places) {
        let mut tell = |code, message: String, cure| found.add(code, at, message, cure);
        if let Some(plans) = &limit.terms.plans
            && plans.by.is_written_by_clients()
            && looked.clients.trusted_proxies.is_empty()
        {
            let by = &plans.by;
            let message =
                format!("a plan from {by} is believed from trusted proxies, and there is none");
            tell(
                Code::PlanUntrusted,
                message,
                "write clients: { trusted_proxies: [..] }, or use a jwt claim",
            );
        }
        if limit.terms.rollout.ppm == 0 {
            let message =
                format!("limit {:?} is rolled out to nobody: it refuses nothing", limit.name);
            tell(Code::RolledOutToNobody, message, "raise the share, or write mode: shadow");
        }
        if bans_a_crowd(limit) {
            let message = format!(
                "limit {:?} bans by {}, which many clients share: one of them can lock all of them out",
                limit.name, limit.key
            );
            tell(Code::SharedBan, message, "ban by client_ip, a header or a token's claim");
        }
        if limit.penalty.is_some() && limit.key.sources().iter().all(Source::is_written_by_clients)
        {
            let message = format!(
                "limit {:?} bans by {}: whoever sends somebody's key often enough has it banned",
                limit.name, limit.key
            );
            tell(Code::SpoofableBan, message, "ban by client_ip, or by a token's claim");
        }
        if let Some(place) = hidden_network(&limit.terms.overrides) {
            let message =
                format!("override {} is never met: one before it covers its network", place + 1);
            tell(Code::ShadowedOverride, message, "put it first, or remove it");
        }
    }
    costs(looked, found);
}

/// Costs that the client chooses, and answers that may cost far more than was reserved.
fn costs(looked: &WarningInput<'_>, found: &mut WarningList<'_>) {
    for (route, at) in looked.routes.routes.iter().zip(&looked.routes.places) {
        for one in &route.limits {
            let name = &looked.limits.limits[one.limit.0].name;
            match &one.cost {
                Cost::Request { header, .. } => {
                    let message = format!(
                        "a client names its own cost for limit {name:?} in {header}, and may name 1"
                    );
                    let cure = "have the header set by what stands before tollgate, or use \
                                response_header";
                    found.add(Code::SpoofableCost, at, message, cure);
                }
                Cost::Response { reserve, max, .. } if *max / (*reserve).max(1) >= 10 => {
                    let message = format!(
                        "each request in flight may overspend limit {name:?} by {}: {reserve} is \
                         reserved and {max} may be used",
                        max - reserve
                    );
                    let cure = "raise reserve, or bound requests at once by max_in_flight";
                    found.add(Code::Overspend, at, message, cure);
                }
                Cost::Fixed(_) | Cost::Response { .. } => {}
            }
        }
    }
}

fn bans_a_crowd(limit: &Limit) -> bool {
    let shared = |source: &Source| {
        matches!(
            source,
            Source::Host
                | Source::Path
                | Source::Method
                | Source::Route
                | Source::PathSegment(_)
                | Source::Shard { .. }
        )
    };
    limit.penalty.is_some() && limit.key.sources().iter().all(shared)
}

/// The place of an exception for a network that an earlier one contains.
fn hidden_network(overrides: &[Override]) -> Option<usize> {
    let network = |one: &Override| match one.target {
        OverrideTarget::Network(network) => Some(network),
        OverrideTarget::Keys(_) => None,
    };
    (1..overrides.len()).find(|&place| {
        network(&overrides[place]).is_some_and(|later| {
            overrides[..place].iter().filter_map(network).any(|before| before.contains(&later))
        })
    })
}
