//! Header fields that tell a client where it stands: a pure function of the decision.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11; the
//! `X-RateLimit-*` triple is what clients of older services read.

use crate::config::Responses;
use crate::engine::{Decision, LimitVerdict};
use crate::policy::{Count, Policy};

use super::lines::{LIMIT, RATELIMIT, RATELIMIT_POLICY, REMAINING, RESET, field, number};
use super::members::{Member, Members};

/// Where a client stands after a decision, as its route's operator wants it told. Limits in shadow
/// mode and hidden ones are left out.
#[derive(Clone, Copy)]
pub(super) struct Standing<'d> {
    pub(super) decision: &'d Decision,
    pub(super) policy: &'d Policy,
    pub(super) responses: &'d Responses,
    /// Those that were written before; others are written here.
    pub(super) members: Option<&'d Members>,
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
        self.write_list(out, |out, member, _| out.extend_from_slice(member.as_bytes()));
    }

    /// The value of `RateLimit`: `"writes";r=59;t=60`.
    pub(super) fn write_limits(&self, out: &mut Vec<u8>) {
        self.write_list(out, |out, member, answer| {
            out.extend_from_slice(member.remaining());
            number(out, answer.verdict.remaining.into());
            // When a request in flight ends nobody knows, so it has no `t`.
            if !matches!(self.policy.limit(answer.limit).count, Count::InFlight { .. }) {
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
        let reset = self.decision.date.saturating_add(answer.verdict.reset).secs_ceil();
        let verdict = &answer.verdict;
        Some(Triple { limit: verdict.limit, remaining: verdict.remaining, reset })
    }

    /// All of them, as HTTP/1 carries them.
    pub(super) fn write_lines(&self, out: &mut Vec<u8>) {
        if self.has_lists() {
            field(out, RATELIMIT_POLICY.begin, |out| self.write_policies(out));
            field(out, RATELIMIT.begin, |out| self.write_limits(out));
        }
        if let Some(Triple { limit, remaining, reset }) = self.triple() {
            field(out, LIMIT.begin, |out| number(out, limit.into()));
            field(out, REMAINING.begin, |out| number(out, remaining.into()));
            field(out, RESET.begin, |out| number(out, reset));
        }
    }

    fn is_visible(&self, answer: &LimitVerdict) -> bool {
        !answer.shadow && !self.policy.limit(answer.limit).hidden
    }

    fn visible(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.decision.verdicts.iter().filter(|answer| self.is_visible(answer))
    }

    /// A list with a member for each limit that is told.
    fn write_list(&self, out: &mut Vec<u8>, write: impl Fn(&mut Vec<u8>, &Member, &LimitVerdict)) {
        let mut first = true;
        for answer in self.visible() {
            if !first {
                out.extend_from_slice(b", ");
            }
            first = false;
            let (limit, rate, units) = (answer.limit, answer.rate, answer.verdict.limit);
            match self.members.and_then(|all| all.get(limit.0, rate, units)) {
                Some(member) => write(out, member, answer),
                None => write(out, &Member::new(self.policy.limit(limit), rate, units), answer),
            }
        }
    }
}

/// Whole seconds until a refused request can succeed, at least 1. None where it never can.
pub fn retry_after_secs(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|wait| wait.secs_ceil().max(1))
}
