//! Warnings about patterns that a client can make expensive, and about those that match nothing.

use std::collections::HashSet;
use std::sync::Arc;

use super::codes::Code;
use super::list::{WarningInput, WarningList};
use crate::config::reader::Located;
use crate::policy::condition::{Subject, ValuePattern, ValueTest};
use crate::policy::{Class, Limit, OverrideTarget, RequestMatch};

/// A warning is given if counted repetitions make a pattern this much longer: then a request may have it read about a
/// thousand bytes that are made for it. Lists of words have no counts.
const MAX_COPIES: usize = 1_000;

/// And if such a value really costs more than this many steps at each byte. Other patterns have as many states as that, and
/// follow a few of them only.
const MAX_STEPS: u64 = 100;

/// Warns once of each pattern.
pub(super) fn add_warnings(input: &WarningInput<'_>, list: &mut WarningList<'_>) {
    let mut seen = HashSet::new();
    for defined in input.routes {
        warn_of_patterns(&defined.route.matches, &defined.at, &mut seen, list);
    }
    for defined in input.limits.iter() {
        for class in classes(&defined.limit) {
            warn_of_patterns(&class.matches, &defined.at, &mut seen, list);
        }
    }
}

/// Every class that decides about a limit.
fn classes(limit: &Limit) -> impl Iterator<Item = &Arc<Class>> {
    let overridden = limit.terms.overrides.iter().filter_map(|rule| match &rule.target {
        OverrideTarget::Class(class) => Some(class),
        _ => None,
    });
    let of_plans = limit.terms.plans.iter().flat_map(|plans| plans.by.classes());
    let of_key = limit.key.sources().iter().flat_map(|source| source.classes());
    overridden.chain(of_plans).chain(of_key)
}

fn warn_of_patterns<'p>(
    matches: &'p RequestMatch,
    at: &Located<'_>,
    seen: &mut HashSet<(bool, &'p ValuePattern)>,
    list: &mut WarningList<'_>,
) {
    let tests = matches.all_values().into_iter().flat_map(|condition| {
        let is_cookie = matches!(condition.subject(), Subject::Cookie(_));
        condition.tests().iter().map(move |test| (is_cookie, test))
    });
    for (is_cookie, test) in tests {
        let ValueTest::Regex(pattern) = test else {
            continue;
        };
        if !seen.insert((is_cookie, pattern)) {
            continue;
        }
        warn_of_no_match(pattern, is_cookie, at, list);
        let copies = pattern.counted_copies();
        if copies > MAX_COPIES && pattern.steps_for_made_values() > MAX_STEPS {
            let message = format!(
                "the counted repetitions of pattern /{}/ make {copies} steps out of it, and a value that is made for \
                 it takes many of them at every byte: long values are soon answered 400",
                pattern.as_str()
            );
            let cure = "write * or + instead of the counts, or smaller counts";
            list.add(Code::CostlyPattern, at, message, cure);
        }
    }
}

fn warn_of_no_match(
    pattern: &ValuePattern,
    is_cookie: bool,
    at: &Located<'_>,
    list: &mut WarningList<'_>,
) {
    let text = pattern.as_str();
    if pattern.matches_nothing() {
        let message = format!(
            "no value matches the pattern /{text}/: ^ and $ stand for the beginning and the end of the value, and a class \
             needs a character"
        );
        list.add(Code::PatternMatchesNothing, at, message, "correct it, or leave it out");
    } else if is_cookie && pattern.has_blank() {
        let message = format!(
            "the blank in the pattern /{text}/ matches nothing: in a cookie it is read as +"
        );
        list.add(Code::PatternMatchesNothing, at, message, "write [+] for a blank");
    }
}
