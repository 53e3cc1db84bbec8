//! Shares bans between nodes. A few times a second, a node sends its new bans to the store and receives those of the
//! other nodes, so that a ban is known everywhere within a second.
//!
//! This runs in a task of its own, so no request waits for it: while the store is away, bans are shared later. A ban
//! that is sent twice counts once, because it names its age. The script is `bans.lua`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, Value};

use super::redis_transport::{NAMES_ANOTHER, RedisTransport};
use super::server::{CommandError, Lane};
use super::slots;
use super::told_outage::ToldOutage;
use super::transport::{Readiness, StoreTransport};
use crate::clock::Nanos;
use crate::limit::MICROSECOND;
use crate::policy::KeyHash;
use crate::store::{Ban, Bans};

/// The script that keeps the bans.
const SCRIPT: &str = concat!(include_str!("common.lua"), include_str!("bans.lua"));

/// The time between two exchanges. A ban reaches another node within two intervals.
const EXCHANGE_EVERY: Duration = Duration::from_millis(300);

/// For so long a node that begins shares no bans, while it has not heard what operators have forgiven: the store would take its bans
/// for such that were.
const CHANGES_PATIENCE: Nanos = Nanos::from_secs(2);

/// The time between two exchanges while there are more bans than fit into one. With it, the server spends at most a
/// tenth of its time on this node's bans.
const EXCHANGE_EVERY_WHILE_MANY: Duration = Duration::from_millis(10);

/// The largest number of bans sent at once. The server is busy with them for about a millisecond.
const MAX_SENT: usize = 64;

/// The longest time that a reply may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The longest that a ban can last, which is the longest time in a configuration.
const MAX_BAN: Nanos = crate::limit::MAX_PERIOD;

/// The hash tag that keeps the bans of a deployment in one slot.
const HASH_TAG: &str = "bans";

/// A reply of the script.
struct BanReply {
    /// The time of the server from which the next exchange asks for bans.
    next_since: u64,
    /// Bans that this node may not know yet.
    bans: Vec<SharedBan>,
}

/// A ban that the store reports.
struct SharedBan {
    key: KeyHash,
    /// When it was reported last, in microseconds by the server's clock.
    reported_at: u64,
    /// How long it still lasts, in microseconds. Negative: it ended so long ago.
    left: i64,
}

/// Shares bans until the transport is dropped.
pub(super) async fn share(transport: Weak<RedisTransport>, bans: Arc<Bans>) {
    let mut since = "0".to_owned();
    let mut outage = ToldOutage::default();
    let mut answered_at = None;
    // A node that has just begun does not use denials of others before it has heard of the bans.
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        pause = EXCHANGE_EVERY;
        let Some(transport) = transport.upgrade() else {
            return;
        };
        if transport.readiness(transport.bans_slot()) == Readiness::Away {
            continue;
        }
        let now = transport.context.clock.now().mono;
        let waits = !bans.knows_changes()
            && answered_at.is_none_or(|at| now.saturating_sub(at) < CHANGES_PATIENCE);
        let sent = bans.take_unshared(if waits { 0 } else { MAX_SENT }, now);
        if bans.take_forgotten() {
            since = "0".to_owned();
            bans.set_heard(0);
        }
        let unshareable = bans.take_unshareable();
        if unshareable > 0 {
            log::warn!("{unshareable} bans are not shared with the other nodes: too many at once");
        }
        match transport.exchange_bans(&sent, &since).await {
            Ok(reply) => {
                bans.record_told();
                if sent.len() == MAX_SENT || reply.bans.len() >= MAX_SENT {
                    pause = EXCHANGE_EVERY_WHILE_MANY;
                }
                let now = transport.context.clock.now().mono;
                answered_at = answered_at.or(Some(now));
                if outage.succeed(now) {
                    log::info!("bans are shared with the other nodes again");
                }
                for SharedBan { key, reported_at, left } in reply.bans {
                    let span = MICROSECOND.saturating_mul(left.unsigned_abs());
                    let until = match left {
                        0.. => now.saturating_add(span),
                        ..0 => now.saturating_sub(span),
                    };
                    bans.record_shared(key, until, reported_at, now);
                }
                // Of bans that were reported in the same microsecond some may be in the next reply.
                bans.set_heard(reply.next_since.saturating_sub(1));
                since = reply.next_since.to_string();
            }
            // The bans are sent again, whether the server has received them or not: it counts a ban once, because
            // the ban names its age.
            Err(why) => {
                bans.put_back_unshared(sent);
                if outage.fail(transport.context.clock.now().mono) {
                    log::warn!("bans are not shared with the other nodes: {why}");
                }
            }
        }
    }
}

impl RedisTransport {
    fn bans_slot(&self) -> u16 {
        if self.has_slots() { slots::hash_slot(HASH_TAG.as_bytes()) } else { 0 }
    }

    /// Sends bans and receives those of other nodes. `since` is the `next_since` of the previous reply, at first
    /// `"0"`.
    async fn exchange_bans(&self, sent: &[Ban], since: &str) -> Result<BanReply, String> {
        let slot = self.bans_slot();
        let server = self.topology.server_of_slot(slot).ok_or("no server keeps their slot")?;
        let command = self.ban_command(sent, since);
        let value = match server.send(Lane::Background, &command, false, TIMEOUT).await {
            Ok(value) => value,
            Err(CommandError::Moved { .. }) if !self.has_slots() => {
                return Err(NAMES_ANOTHER.to_owned());
            }
            Err(CommandError::Moved { slot, to }) => {
                self.topology.record_move(slot, &to);
                return Err("their slot has moved".to_owned());
            }
            Err(CommandError::Failed(_, why)) => return Err(why),
            Err(_) => return Err("their slot is being moved".to_owned()),
        };
        parse_reply(&value).ok_or_else(|| "the reply is invalid".to_owned())
    }

    fn ban_command(&self, sent: &[Ban], since: &str) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(SCRIPT).arg(4);
        for name in ["at", "of", "over", "time"] {
            cmd.arg(format!("{}:{{{HASH_TAG}}}:{name}", self.context.prefix));
        }
        cmd.arg(since);
        let micros = |span: Nanos| span.get() / MICROSECOND.get();
        let now = self.context.clock.now().mono;
        for Ban { key, rule, at, made_changes, .. } in sent {
            cmd.arg(key.to_string()).arg(micros(rule.ban));
            cmd.arg(micros(rule.double_up_to)).arg(micros(rule.forgive)).arg(micros(rule.within));
            cmd.arg(micros(now.saturating_sub(*at))).arg(*made_changes);
        }
        cmd
    }
}

fn parse_reply(value: &Value) -> Option<BanReply> {
    let Value::Array(values) = value else {
        return None;
    };
    let mut words = values.iter().map(|value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    });
    let next_since = words.next()??.parse().ok()?;
    let mut bans = Vec::new();
    while let Some(key) = words.next() {
        bans.extend(parse_ban([key, words.next()?, words.next()?]));
    }
    Some(BanReply { next_since, bans })
}

/// `None`: another program wrote it.
fn parse_ban([key, reported_at, left]: [Option<&str>; 3]) -> Option<SharedBan> {
    let left: i64 = left?.parse().ok()?;
    let is_possible = MICROSECOND.saturating_mul(left.max(0).unsigned_abs()) <= MAX_BAN;
    let (key, reported_at) = (key?.parse().ok()?, reported_at?.parse().ok()?);
    is_possible.then_some(SharedBan { key, reported_at, left })
}
