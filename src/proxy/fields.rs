//! Header fields that tell a client where it stands: a pure function of the decision.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11; the
//! `X-RateLimit-*` triple is what clients of older services read.

use crate::clock::Nanos;
use crate::config::Responses;
use crate::engine::{Answer, Decision};
use crate::limit::Quota;
use crate::policy::{Count, Limit, Policy, RateIndex};

use super::lines::{LIMIT, RATELIMIT, RATELIMIT_POLICY, REMAINING, RESET, field, number};

/// Where a client stands after a decision, as its route's operator wants it told. Limits in shadow
/// mode and hidden ones are left out.
#[derive(Clone, Copy)]
pub(super) struct Standing<'d> {
    pub(super) decision: &'d Decision,
    pub(super) policy: &'d Policy,
    pub(super) responses: &'d Responses,
}

/// The older fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Triple {
    /// The most that can be spent at once.
    pub(super) limit: u32,
    /// What is left of it.
    pub(super) remaining: u32,
    /// When it is full again, in seconds since the Unix epoch.
    pub(super) reset: u64,
}

impl Standing<'_> {
    /// Whether there is anything to tell in the fields of the draft.
    pub(super) fn has_lists(&self) -> bool {
        self.responses.ratelimit_fields && self.visible().next().is_some()
    }

    /// The value of `RateLimit-Policy`: `"writes";q=60;w=60`.
    pub(super) fn write_policies(&self, out: &mut Vec<u8>) {
        self.write_list(out, |out, limit, answer| {
            out.extend_from_slice(b";q=");
            number(out, answer.verdict.limit.into());
            if is_in_flight(limit) {
                out.extend_from_slice(b";qu=\"concurrent-requests\"");
            } else if let Some(window) = window_secs(limit, answer.rate) {
                out.extend_from_slice(b";w=");
                number(out, window);
            }
        });
    }

    /// The value of `RateLimit`: `"writes";r=59;t=60`.
    pub(super) fn write_limits(&self, out: &mut Vec<u8>) {
        self.write_list(out, |out, limit, answer| {
            out.extend_from_slice(b";r=");
            number(out, answer.verdict.remaining.into());
            // When a request in flight ends nobody knows, so it has no `t`.
            if !is_in_flight(limit) {
                out.extend_from_slice(b";t=");
                number(out, answer.verdict.reset.secs_ceil());
            }
        });
    }

    /// The triple, of the tightest limit.
    pub(super) fn triple(&self) -> Option<Triple> {
        if !self.responses.x_ratelimit_fields {
            return None;
        }
        let answer = self.decision.tightest(|answer| self.is_visible(answer))?;
        let reset = self.decision.at.wall.saturating_add(answer.verdict.reset).secs_ceil();
        let verdict = &answer.verdict;
        Some(Triple { limit: verdict.limit, remaining: verdict.remaining, reset })
    }

    /// All of them, as HTTP/1 carries them.
    pub(super) fn write_lines(&self, out: &mut Vec<u8>) {
        if self.has_lists() {
            field(out, RATELIMIT_POLICY.shown, |out| self.write_policies(out));
            field(out, RATELIMIT.shown, |out| self.write_limits(out));
        }
        if let Some(Triple { limit, remaining, reset }) = self.triple() {
            field(out, LIMIT.shown, |out| number(out, limit.into()));
            field(out, REMAINING.shown, |out| number(out, remaining.into()));
            field(out, RESET.shown, |out| number(out, reset));
        }
    }

    fn is_visible(&self, answer: &Answer) -> bool {
        !answer.shadow && !self.policy.limit(answer.limit).hidden
    }

    fn visible(&self) -> impl Iterator<Item = &Answer> {
        self.decision.answers.iter().filter(|answer| self.is_visible(answer))
    }

    /// `"name"` with what `more` says of it, of each limit.
    fn write_list(&self, out: &mut Vec<u8>, more: impl Fn(&mut Vec<u8>, &Limit, &Answer)) {
        let mut first = true;
        for answer in self.visible() {
            let limit = self.policy.limit(answer.limit);
            // Names are [a-z0-9-], so nothing in them is to be escaped.
            out.extend_from_slice(if first { b"\"" } else { b", \"" });
            out.extend_from_slice(limit.name.as_bytes());
            out.push(b'"');
            more(out, limit, answer);
            first = false;
        }
    }
}

const fn is_in_flight(limit: &Limit) -> bool {
    matches!(limit.count, Count::InFlight { .. })
}

/// Whole seconds of the window; of a bucket, the time its burst takes to come (burst / rate).
/// None below a second, which the draft cannot say.
fn window_secs(limit: &Limit, rate: RateIndex) -> Option<u64> {
    let window = match (&limit.count, limit.quota(rate)) {
        (Count::Estimate { rate, .. }, _) => rate.period(),
        (_, Some(Quota::TokenBucket(bucket))) => {
            let (rate, most) = (bucket.rate(), u128::from(bucket.limit()));
            let span = u128::from(rate.period().get()) * most / u128::from(rate.count());
            Nanos::new(u64::try_from(span).unwrap_or(u64::MAX))
        }
        (_, Some(quota)) => quota.window(),
        (_, None) => return None,
    };
    (window >= Nanos::SECOND).then(|| window.secs_ceil())
}

/// Whole seconds until a refused request can succeed, at least 1. None where it never can.
pub fn retry_after_secs(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|wait| wait.secs_ceil().max(1))
}
