//! Bans: who was denied too often is refused at the door.

use std::net::IpAddr;

use super::due::Due;
use super::settle::{Kinds, answer};
use super::{Decision, Engine, Generation, Outcome, VerdictKind};
use crate::clock::{Nanos, Now};
use crate::limit::Verdict;

impl Engine {
    /// Refuses a request one of whose keys is banned; nothing else is asked or charged.
    pub(super) fn banned(
        &self,
        generation: &Generation,
        dues: &[Due],
        decision: &mut Decision,
    ) -> bool {
        if !generation.bans {
            return false;
        }
        for due in dues.iter().filter(|due| !due.shadow) {
            let limit = generation.policy().limit(due.limit);
            if limit.penalty.is_none() {
                continue;
            }
            let Some(left) = self.bans.left(due.key, decision.at.mono) else {
                continue;
            };
            let verdict = Verdict {
                allowed: false,
                limit: limit.quota(due.rate).map_or(0, |quota| quota.limit()),
                remaining: 0,
                wait: Nanos::ZERO,
                reset: left,
                retry_after: Some(left),
            };
            let banned = answer(due, limit.count.tier(), verdict, Kinds::NORMAL);
            decision.answers.push(super::Answer { banned: true, ..banned });
            decision.outcome = Outcome::Limited;
            return true;
        }
        false
    }

    /// Counts denials, and bans who has too many of them. An exception that refuses is no denial
    /// of the limit, and no more is a lack of room, or a store that is away.
    pub(super) fn punish(&self, generation: &Generation, dues: &[Due], decision: &Decision) {
        if decision.outcome != Outcome::Limited || !generation.bans {
            return;
        }
        for answer in decision.refusing().filter(|answer| !answer.banned) {
            let counts = matches!(answer.kind, VerdictKind::Denied | VerdictKind::DegradedDenied);
            let limit = generation.policy().limit(answer.limit);
            let due = dues.iter().find(|due| due.limit == answer.limit && !due.refused);
            if let (true, Some(rule), Some(due)) = (counts, &limit.penalty, due)
                && let Some(span) = self.bans.denied(due.key, rule, decision.at.mono)
            {
                generation.tally(answer.limit).count_ban();
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
            self.bans.left(key, now.mono).is_some()
        })
    }
}
