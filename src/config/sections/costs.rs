//! `cost`, `count`, `refund` and `penalty`: what a request costs, which responses are refunded, and
//! which keys are banned.

use std::ops::RangeInclusive;

use http::HeaderName;

use crate::clock::Nanos;
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{integer, positive_duration};
use crate::policy::{
    Cost, Count, JsonPointer, Limit, Penalty, ResponseSource, StatusRules, Statuses,
};

/// Largest cost of one request, in units.
///
/// Both stores hold what a cell has spent in 32 bits, or as a time that takes it to refill, and stop there.
const MAX_COST: u64 = u32::MAX as u64;

/// Largest number of denials that lead to a ban. Their times are kept for each key.
const MAX_AFTER: u64 = 1_000;

/// Default of `forgive`.
const DEFAULT_FORGIVE: Nanos = Nanos::from_secs(86_400);

/// The keys of a cost that say where it is, of which one is written.
const SOURCE_KEYS: [&str; 4] = ["header", "response_header", "response_trailer", "response_body"];

/// A number, `{ header, default, max }`, or one of `{ response_header | response_trailer | response_body, reserve, max }`.
pub(crate) fn cost(at: &Located<'_>) -> Option<Cost> {
    if !at.is_mapping() {
        return units(at).map(Cost::Fixed);
    }
    let mut map = at.mapping()?;
    let sources: Vec<_> =
        SOURCE_KEYS.iter().filter_map(|key| Some((*key, map.get(key)?))).collect();
    let max = map.require("max", "write max: 100, the largest cost of one request");
    let [(key, source_at)] = sources.as_slice() else {
        at.error_with(
            "a cost is read from one source",
            "write one of { header, default, max }, { response_header, reserve, max }, \
             { response_trailer, reserve, max } and { response_body, reserve, max }",
        );
        return None;
    };
    let max = max.as_ref().and_then(units);
    let cost = if *key == "header" {
        let default = map.get("default").map_or(Some(1), |at| units(&at));
        let header = source_at.parse(header_name);
        Cost::Request { header: header?, default: default?, max: max? }
    } else {
        let cure = "write reserve: 100, the units that are charged when the request arrives";
        let reserve = map.require("reserve", cure).and_then(|at| units(&at));
        let source = response_source(key, source_at);
        Cost::Response { source: source?, reserve: reserve?, max: max? }
    };
    map.finish();
    refuse_default_above_max(at, &cost)?;
    Some(cost)
}

fn response_source(key: &str, at: &Located<'_>) -> Option<ResponseSource> {
    match key {
        "response_body" => at.parse(JsonPointer::parse).map(ResponseSource::Body),
        "response_trailer" => at.parse(header_name).map(ResponseSource::Trailer),
        _ => at.parse(header_name).map(ResponseSource::Header),
    }
}

fn refuse_default_above_max(at: &Located<'_>, cost: &Cost) -> Option<()> {
    let (key, units, max) = match cost {
        Cost::Fixed(_) => return Some(()),
        Cost::Request { default, max, .. } => ("default", *default, *max),
        Cost::Response { reserve, max, .. } => ("reserve", *reserve, *max),
    };
    if units > max {
        at.error_with(
            format!("{key} is {units}, above max {max}"),
            "raise max, or lower the other",
        );
        return None;
    }
    Some(())
}

fn units(at: &Located<'_>) -> Option<u32> {
    at.parse(integer(1, MAX_COST)).and_then(|cost| u32::try_from(cost).ok())
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    HeaderName::try_from(text)
        .map_err(|_| format!("{text:?} is not the name of a header; write it as x-cost"))
}

/// Refuses a cost that never fits into the limit, and one from the response if the limit cannot correct charges. (Other rates
/// of the limit may be for other requests: `warnings/costs.rs`.)
pub(crate) fn refuse_misfit(at: &Located<'_>, cost: &Cost, limit: &Limit) {
    let (minimum, max) = (cost.minimum(), limit.max_cost());
    if minimum > max {
        let cure = format!("write at most {max}, or raise the limit");
        let message = format!("a cost of {minimum} never fits into limit {:?}", limit.name);
        at.error_with(message, cure);
    }
    if cost.depends_on_response() && !matches!(limit.count, Count::Exact { .. }) {
        let cure = "leave it out, or write a rate with tier: exact";
        at.error_with("a cost from the response needs an exact rate", cure);
    }
}

/// `count` and `refund`.
pub(crate) fn status_rules(map: &mut Mapping<'_>) -> Option<StatusRules> {
    let (count, refund) = (map.get("count"), map.get("refund"));
    let (count, refund) = (count.map(|at| statuses(&at)), refund.map(|at| statuses(&at)));
    Some(StatusRules {
        only: match count {
            None => None,
            Some(count) => Some(count?),
        },
        refund: match refund {
            None => None,
            Some(refund) => Some(refund?),
        },
    })
}

/// `{ status: [401, 500-599] }`.
fn statuses(at: &Located<'_>) -> Option<Statuses> {
    let mut map = at.mapping()?;
    let status = map.require("status", "write { status: [401, 500-599] }");
    map.finish();
    let status = status?;
    let items = status.list_or_single();
    if items.is_empty() {
        status.error_with("no status", "write for example [401, 403]");
    }
    let ranges: Vec<_> = items.iter().map(|at| at.parse(range)).collect();
    ranges.into_iter().collect::<Option<Vec<_>>>().map(Statuses)
}

fn range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let status = |text: &str| {
        let number = integer(100, 599)(text.trim());
        let class = text.to_ascii_lowercase();
        let class =
            class.strip_suffix("xx").filter(|class| matches!(*class, "1" | "2" | "3" | "4" | "5"));
        number.map(|status| status as u16).map_err(|error| match class {
            Some(class) => format!("{text:?} is not a status; write {class}00-{class}99"),
            None => format!("{error}; write a status, or a range as 500-599"),
        })
    };
    match text.split_once('-') {
        None => status(text).map(|status| status..=status),
        Some((first, last)) => {
            let (first, last) = (status(first)?, status(last)?);
            if first > last {
                return Err(format!("{text:?} ends before it begins; write {last}-{first}"));
            }
            Ok(first..=last)
        }
    }
}

/// `{ after: 20, within: 1m, ban: 10m, double_up_to: 1d, forgive: 1d, at: request }`.
pub(crate) fn penalty(at: &Located<'_>) -> Option<Penalty> {
    let mut map = at.mapping()?;
    let after = map.require("after", "write after: 20, the denials that lead to a ban");
    let within = map.require("within", "write within: 1m");
    let ban = map.require("ban", "write ban: 10m");
    let (double_up_to, forgive) = (map.get("double_up_to"), map.get("forgive"));
    let words = [("request", false), ("connection", true)];
    let at_connection = map.get("at").map_or(Some(false), |at| at.choice(&words));
    map.finish();
    let span = |at: &Located<'_>| at.parse(positive_duration).map(Nanos::from);
    let after = after.and_then(|at| at.parse(integer(1, MAX_AFTER)));
    let (within, ban) = (within.and_then(|at| span(&at)), ban.and_then(|at| span(&at)));
    let ban = ban?;
    let longest = double_up_to.as_ref().map_or(Some(ban), span)?;
    if let Some(at) = double_up_to.filter(|_| longest < ban) {
        at.error_with("double_up_to is shorter than the ban", "leave it out to not double");
    }
    Some(Penalty {
        after: u32::try_from(after?).ok()?,
        within: within?,
        ban,
        double_up_to: longest,
        forgive: forgive.as_ref().map_or(Some(DEFAULT_FORGIVE), span)?,
        at_connection: at_connection?,
    })
}
