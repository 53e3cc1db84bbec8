//! `GET /history`: what happened in each of the last minutes, by route and by limit.
//!
//! What must always hold: an answer has at most [`MAX_ENTRIES`] routes and limits in all its minutes together.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::AdminApi;
use super::keys::Unanswered;
use super::query::{Parameters, bad_request, not_found};
use super::refusals::unknown_name;
use crate::history::{
    HistoryMinute, HistoryQuery, HistoryTooLarge, LIMIT_COUNTS, MINUTES, OTHERS, ROUTE_COUNTS,
};
use crate::ops::log::timestamp;
use crate::ops::traffic_totals;

/// Routes and limits of one answer: about ten megabytes of text. An hour of the largest configuration has a quarter.
const MAX_ENTRIES: usize = 100_000;

/// Minutes of an answer to a question that names none.
const DEFAULT_MINUTES: usize = 60;

#[derive(Serialize)]
struct HistoryAnswer<'h> {
    minutes: Vec<MinuteAnswer<'h>>,
}

#[derive(Serialize)]
struct MinuteAnswer<'h> {
    time: String,
    complete: bool,
    total: NamedCounts<'h, u64, { ROUTE_COUNTS.len() }>,
    routes: CountsByName<'h, { ROUTE_COUNTS.len() }>,
    limits: CountsByName<'h, { LIMIT_COUNTS.len() }>,
}

/// Numbers with the names of what they count.
struct NamedCounts<'h, C, const N: usize> {
    names: &'static [&'static str; N],
    counts: &'h [C; N],
}

/// The numbers of each route, or of each limit.
struct CountsByName<'h, const N: usize> {
    names: &'static [&'static str; N],
    entries: &'h [(Arc<str>, [u32; N])],
}

impl<C: Serialize, const N: usize> Serialize for NamedCounts<'_, C, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.names.iter().zip(self.counts))
    }
}

impl<const N: usize> Serialize for CountsByName<'_, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = self.names;
        let entries = self.entries.iter();
        serializer
            .collect_map(entries.map(|(name, counts)| (&**name, NamedCounts { names, counts })))
    }
}

impl<'h> MinuteAnswer<'h> {
    fn of(minute: &'h HistoryMinute) -> Self {
        Self {
            time: timestamp(minute.date.into()),
            complete: minute.is_complete,
            total: NamedCounts { names: &ROUTE_COUNTS, counts: &minute.total },
            routes: CountsByName { names: &ROUTE_COUNTS, entries: &minute.routes },
            limits: CountsByName { names: &LIMIT_COUNTS, entries: &minute.limits },
        }
    }
}

impl AdminApi {
    /// The last minutes as JSON.
    pub(super) fn minutes(&self, query: Option<&str>) -> Result<String, Unanswered> {
        let parameters = Parameters::of(query, &["minutes", "route", "detail"])?;
        let has_details = match parameters.get("detail") {
            None | Some("all") => true,
            Some("none") => false,
            Some(_) => return Err(bad_request("detail: write all or none".to_owned())),
        };
        let query = HistoryQuery {
            minutes: parameters.number("minutes", DEFAULT_MINUTES, (1, MINUTES))?,
            route: parameters.get("route"),
            has_details,
            max_entries: MAX_ENTRIES,
        };
        let now = self.engine.now();
        let totals = traffic_totals(&self.live.load(), &self.counters);
        let is_known =
            |route: &str| route == OTHERS || totals.routes.iter().any(|(name, _)| **name == *route);
        if let Some(route) = query.route.filter(|route| !is_known(route)) {
            return Err(not_found(unknown_name("route", route)));
        }
        let minutes = self.history.read(query, now.mono, self.engine.date(now), &totals);
        let minutes = minutes.map_err(|HistoryTooLarge| {
            bad_request(format!(
                "the answer would have more than {MAX_ENTRIES} entries; ask for fewer minutes, for one \
                 route (route=NAME), or for the sums of all routes (detail=none)"
            ))
        })?;
        let answer = HistoryAnswer { minutes: minutes.iter().map(MinuteAnswer::of).collect() };
        serde_json::to_string(&answer).map(|text| text + "\n").map_err(|error| Unanswered {
            status: http::StatusCode::INTERNAL_SERVER_ERROR,
            detail: error.to_string(),
        })
    }
}
