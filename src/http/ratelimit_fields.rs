//! The rate limit fields, which tell a client how much it has left: a pure function of the decision.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11. Older clients read the triple
//! `X-RateLimit-Limit`, `-Remaining` and `-Reset`.

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::lines::{
    InvalidField, LIMIT, Name, RATELIMIT, RATELIMIT_POLICY, REMAINING, RESET, field, number,
};
use super::policy_members::{PolicyMember, PolicyMembers};
use crate::clock::Nanos;
use crate::config::Responses;
use crate::engine::{Decision, LimitVerdict, Outcome};
use crate::policy::{Count, Policy};

/// The rate limit fields of a decision, as the configuration of its route asks for them. Limits in shadow mode and hidden
/// limits are left out.
#[derive(Clone, Copy)]
pub(crate) struct RateLimitFields<'d> {
    pub(crate) decision: &'d Decision,
    pub(crate) policy: &'d Policy,
    pub(crate) responses: &'d Responses,
    /// Members that were written in advance. A member that is not among them is written when it is needed.
    pub(crate) members: Option<&'d PolicyMembers>,
    /// A time that is added to that of a refusal, so that clients do not return all at once.
    pub(crate) jitter: Nanos,
}

/// The values of the `X-RateLimit-*` fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Triple {
    /// The units that can be spent at once.
    pub(crate) limit: u32,
    /// The units that are left.
    pub(crate) remaining: u32,
    /// When all units are available again, or a refused request can succeed; in seconds since the Unix epoch.
    pub(crate) reset: u64,
}

impl<'d> RateLimitFields<'d> {
    /// The fields of a decision.
    pub(crate) const fn new(
        decision: &'d Decision,
        policy: &'d Policy,
        responses: &'d Responses,
    ) -> Self {
        Self { decision, policy, responses, members: None, jitter: Nanos::ZERO }
    }
}

