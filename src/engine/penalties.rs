//! Bans: a key that was denied too often is refused for a while, and charged nothing.

use std::net::IpAddr;

use super::counters::VerdictKinds;
use super::target::Target;
use super::{Decision, Engine, Generation, LimitVerdict, Outcome, VerdictKind};
use crate::clock::{Nanos, Now};
use crate::limit::Verdict;

impl Engine {
    /// Refuses a request one of whose keys is banned; nothing else is asked or charged.
    pub(super) fn banned(
        &self,
        generation: &Generation,
        targets: &[Target],
        decision: &mut Decision,
    ) -> bool {
        if !generation.bans {
            return false;
        }
        for target in targets.iter().filter(|target| !target.shadow) {
            let limit = generation.policy().limit(target.limit);
            if limit.penalty.is_none() {
                continue;
            }
            let Some(left) = self.bans.remaining(target.key, decision.at.mono) else {
                continue;
            };
            let verdict = Verdict {
                allowed: false,
                limit: limit.quota(target.rate).map_or(0, |quota| quota.limit()),
                remaining: 0,
                delay: Nanos::ZERO,
                reset: left,
                retry_after: Some(left),
            };
            let tier = limit.count.tier();
            let answer = LimitVerdict::new(target, tier, verdict, VerdictKinds::NORMAL);
            decision.verdicts.push(LimitVerdict { banned: true, ..answer });
            decision.outcome = Outcome::Limited;
            return true;
        }
        false
    }

    /// Counts denials, and bans keys that have too many. An override that denies is no denial of the
    /// limit, neither is a lack of room (for a key, or to wait in), nor a store that fails: with `local`,
    /// this node's own count denies.
    pub(super) fn punish(&self, generation: &Generation, targets: &[Target], decision: &Decision) {
        if decision.outcome != Outcome::Limited || !generation.bans {
            return;
        }
        for answer in decision.refusing().filter(|answer| !answer.banned) {
            let counts = matches!(answer.kind, VerdictKind::Denied | VerdictKind::DegradedDenied);
            let limit = generation.policy().limit(answer.limit);
            let mut targets = targets.iter().filter(|target| !target.denied);
            let target = targets.find(|target| target.limit == answer.limit);
            if let (true, Some(rule), Some(target)) = (counts, &limit.penalty, target)
                && let Some(span) = self.bans.record_denial(target.key, rule, decision.at.mono)
            {
                generation.counters(answer.limit).record_ban();
                log::info!("limit {} bans a key for {span:?}", limit.name);
            }
        }
    }

    /// Whether connections of a client are refused, by a ban that says so.
    pub fn bans_connections(
        &self,
        generation: &Generation,
        client: IpAddr,
        ipv6_prefix: u8,
        now: Now,
    ) -> bool {
        generation.banning().iter().any(|limit| {
            let hasher = &generation.counting(*limit).hasher;
            let key = hasher.hash_address(client, ipv6_prefix);
            self.bans.remaining(key, now.mono).is_some()
        })
    }
}
