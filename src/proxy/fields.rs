//! Header fields that tell a client where it stands: a pure function of the decision.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11; the
//! `X-RateLimit-*` triple is what clients of older services read.

use std::fmt::Write;

use http::HeaderValue;

use crate::clock::Nanos;
use crate::engine::{Answer, Decision};
use crate::limit::Quota;
use crate::policy::{Count, Limit, Policy, RateIndex};

/// What the fields of one response say. Absent ones are not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitFields {
    /// `RateLimit-Policy`.
    pub policy: Option<HeaderValue>,
    /// `RateLimit`.
    pub limit: Option<HeaderValue>,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, of the tightest limit.
    pub triple: Option<Triple>,
}

/// The older fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triple {
    /// The most that can be spent at once.
    pub limit: u32,
    /// What is left of it.
    pub remaining: u32,
    /// When it is full again, in seconds since the Unix epoch.
    pub reset: u64,
}

/// Which of the fields an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The fields of the draft.
    pub ratelimit: bool,
    /// The triple.
    pub x_ratelimit: bool,
}

/// The fields of a response to a request that was decided so. Limits in shadow mode and hidden
/// ones are left out.
pub fn of(decision: &Decision, policy: &Policy, wanted: Wanted) -> RateLimitFields {
    let visible = |answer: &Answer| !answer.shadow && !policy.limit(answer.limit).hidden;
    let mut fields = RateLimitFields::default();
    if wanted.ratelimit {
        let (mut policies, mut limits) = (String::new(), String::new());
        for answer in decision.answers.iter().filter(|answer| visible(answer)) {
            write_member(&mut policies, &mut limits, policy.limit(answer.limit), answer);
        }
        if !limits.is_empty() {
            // Names are [a-z0-9-] and the rest digits, so this is always a value.
            fields.policy = HeaderValue::try_from(policies).ok();
            fields.limit = HeaderValue::try_from(limits).ok();
        }
    }
    if wanted.x_ratelimit
        && let Some(answer) = decision.tightest(visible)
    {
        fields.triple = Some(Triple {
            limit: answer.verdict.limit,
            remaining: answer.verdict.remaining,
            reset: decision.at.wall.saturating_add(answer.verdict.reset).secs_ceil(),
        });
    }
    fields
}

/// `"writes";q=60;w=60` and `"writes";r=59;t=60`.
fn write_member(policies: &mut String, limits: &mut String, limit: &Limit, answer: &Answer) {
    let (name, verdict) = (&limit.name, &answer.verdict);
    let comma = if limits.is_empty() { "" } else { ", " };
    // Writing to a String does not fail.
    let _ = write!(policies, "{comma}\"{name}\";q={}", verdict.limit);
    let _ = write!(limits, "{comma}\"{name}\";r={}", verdict.remaining);
    if matches!(limit.count, Count::InFlight { .. }) {
        // When one of them ends nobody knows, so there is no `t`.
        policies.push_str(";qu=\"concurrent-requests\"");
        return;
    }
    if let Some(window) = window_secs(limit, answer.rate) {
        let _ = write!(policies, ";w={window}");
    }
    let _ = write!(limits, ";t={}", verdict.reset.secs_ceil());
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
