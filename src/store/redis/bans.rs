//! Bans of all nodes: this one tells of its own and hears of the others' a few times a second, so
//! that a ban is known everywhere within one.
//!
//! Off the request path: a store that is away delays the news, and nothing else.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{Cmd, Value};

use super::redis_transport::RedisTransport;
use super::server::CommandError;
use super::transport::StoreTransport;
use super::{SharedStore, slots};
use crate::clock::Nanos;
use crate::limit::MICROSECOND;
use crate::policy::KeyHash;
use crate::store::{Ban, Bans};

/// The script that keeps bans.
const SCRIPT: &str = include_str!("bans.lua");

/// Between two questions: a ban travels for at most two of them.
const EVERY: Duration = Duration::from_millis(300);

/// Between two questions while there is more to tell or to hear than fits into one: the server spends at most a
/// tenth of its time on this node's bans.
const EVERY_WHILE_MANY: Duration = Duration::from_millis(10);

/// Most bans that are told at once: the server is busy with them for about a millisecond.
const MAX_TOLD: usize = 64;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What keeps the bans of a deployment in one slot.
const TAG: &str = "bans";

impl SharedStore {
    /// Shares the bans of this node with the others, from now on. Once is enough.
    pub fn share_bans(self: &Arc<Self>, bans: &Arc<Bans>) {
        if let Some(servers) = &self.servers
            && self.shares_bans.set(()).is_ok()
        {
            tokio::spawn(share(Arc::downgrade(servers), Arc::clone(bans)));
        }
    }
}

impl RedisTransport {
    /// Tells and hears. `since`: what the last answer said; the answer: what to ask with next.
    async fn exchange(
        &self,
        told: &[Ban],
        since: &str,
    ) -> Result<(String, Vec<(KeyHash, Nanos)>), String> {
        let slot = if self.has_slots() { slots::hash_slot(TAG.as_bytes()) } else { 0 };
        let server = self.topology.server_of_slot(slot).ok_or("nobody keeps their slot")?;
        let value = match server.send(&self.ban_command(told, since), false, TIMEOUT).await {
            Ok(value) => value,
            Err(CommandError::Moved { slot, to }) => {
                self.topology.record_move(slot, &to);
                return Err("their slot has moved".to_owned());
            }
            Err(CommandError::Failed(_, why)) => return Err(why),
            Err(_) => return Err("their slot is on its way".to_owned()),
        };
        heard(&value).ok_or_else(|| "an answer that means nothing".to_owned())
    }

    fn ban_command(&self, told: &[Ban], since: &str) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(SCRIPT).arg(3);
        for part in ["at", "of", "over"] {
            cmd.arg(format!("{}:{{{TAG}}}:{part}", self.context.prefix));
        }
        cmd.arg(since);
        let micros = |span: Nanos| span.get() / MICROSECOND.get();
        let now = self.context.clock.now().mono;
        for Ban { key, rule, at, .. } in told {
            cmd.arg(key.to_string()).arg(micros(rule.ban));
            cmd.arg(micros(rule.double_up_to)).arg(micros(rule.forgive));
            cmd.arg(micros(now.saturating_sub(*at)));
        }
        cmd
    }
}

/// Until nobody holds the store any more.
async fn share(servers: Weak<RedisTransport>, bans: Arc<Bans>) {
    let mut since = "0".to_owned();
    let mut failing = false;
    let mut pause = EVERY;
    loop {
        tokio::time::sleep(pause).await;
        pause = EVERY;
        let Some(servers) = servers.upgrade() else {
            return;
        };
        if !servers.is_up() {
            continue;
        }
        let told = bans.take_unshared(MAX_TOLD, servers.context.clock.now().mono);
        let untellable = bans.take_unshareable();
        if untellable > 0 {
            log::warn!("{untellable} bans are not told to the other nodes: too many at once");
        }
        match servers.exchange(&told, &since).await {
            Ok((next, heard)) => {
                if told.len() == MAX_TOLD || heard.len() >= MAX_TOLD {
                    pause = EVERY_WHILE_MANY;
                }
                since = next;
                if std::mem::take(&mut failing) {
                    log::info!("bans are shared with the other nodes again");
                }
                let now = servers.context.clock.now().mono;
                heard.into_iter().for_each(|(key, left)| bans.record_shared(key, left, now));
            }
            // Told or not: a ban that is told twice is made once, since it says how old it is.
            Err(why) => {
                bans.put_back_unshared(told);
                if !std::mem::replace(&mut failing, true) {
                    log::warn!("bans are not shared with the other nodes: {why}");
                }
            }
        }
    }
}

fn heard(value: &Value) -> Option<(String, Vec<(KeyHash, Nanos)>)> {
    let Value::Array(values) = value else {
        return None;
    };
    let mut words = values.iter().map(|value| match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    });
    let next = words.next()??.to_owned();
    next.parse::<u64>().ok()?;
    let mut heard = Vec::new();
    while let Some(key) = words.next() {
        let (key, left) = (key?.parse().ok()?, words.next()??.parse::<u64>().ok()?);
        heard.push((key, MICROSECOND.saturating_mul(left)));
    }
    Some((next, heard))
}
