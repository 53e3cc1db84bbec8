//! The connections of each client, and which of them closes when there is no room.
//!
//! Clients are kept in the order of their number of connections. A search tells one connection to close that waits for
//! its client: the clients with the most connections come first; of theirs, connections that wait for a request come
//! before those with an unfinished handshake or head. It does not count permits. What must always hold: a search looks
//! at a bounded number of clients and connections, and a client without connections has no entry.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashMap;

use super::idle_mark::{IdleMark, WaitingSince};
use crate::clock::Nanos;
use crate::edge::policy::ClientShare;

/// Clients and connections that one search looks at: some microseconds, about what accepting a connection takes.
const MAX_LOOKS: usize = 256;

/// Connections of one client that one search looks at, so that a client whose connections are all busy does not hide
/// those of others.
pub(super) const MAX_LOOKS_PER_CLIENT: usize = 32;

/// How long the only connection of a client is safe while it is idle: its next request may be on its way.
const IDLE_GRACE: Nanos = Nanos::SECOND;

/// How long it is safe with an unfinished handshake or head: what three round trips and a lost packet take over a bad
/// link.
const UNFINISHED_GRACE: Nanos = Nanos::from_secs(5);

/// The clients that have connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionsByClient {
    by_address: HashMap<IpAddr, ClientConnections>,
    by_size: BTreeSet<ClientSize>,
    /// The number of entries made so far.
    entries_made: u64,
}

/// The number of connections of a client. Among clients with equally many, the one with the oldest entry is the
/// greatest, so a search begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClientSize {
    connections: usize,
    entry: Reverse<u64>,
    client: IpAddr,
}

#[derive(Debug, Default)]
struct ClientConnections {
    /// The number of this entry.
    entry: u64,
    marks: Vec<Arc<IdleMark>>,
    /// Set by a connection that begins to wait for its client, cleared by a search.
    may_have_idle: Arc<AtomicBool>,
    /// The index at which the next search begins.
    cursor: usize,
    /// Connections to look at before it is known that none is idle.
    unseen: usize,
}

impl ConnectionsByClient {
    /// Adds a connection of a client. `None` if the client has reached its share.
    pub(super) fn add(
        &mut self,
        share: ClientShare,
        closing: &Arc<AtomicUsize>,
    ) -> Option<Arc<IdleMark>> {
        let ClientShare { client: address, max_connections } = share;
        let client = self.by_address.entry(address).or_insert_with(|| {
            self.entries_made += 1;
            ClientConnections { entry: self.entries_made, ..ClientConnections::default() }
        });
        let held = client.marks.len();
        if held >= max_connections {
            return None;
        }
        let mark = IdleMark::new(Arc::clone(&client.may_have_idle), Arc::clone(closing), held);
        let mark = Arc::new(mark);
        client.marks.push(Arc::clone(&mark));
        let entry = client.entry;
        self.resize(address, entry, held, held + 1);
        Some(mark)
    }

    /// Removes a connection of a client.
    pub(super) fn remove(&mut self, address: IpAddr, mark: &IdleMark) {
        let Some(client) = self.by_address.get_mut(&address) else {
            return;
        };
        let (index, held) = (mark.index.load(Ordering::Relaxed), client.marks.len());
        client.marks.swap_remove(index);
        // The last connection has moved, perhaps to an index that the search has passed.
        client.unseen = held - 1;
        if let Some(moved) = client.marks.get(index) {
            moved.index.store(index, Ordering::Relaxed);
        }
        let entry = client.entry;
        self.resize(address, entry, held, held - 1);
        if held == 1 {
            self.by_address.remove(&address);
        }
    }

    /// Tells one waiting connection to close, for a newcomer or for its memory. A newcomer is among the connections
    /// already; only clients with more connections make room for it, or its own client. Returns whether one was told.
    pub(super) fn shed(&mut self, newcomer: Option<IpAddr>, now: Nanos) -> bool {
        let own = newcomer.and_then(|address| self.by_address.get(&address));
        let held_by_newcomer = own.map_or(0, |client| client.marks.len() - 1);
        let mut looks = MAX_LOOKS;
        for ClientSize { connections, client: address, .. } in self.by_size.iter().rev() {
            let is_own = newcomer == Some(*address);
            if looks == 0 || *connections < held_by_newcomer {
                break;
            }
            looks -= 1;
            if let Some(client) = self.by_address.get_mut(address)
                && (is_own || *connections > held_by_newcomer)
                && client.shed_longest_waiting(&mut looks, now)
            {
                return true;
            }
        }
        false
    }

    /// The number of connections of the client that has the most.
    pub(super) fn largest(&self) -> usize {
        self.by_size.last().map_or(0, |size| size.connections)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_address.is_empty() && self.by_size.is_empty()
    }

    fn resize(&mut self, client: IpAddr, entry: u64, before: usize, after: usize) {
        let size = |connections| ClientSize { connections, entry: Reverse(entry), client };
        self.by_size.remove(&size(before));
        if after > 0 {
            self.by_size.insert(size(after));
        }
    }
}

impl ClientConnections {
    /// Looks at some of the connections and tells the one to close that has waited longest; idle ones come before
    /// unfinished ones. Reduces `looks` by the number of connections it looked at.
    fn shed_longest_waiting(&mut self, looks: &mut usize, now: Nanos) -> bool {
        let all = self.marks.len();
        // Cleared before the search: a connection that becomes idle from here on sets it again.
        if self.may_have_idle.swap(false, Ordering::SeqCst) {
            self.unseen = all;
        }
        let count = self.unseen.min(all).min(*looks).min(MAX_LOOKS_PER_CLIENT);
        let from = if self.cursor < all { self.cursor } else { 0 };
        let (before, after) = self.marks.split_at(from);
        let marks = after.iter().chain(before).take(count);
        let waiting = marks.filter_map(|mark| Some((mark.waiting_since()?, mark)));
        let longest = waiting.min_by_key(|(since, _)| (since.is_unfinished(), since.at()));
        let is_safe = |since: WaitingSince| {
            let grace = if since.is_unfinished() { UNFINISHED_GRACE } else { IDLE_GRACE };
            all == 1 && now.saturating_sub(since.at()) < grace
        };
        let is_shed = longest.is_some_and(|(since, mark)| !is_safe(since) && mark.try_shed(since));
        self.unseen = if longest.is_some() { all } else { self.unseen - count };
        self.cursor = from + count;
        *looks -= count;
        is_shed
    }
}
