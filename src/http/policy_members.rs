//! The members of `RateLimit-Policy`, written once for each configuration.
//!
//! A member of that list names a limit, its units and its window (`"writes";q=60;w=60`). A decision changes none of
//! them. What a decision changes is in `RateLimit`, whose members begin with the same name.

use super::lines::number;
use crate::clock::Nanos;
use crate::limit::Quota;
use crate::policy::{Count, Limit, LimitIndex, PerLimit, Policy, RateIndex};

/// The member of a limit at one of its rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyMember {
    /// `"writes";q=60;w=60`
    text: Vec<u8>,
    /// `"writes";r=`
    remaining: Vec<u8>,
    /// The quota that the member states.
    units: u32,
}

impl PolicyMember {
    /// The member of a limit at one of its rates, whose quota is `units`.
    pub(crate) fn new(limit: &Limit, rate: RateIndex, units: u32) -> Self {
        // Names are [a-zA-Z0-9_-], so nothing in them needs an escape.
        let remaining = format!("\"{}\";r=", limit.name).into_bytes();
        let mut text = format!("\"{}\";q=", limit.name).into_bytes();
        number(&mut text, units.into());
        if matches!(limit.count, Count::InFlight { .. }) {
            text.extend_from_slice(b";qu=\"concurrent-requests\"");
        } else if let Some(window) = window_secs(limit, rate) {
            text.extend_from_slice(b";w=");
            number(&mut text, window);
        }
        Self { text, remaining, units }
    }

    /// The whole member.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The beginning of the limit's member of `RateLimit`, up to the number of units that remain.
    pub(crate) fn remaining(&self) -> &[u8] {
        &self.remaining
    }
}

/// The members of all limits of a policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyMembers(PerLimit<Vec<PolicyMember>>);

impl PolicyMembers {
    /// Writes a member for each rate of each limit.
    pub(crate) fn of(policy: &Policy) -> Self {
        let of_limit = |_, limit: &Limit| match &limit.count {
            Count::Estimate { rate, .. } => vec![PolicyMember::new(limit, 0, rate.count())],
            Count::InFlight { max } => vec![PolicyMember::new(limit, 0, *max)],
            Count::Exact { quota, .. } => {
                let quotas = std::iter::once(quota).chain(&limit.terms.quotas).zip(0..);
                quotas.map(|(quota, rate)| PolicyMember::new(limit, rate, quota.limit())).collect()
            }
        };
        Self(PerLimit::of(&policy.limits, of_limit))
    }

    /// The member of the limit with an index, if it states `units` as its quota.
    pub(crate) fn get(
        &self,
        limit: LimitIndex,
        rate: RateIndex,
        units: u32,
    ) -> Option<&PolicyMember> {
        let member = self.0.get(limit)?.get(rate as usize);
        // During a reload a cell may be judged by the numbers of another configuration.
        member.filter(|member| member.units == units)
    }
}

/// The whole seconds of the window. For a bucket, the time in which its burst refills (burst / rate). `None` if that is
/// less than a second, because the draft counts whole seconds.
fn window_secs(limit: &Limit, rate: RateIndex) -> Option<u64> {
    let window = match (&limit.count, limit.quota(rate)) {
        (Count::Estimate { rate, .. }, _) => rate.period(),
        (_, Some(Quota::TokenBucket(bucket))) => {
            let (rate, burst) = (bucket.rate(), u128::from(bucket.limit()));
            let span = u128::from(rate.period().get()) * burst / u128::from(rate.count());
            Nanos::new(u64::try_from(span).unwrap_or(u64::MAX))
        }
        (_, Some(quota)) => quota.window(),
        (_, None) => return None,
    };
    (window >= Nanos::SECOND).then(|| window.secs_ceil())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_member_is_found_under_its_numbers_only() {
        let text = "version: 1\nlisteners: [{ address: 127.0.0.1:1 }]\n\
                    origins: { site: { servers: [127.0.0.1:1] } }\n\
                    limits:\n  views: { tier: estimate, rate: 100/1m, key: client_ip, expect: { requests: 10/1s } }\n  \
                    writes: { tier: exact, rate: 6/1s, burst: 60, algorithm: token_bucket, key: client_ip }\n  \
                    calls: { tier: exact, max_in_flight: 5, key: client_ip }\n\
                    routes: [{ name: r, limits: [views, writes, calls] }]\n";
        let loaded = config::read_text(text, "test.yaml", std::path::Path::new("")).unwrap();
        let members = PolicyMembers::of(&loaded.config.policy);
        let written = |limit, units| {
            let member = members.get(LimitIndex(limit), 0, units)?;
            Some((
                String::from_utf8_lossy(member.as_bytes()),
                String::from_utf8_lossy(member.remaining()),
            ))
        };
        let of = |member: &'static str, begin: &'static str| Some((member.into(), begin.into()));
        assert_eq!(written(0, 100), of("\"views\";q=100;w=60", "\"views\";r="));
        assert_eq!(written(1, 60), of("\"writes\";q=60;w=10", "\"writes\";r="));
        assert_eq!(written(2, 5), of("\"calls\";q=5;qu=\"concurrent-requests\"", "\"calls\";r="));
        assert_eq!(written(1, 61), None);
        assert_eq!(written(3, 5), None);
        assert_eq!(members.get(LimitIndex(1), 1, 60), None);
    }
}
