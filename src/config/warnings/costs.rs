//! Warnings about costs that never fit into what gives some requests of a route another rate: a plan, an override, the
//! candidate, or the limit for a missing key. All such requests are refused, which may be intended.

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::limit::Quota;
use crate::policy::{Limit, Mode, OverrideAction};

pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    for defined in input.routes {
        for used in &defined.route.limits {
            let cost = used.cost.minimum();
            for (link, position) in input.limits.missing_key_chain(used.limit).zip(0..) {
                let limit = input.limits.get(link);
                if limit.mode == Mode::Shadow {
                    continue;
                }
                let own = ("the rate".to_owned(), limit.max_cost());
                // That it fits into the first limit is an error elsewhere.
                let own = (position > 0).then_some(own).into_iter();
                if let Some((what, max)) =
                    own.chain(other_rates(limit)).find(|(_, max)| cost > *max)
                {
                    let message = format!(
                        "a cost of {cost} never fits into {what} of limit {:?}: route {:?} refuses \
                         all such requests",
                        limit.name, defined.route.name
                    );
                    let cure = format!("write at most {max}, or raise its rate or burst");
                    list.add(Code::CostAboveRate, &defined.at, message, &cure);
                }
            }
        }
    }
}

/// What else gives a limit a rate, each with the most units that it admits at once.
fn other_rates(limit: &Limit) -> impl Iterator<Item = (String, u32)> {
    let units = |rate| limit.quota(rate).map(Quota::limit);
    let terms = &limit.terms;
    let plans = terms.plans.iter().flat_map(|plans| &plans.rates);
    let plans =
        plans.filter_map(move |(name, rate)| Some((format!("plan {name:?}"), units(*rate)?)));
    let overrides =
        terms.overrides.iter().zip(1..).filter_map(move |(rule, number)| match rule.action {
            OverrideAction::Rate(rate) => Some((format!("override {number}"), units(rate)?)),
            OverrideAction::Allow | OverrideAction::Deny => None,
        });
    let candidate = terms.candidate.iter().map(|quota| ("the candidate".to_owned(), quota.limit()));
    plans.chain(overrides).chain(candidate)
}
