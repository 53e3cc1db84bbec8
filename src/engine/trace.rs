//! What a replay needs to know of one request: when it was judged, the recorded values of its keys, when its answer came and
//! which costs it named.
//!
//! A trace is written while the engine decides, if the policy says so, and goes into the access log. Times are exact to the
//! nanosecond, and events have an order, since two of them are often closer to each other than two readings of the clock.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::decision::{Decision, Outcome};
use super::event_order::EventOrder;
use crate::clock::Now;
use crate::policy::{NamedCost, RecordedValues, ResponseCosts, ResponseSource, Route, UnreadCost};

/// The trace of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct RequestTrace {
    /// The process; monotonic readings and orders of others cannot be compared with its own.
    #[cfg_attr(feature = "bin", serde(default))]
    pub run: String,
    /// When it was judged.
    pub at: Now,
    /// Its position in the order of everything that the process charged, corrected and ended.
    pub order: u64,
    /// The recorded values.
    #[cfg_attr(feature = "bin", serde(flatten))]
    pub values: RecordedValues,
    /// Whether it was refused because origins may read its path in different ways, which the log's path does not show.
    #[cfg_attr(
        feature = "bin",
        serde(rename = "ambiguous", default, skip_serializing_if = "std::ops::Not::not")
    )]
    pub is_ambiguous: bool,
    /// The position of the end of its slots in flight in that order, if it held any.
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "Option::is_none"))]
    pub ended: Option<u64>,
    /// How it was answered, if charges depended on that.
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "Option::is_none"))]
    pub answer: Option<TracedAnswer>,
    /// The end of the answer, if charges depended on that.
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "Option::is_none"))]
    pub end: Option<TracedEnd>,
}

/// The trace of a request that has not ended.
#[derive(Debug)]
pub(super) struct OpenTrace {
    pub(super) trace: RequestTrace,
    pub(super) events: EventOrder,
}

/// When a part of an answer was settled, and its position in the order of events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) now: Now,
    pub(super) order: u64,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct TracedAnswer {
    /// Nanoseconds since the request was judged.
    pub after: u64,
    /// The position of its settlement in the order of the process.
    #[cfg_attr(feature = "bin", serde(default))]
    pub order: u64,
    /// The status.
    pub status: u16,
    /// Who gave it.
    pub by: AnsweredBy,
    /// The costs that it names.
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "TracedCosts::is_empty"))]
    pub costs: TracedCosts,
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct TracedEnd {
    /// Nanoseconds since the request was judged.
    pub after: u64,
    /// The position of its settlement in the order of the process.
    #[cfg_attr(feature = "bin", serde(default))]
    pub order: u64,
    /// The costs that the answer names, those of the head included.
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "TracedCosts::is_empty"))]
    pub costs: TracedCosts,
}

/// Who answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "bin",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum AnsweredBy {
    /// The origin.
    Origin,
    /// This proxy, because the origin gave no answer.
    Proxy,
    /// This proxy, which asked no origin.
    Unforwarded,
}

/// Named costs, by where the answer names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct TracedCosts(BTreeMap<String, TracedCost>);

/// What an answer says of one cost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct TracedCost {
    /// The units, or how many it is at least.
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "Option::is_none"))]
    pub units: Option<u32>,
    /// Why it is not known; [`UnreadCost::name`].
    #[cfg_attr(feature = "bin", serde(default, skip_serializing_if = "Option::is_none"))]
    pub unread: Option<String>,
}

impl RequestTrace {
    /// The trace of a request that was just judged, at this position in the order of events.
    pub(super) fn new(decision: &Decision, order: u64, values: RecordedValues) -> Self {
        Self {
            run: run().to_owned(),
            at: decision.at,
            order,
            values,
            is_ambiguous: decision.outcome == Outcome::AmbiguousPath,
            ended: None,
            answer: None,
            end: None,
        }
    }

    /// The head of the answer was settled.
    pub(super) fn answered(
        &mut self,
        Settled { now, order }: Settled,
        (status, by): (u16, AnsweredBy),
        costs: TracedCosts,
    ) {
        self.answer = Some(TracedAnswer { after: self.after(now), order, status, by, costs });
    }

    /// The rest of the answer was settled.
    pub(super) fn rest_ended(&mut self, Settled { now, order }: Settled, costs: TracedCosts) {
        self.end = Some(TracedEnd { after: self.after(now), order, costs });
    }

    fn after(&self, now: Now) -> u64 {
        now.mono.saturating_sub(self.at.mono).get()
    }
}

impl TracedCost {
    fn of(named: NamedCost) -> Self {
        let (units, unread) = match named {
            NamedCost::Final(units) => (Some(units), None),
            NamedCost::AtLeast(units, reason) => (Some(units), Some(reason)),
            NamedCost::Unread(reason) => (None, Some(reason)),
        };
        Self { units, unread: unread.map(|reason| reason.name().to_owned()) }
    }

    /// What the answer names.
    pub fn named(&self) -> NamedCost {
        let unread = self.unread.as_deref();
        let reason = UnreadCost::ALL.into_iter().find(|reason| Some(reason.name()) == unread);
        match (self.units, reason) {
            (Some(units), None) => NamedCost::Final(units),
            (Some(units), Some(reason)) => NamedCost::AtLeast(units, reason),
            (None, reason) => NamedCost::Unread(reason.unwrap_or(UnreadCost::Absent)),
        }
    }
}

impl TracedCosts {
    pub(super) fn of(route: &Route, costs: &ResponseCosts) -> Self {
        let limits = route.limits.iter().enumerate();
        let named = limits.filter_map(|(index, limit)| {
            let source = limit.cost.response_source()?;
            Some((source.to_string(), TracedCost::of(costs.asked(index)?)))
        });
        Self(named.collect())
    }

    /// What the answer names there.
    pub fn named(&self, source: &ResponseSource) -> Option<NamedCost> {
        self.0.get(&source.to_string()).map(TracedCost::named)
    }

    /// Whether no cost is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The costs of the limits of a route. `is_end`: the rest of the response names no more.
    pub(super) fn of_route(&self, route: &Route, is_end: bool) -> ResponseCosts {
        ResponseCosts::of_log(route, is_end, |source| self.named(source))
    }
}

/// The name of this process in logs: random, because a process in a container often has the number of the one before.
fn run() -> &'static str {
    static RUN: LazyLock<String> = LazyLock::new(|| {
        let mut bytes = [0; 8];
        // Without randomness all processes have one name, and a replay orders their requests by time alone.
        let _ = getrandom::fill(&mut bytes);
        format!("{:016x}", u64::from_le_bytes(bytes))
    });
    &RUN
}
