//! Which condition of a policy cannot be known for a request, what asks for it, and why.
//!
//! The engine says only that there is one. Here the same conditions are asked again, in the same order, with and without the
//! budget of work. Values are not shown.

use serde_json::{Value, json};

use super::why::override_name;
use crate::engine::{Decision, Outcome};
use crate::policy::condition::Condition;
use crate::policy::{
    ConditionResults, Facts, LimitIndex, MissingKey, OverrideTarget, Policy, RequestMatch, Route,
    Source,
};

/// A match that a decision may depend on, and what asks for it.
struct AskedMatch<'p> {
    of: String,
    matches: &'p RequestMatch,
}

/// What asks for the condition that cannot be known, and why it cannot; null if there is none.
pub(super) fn condition_json(policy: &Policy, decision: &Decision, facts: &Facts<'_>) -> Value {
    if decision.outcome != Outcome::UnreadableCondition {
        return Value::Null;
    }
    let asked = match decision.route {
        None => of_routes(policy),
        Some(route) => of_limits(policy, policy.route(route)),
    };
    // Without a budget only values that origins read in different ways are unreadable.
    if let Some((of, matches)) = first_unreadable(&asked, &Facts { conditions: None, ..*facts }) {
        let facts = Facts { conditions: None, ..*facts };
        let condition = matches.all_values().into_iter().find(|it| it.holds(&facts).is_err());
        let subject = condition.map(|it| it.subject().to_string()).unwrap_or_default();
        let why = format!("origins may read {subject} in different ways");
        return json!({ "of": of, "why": why });
    }
    let anew = ConditionResults::default();
    let why = "the conditions of the request are more than about a million steps of work";
    match first_unreadable(&asked, &Facts { conditions: Some(&anew), ..*facts }) {
        Some((of, matches)) => {
            let why = format!("{why}; this one reads {}", subjects(&matches.all_values()));
            json!({ "of": of, "why": why })
        }
        None => json!({ "of": "the policy", "why": why }),
    }
}

/// The first match that cannot be known.
fn first_unreadable<'p>(
    asked: &[AskedMatch<'p>],
    facts: &Facts<'_>,
) -> Option<(String, &'p RequestMatch)> {
    let unreadable = asked.iter().find(|asked| asked.matches.holds(facts).is_err());
    unreadable.map(|asked| (asked.of.clone(), asked.matches))
}

fn of_routes(policy: &Policy) -> Vec<AskedMatch<'_>> {
    let routes = policy.routes.iter();
    routes.map(|it| AskedMatch { of: format!("route {}", it.name), matches: &it.matches }).collect()
}

/// The classes that limits of a route ask for: in keys, in overrides and in plans, in this order for each limit.
fn of_limits<'p>(policy: &'p Policy, route: &'p Route) -> Vec<AskedMatch<'p>> {
    let mut asked = Vec::new();
    for used in &route.limits {
        let mut index = used.limit;
        add_classes(policy, index, &mut asked);
        // The configuration refuses cycles of limits that stand for each other.
        while let MissingKey::Limit(next) = policy.limit(index).missing_key {
            index = next;
            add_classes(policy, index, &mut asked);
        }
    }
    asked
}

fn add_classes<'p>(policy: &'p Policy, index: LimitIndex, asked: &mut Vec<AskedMatch<'p>>) {
    let limit = policy.limit(index);
    let name = &limit.name;
    let mut add = |of: String, matches| asked.push(AskedMatch { of, matches });
    for class in limit.key.sources().iter().flat_map(Source::classes) {
        add(format!("limit {name}, its key by class {}", class.name), &class.matches);
    }
    for (number, rule) in (0..).zip(&limit.terms.overrides) {
        if let OverrideTarget::Class(class) = &rule.target {
            let rule = override_name(policy, index, number);
            add(format!("limit {name}, {rule}"), &class.matches);
        }
    }
    for class in limit.terms.plans.iter().flat_map(|plans| plans.by.classes()) {
        add(format!("limit {name}, its plan by class {}", class.name), &class.matches);
    }
}

/// What conditions read, each once.
fn subjects(conditions: &[&Condition]) -> String {
    let mut subjects: Vec<String> =
        conditions.iter().map(|condition| condition.subject().to_string()).collect();
    subjects.dedup();
    subjects.join(", ")
}