impl RateLimitFields<'_> {
    /// Whether the fields of the draft have any member.
    pub(crate) fn has_lists(&self) -> bool {
        self.responses.ratelimit_fields && self.visible().next().is_some()
    }

    /// The value of `RateLimit-Policy`: `"writes";q=60;w=60`.
    pub(crate) fn write_policies(&self, out: &mut Vec<u8>) {
        self.write_list(out, |out, member, _| out.extend_from_slice(member.as_bytes()));
    }

    /// The value of `RateLimit`: `"writes";r=59;t=60`.
    pub(crate) fn write_limits(&self, out: &mut Vec<u8>) {
        self.write_list(out, |out, member, limit_verdict| {
            out.extend_from_slice(member.remaining());
            number(out, limit_verdict.verdict.remaining.into());
            // It is unknown when a request in flight ends, so such a limit has no `t`.
            if !matches!(self.policy.limit(limit_verdict.limit).count, Count::InFlight { .. }) {
                out.extend_from_slice(b";t=");
                number(out, self.reset_secs(limit_verdict));
            }
        });
    }

    /// The triple of the tightest limit.
    pub(crate) fn triple(&self) -> Option<Triple> {
        if !self.responses.x_ratelimit_fields {
            return None;
        }
        let limit_verdict = self
            .latest_refusing()
            .or_else(|| self.decision.tightest(|limit_verdict| self.is_visible(limit_verdict)))?;
        let verdict = &limit_verdict.verdict;
        let until_reset = match self.retry_after_of(limit_verdict) {
            // The instant that `Retry-After` tells, unless a hidden limit refuses for longer.
            Some(wait) => Nanos::from_secs(wait),
            None => verdict.reset,
        };
        let reset = self.decision.date.saturating_add(until_reset).secs_ceil();
        Some(Triple { limit: verdict.limit, remaining: verdict.remaining, reset })
    }

    /// `Retry-After`: whole seconds until the refused request can succeed, at least 1. `None` if it never can, or if no
    /// limit refuses it.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        let wait = self.decision.retry_after()?;
        Some(self.rounded_up(wait))
    }

    /// The same for one limit: `None` where that does not refuse.
    fn retry_after_of(&self, limit_verdict: &LimitVerdict) -> Option<u64> {
        let refuses = self.decision.outcome == Outcome::Limited && limit_verdict.refuses();
        let wait = limit_verdict.verdict.retry_after.filter(|_| refuses)?;
        Some(self.rounded_up(wait))
    }

    fn rounded_up(&self, wait: Nanos) -> u64 {
        wait.saturating_add(self.jitter).secs_ceil().max(1)
    }

    /// `t`: of a limit that refuses, when it would admit the request; of any other, when all its units are back.
    fn reset_secs(&self, limit_verdict: &LimitVerdict) -> u64 {
        let wait = self.retry_after_of(limit_verdict);
        wait.unwrap_or_else(|| limit_verdict.verdict.reset.secs_ceil())
    }

    /// Of the visible limits that refuse, the one that `Retry-After` waits for.
    fn latest_refusing(&self) -> Option<&LimitVerdict> {
        let refusing = self.visible().filter(|answer| self.retry_after_of(answer).is_some());
        refusing.max_by_key(|answer| answer.verdict.retry_after)
    }

    /// Writes all fields as lines of HTTP/1.
    pub(crate) fn write_lines(&self, out: &mut Vec<u8>) {
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

    /// The fields to add to an answer that has the fields `theirs`. An origin's own triple that leaves less than ours
    /// stays as it is, so a client is never told more than the origin allows.
    pub(crate) fn additions(&self, theirs: &HeaderMap) -> Result<Additions, InvalidField> {
        let mut additions = Additions::new();
        if self.has_lists() {
            let [mut policies, mut limits] = [Vec::new(), Vec::new()];
            self.write_policies(&mut policies);
            self.write_limits(&mut limits);
            for (name, value) in [(RATELIMIT_POLICY, policies), (RATELIMIT, limits)] {
                let value = HeaderValue::try_from(value).map_err(|_| InvalidField)?;
                additions.push(Addition { name, value, replaces: false });
            }
        }
        if let Some(ours) = self.triple().filter(|ours| !is_tighter(theirs, *ours)) {
            let numbers = [
                (LIMIT, ours.limit.into()),
                (REMAINING, ours.remaining.into()),
                (RESET, ours.reset),
            ];
            additions.extend(numbers.map(|(name, number): (Name, u64)| Addition {
                name,
                value: HeaderValue::from(number),
                replaces: true,
            }));
        }
        Ok(additions)
    }

    /// Adds the fields to the map of an answer.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) -> Result<(), InvalidField> {
        for Addition { name, value, replaces } in self.additions(headers)? {
            match replaces {
                true => drop(headers.insert(name.name, value)),
                false => drop(headers.append(name.name, value)),
            }
        }
        Ok(())
    }

    fn is_visible(&self, limit_verdict: &LimitVerdict) -> bool {
        !limit_verdict.shadow && !self.policy.limit(limit_verdict.limit).hidden
    }

    fn visible(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.decision.verdicts.iter().filter(|limit_verdict| self.is_visible(limit_verdict))
    }

    /// Writes a list with a member for each visible limit.
    fn write_list(
        &self,
        out: &mut Vec<u8>,
        write: impl Fn(&mut Vec<u8>, &PolicyMember, &LimitVerdict),
    ) {
        let mut first = true;
        for limit_verdict in self.visible() {
            if !first {
                out.extend_from_slice(b", ");
            }
            first = false;
            let (limit, rate, units) =
                (limit_verdict.limit, limit_verdict.rate, limit_verdict.verdict.limit);
            match self.members.and_then(|all| all.get(limit, rate, units)) {
                Some(member) => write(out, member, limit_verdict),
                None => write(
                    out,
                    &PolicyMember::new(self.policy.limit(limit), rate, units),
                    limit_verdict,
                ),
            }
        }
    }
}

/// Whole seconds until a refused request can succeed, at least 1. `None` if it never can.
pub fn retry_after_secs(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(|wait| wait.secs_ceil().max(1))
}

/// A field to add to an answer.
pub(crate) struct Addition {
    pub(crate) name: Name,
    pub(crate) value: HeaderValue,
    /// Whether it replaces the answer's fields of this name. Otherwise the field is a list (RFC 9651) and gets one more
    /// line.
    pub(crate) replaces: bool,
}

/// The fields to add to an answer; at most five.
pub(crate) type Additions = SmallVec<[Addition; 5]>;

/// Whether an origin's triple leaves less than ours.
fn is_tighter(theirs: &HeaderMap, ours: Triple) -> bool {
    let remaining = theirs.get(REMAINING.name).and_then(|value| value.to_str().ok());
    remaining
        .and_then(|text| text.trim().parse::<u64>().ok())
        .is_some_and(|theirs| theirs < u64::from(ours.remaining))
}
