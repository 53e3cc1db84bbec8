//! How many connections there are, in all and of each client, and which one closes when there is no
//! room for another.
//!
//! When all seats are taken, a client that holds more than the newcomer loses a connection that waits
//! for it: the clients with the most connections first; of theirs, those that wait for a request come before
//! those that have begun a handshake or a head and not ended it. So a few addresses cannot keep others out by
//! holding connections, and one whose request has come is never closed for it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::idle_mark::{IdleMark, Since};
use super::policy::ClientShare;
use crate::clock::Nanos;

/// Most clients and connections that one newcomer has looked at for it: some microseconds, about what
/// accepting it takes.
const MAX_LOOKS: usize = 256;

/// Most of them that are one client's: a client whose connections are all busy shall not hide those of
/// others.
const MAX_LOOKS_PER_CLIENT: usize = 32;

/// Most connections that were told to close and have not yet. Each has a newcomer in its seat already;
/// so there may be so many more than `max_connections`, and never more than these.
const MAX_CLOSING: usize = 64;

/// How long the only connection of a client is safe while it is idle: the client may just be sending
/// its next request.
const GRACE: Nanos = Nanos::SECOND;

/// How long it is safe while the client has begun a handshake or a head and not ended it: as long as three
/// round trips and a lost packet take over a bad link.
const UNFINISHED_GRACE: Nanos = Nanos::from_secs(5);

/// Counts connections for as long as they are held.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPermits {
    taken: Arc<AtomicUsize>,
    /// Of those that are taken: connections that were told to close.
    closing: Arc<AtomicUsize>,
    clients: Mutex<Clients>,
}

/// Clients that have connections; no client is in here without one.
#[derive(Debug, Default)]
struct Clients {
    by_address: HashMap<IpAddr, Client>,
    /// How many connections each has. Of those with as many, the one that came first is the last.
    by_size: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
    /// Clients that have come so far.
    come: u64,
}

#[derive(Debug, Default)]
struct Client {
    number: u64,
    marks: Vec<Arc<IdleMark>>,
    /// Set by a connection that begins to wait for its client, taken back by a search.
    some_idle: Arc<AtomicBool>,
    /// Where the next search begins.
    next_look: usize,
    /// Connections that are to be looked at before none of them is known to be idle.
    unseen: usize,
}

/// One connection's place; given up when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    seats: Arc<ConnectionPermits>,
    client: Option<(IpAddr, Arc<IdleMark>)>,
    /// Whether an idle connection was told to close for it.
    pub(crate) displaced: bool,
}

impl ConnectionPermits {
    /// Counts in a number that others can read.
    pub(crate) fn new(taken: Arc<AtomicUsize>) -> Self {
        Self { taken, ..Self::default() }
    }

    /// Takes a seat for one more connection, unless `most` are taken and none of them can be closed for it, or the
    /// client has its share already. A connection without a share belongs to no client and is not closed for others.
    pub(crate) fn take(
        self: &Arc<Self>,
        most: usize,
        share: Option<ClientShare>,
        now: Nanos,
    ) -> Option<ConnectionPermit> {
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        let mut seat = ConnectionPermit { seats: Arc::clone(self), client: None, displaced: false };
        if share.is_some_and(|share| !seat.register(share)) {
            return None;
        }
        let closing = self.closing.load(Ordering::Relaxed);
        if before.saturating_sub(closing) < most {
            seat.begin(now);
            return Some(seat);
        }
        // One that was told to close may stay, when its client's next request comes in time.
        if closing < MAX_CLOSING && before - most < MAX_CLOSING {
            let newcomer = share.map(|share| share.client);
            seat.displaced = self.clients.lock().shed(newcomer, now);
        }
        // Not before the search, which would find the newcomer itself.
        seat.begin(now);
        seat.displaced.then_some(seat)
    }
}

impl ConnectionPermits {
    /// Closes idle connections of the clients that hold most, whoever needs their memory; how many.
    pub(crate) fn shed_idle(&self, now: Nanos) -> usize {
        let room = MAX_CLOSING.saturating_sub(self.closing.load(Ordering::Relaxed));
        let mut clients = self.clients.lock();
        (0..room).take_while(|_| clients.shed(None, now)).count()
    }

    /// How many connections the client with most of them has, and how many there are in all.
    pub(crate) fn largest(&self) -> (usize, usize) {
        let largest = self.clients.lock().by_size.last().map_or(0, |(held, ..)| *held);
        (largest, self.taken.load(Ordering::Relaxed))
    }
}

impl Clients {
    fn shed(&mut self, newcomer: Option<IpAddr>, now: Nanos) -> bool {
        let own = newcomer.and_then(|address| self.by_address.get(&address));
        // Its new connection is among them.
        let held_by_newcomer = own.map_or(0, |client| client.marks.len() - 1);
        let mut looks = MAX_LOOKS;
        for (held, _, address) in self.by_size.iter().rev() {
            let is_own = newcomer == Some(*address);
            if looks == 0 || *held < held_by_newcomer {
                break;
            }
            looks -= 1;
            if let Some(client) = self.by_address.get_mut(address)
                && (is_own || *held > held_by_newcomer)
                && client.shed(&mut looks, now)
            {
                return true;
            }
        }
        false
    }

    fn resize(&mut self, address: IpAddr, number: u64, before: usize, after: usize) {
        self.by_size.remove(&(before, Reverse(number), address));
        if after > 0 {
            self.by_size.insert((after, Reverse(number), address));
        }
    }
}

impl Client {
    /// Tells the connection to close that has waited for the longest time among those looked at; idle ones
    /// come before those that have begun something.
    fn shed(&mut self, looks: &mut usize, now: Nanos) -> bool {
        let all = self.marks.len();
        // Taken back before the search: a connection that becomes idle from here on sets it again.
        if self.some_idle.swap(false, Ordering::SeqCst) {
            self.unseen = all;
        }
        let count = self.unseen.min(all).min(*looks).min(MAX_LOOKS_PER_CLIENT);
        let from = if self.next_look < all { self.next_look } else { 0 };
        let (before, after) = self.marks.split_at(from);
        let marks = after.iter().chain(before).take(count);
        let waiting = marks.filter_map(|mark| Some((mark.waits_since()?, mark)));
        let first = waiting.min_by_key(|(since, _)| (since.is_unfinished(), since.at()));
        let is_safe = |since: Since| {
            let grace = if since.is_unfinished() { UNFINISHED_GRACE } else { GRACE };
            all == 1 && now.saturating_sub(since.at()) < grace
        };
        let is_shed = first.is_some_and(|(since, mark)| !is_safe(since) && mark.shed(since));
        self.unseen = if first.is_some() { all } else { self.unseen - count };
        self.next_look = from + count;
        *looks -= count;
        is_shed
    }
}

impl ConnectionPermit {
    /// Registers the connection as one of a client; `false` when that client has its share already.
    pub(crate) fn register(&mut self, share: ClientShare) -> bool {
        let ClientShare { client: address, max_connections } = share;
        let mut clients = self.seats.clients.lock();
        let clients = &mut *clients;
        let client = clients.by_address.entry(address).or_insert_with(|| {
            clients.come += 1;
            Client { number: clients.come, ..Client::default() }
        });
        let held = client.marks.len();
        if held >= max_connections {
            return false;
        }
        let (some_idle, closing) = (Arc::clone(&client.some_idle), Arc::clone(&self.seats.closing));
        let mark = Arc::new(IdleMark::new(some_idle, closing, held));
        client.marks.push(Arc::clone(&mark));
        let number = client.number;
        clients.resize(address, number, held, held + 1);
        self.client = Some((address, mark));
        true
    }

    /// The connection has yet to send its first request.
    pub(crate) fn begin(&self, now: Nanos) {
        if let Some((_, mark)) = &self.client {
            mark.unfinished(now);
        }
    }

    /// Where the connection notes whether it is idle, if it may be closed for others.
    pub(crate) fn mark(&self) -> Option<Arc<IdleMark>> {
        self.client.as_ref().map(|(_, mark)| Arc::clone(mark))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::AcqRel);
        let Some((address, mark)) = &self.client else {
            return;
        };
        mark.busy();
        let mut clients = self.seats.clients.lock();
        let clients = &mut *clients;
        let Some(client) = clients.by_address.get_mut(address) else {
            return;
        };
        let (place, held) = (mark.place.load(Ordering::Relaxed), client.marks.len());
        client.marks.swap_remove(place);
        // One has moved, perhaps to where a search has been.
        client.unseen = held - 1;
        if let Some(moved) = client.marks.get(place) {
            moved.place.store(place, Ordering::Relaxed);
        }
        let number = client.number;
        clients.resize(*address, number, held, held - 1);
        if held == 1 {
            clients.by_address.remove(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1_000;

    fn share(n: u8, max_connections: usize) -> ClientShare {
        ClientShare { client: IpAddr::from([192, 0, 2, n]), max_connections }
    }

    fn client(n: u8) -> Option<ClientShare> {
        Some(share(n, ROOM))
    }

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    /// So many connections of a client, each with a request.
    fn hold(seats: &Arc<ConnectionPermits>, n: u8, count: usize) -> Vec<ConnectionPermit> {
        let held = (0..count).map(|_| seats.take(usize::MAX, client(n), at(0)).unwrap());
        held.inspect(|seat| seat.mark().unwrap().busy()).collect()
    }

    fn unfinished(seats: &[ConnectionPermit], since: u64) {
        seats.iter().for_each(|seat| seat.mark().unwrap().unfinished(at(since)));
    }

    fn idle(seats: &[ConnectionPermit], since: u64) {
        seats.iter().for_each(|seat| seat.mark().unwrap().idle(at(since)));
    }

    fn shed(seats: &[ConnectionPermit]) -> usize {
        seats.iter().filter(|seat| seat.mark().unwrap().is_shed()).count()
    }

    #[test]
    fn seats_are_bounded_and_given_back() {
        let seats = Arc::new(ConnectionPermits::default());
        let (first, second) = (share(1, 2), share(2, 2));
        let take = |most| seats.take(most, None, at(0));
        let mut held: Vec<ConnectionPermit> = (0..3).map(|_| take(4).unwrap()).collect();
        assert!(held[0].register(first) && held[1].register(first));
        assert!(!held[2].register(first), "a third of the same client");
        let mut fourth = take(4).unwrap();
        assert!(fourth.register(second));
        assert!(take(4).is_none(), "a fifth in all");
        held.clear();
        assert!(take(2).is_some(), "given back, refused ones too");
        drop(fourth);
        assert!(seats.clients.lock().by_address.is_empty());
        assert!(seats.clients.lock().by_size.is_empty());
        assert_eq!(seats.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_largest_holder_makes_room() {
        let seats = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&seats, 1, 6), hold(&seats, 2, 3));
        idle(&small, 1);
        idle(&large[..2], 5);
        idle(&large[2..3], 4);
        let newcomer = seats.take(9, client(3), at(6)).unwrap();
        assert!(newcomer.displaced);
        assert!(large[2].mark().unwrap().is_shed(), "the one that is idle for the longest time");
        assert_eq!((shed(&large), shed(&small)), (1, 0));
        drop(large);
        let next = seats.take(9, client(3), at(6)).unwrap();
        assert!(!next.displaced, "there is room again");
        assert_eq!(seats.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_busy_connection_never_makes_room() {
        let seats = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&seats, 1, 6), hold(&seats, 2, 3));
        idle(&large, 1);
        large.iter().for_each(|seat| seat.mark().unwrap().busy());
        assert!(seats.take(9, client(3), at(9)).is_none());
        idle(&small, 1);
        assert!(seats.take(9, client(3), at(9)).is_some(), "the next in size");
        assert_eq!((shed(&large), shed(&small)), (0, 1));
        idle(&large[5..], 9);
        assert!(seats.take(8, client(3), at(9)).is_some(), "idle again, and found again");
        assert_eq!(shed(&large), 1);
    }

    #[test]
    fn nobody_makes_room_for_a_client_that_holds_as_much() {
        let seats = Arc::new(ConnectionPermits::default());
        let (one, two) = (hold(&seats, 1, 3), hold(&seats, 2, 3));
        idle(&two, 1);
        assert!(seats.take(6, client(1), at(9)).is_none());
        idle(&one, 1);
        assert!(seats.take(6, client(1), at(9)).is_some(), "its own");
        assert_eq!((shed(&one), shed(&two)), (1, 0));
        assert!(seats.take(5, None, at(9)).unwrap().displaced, "for a client behind a proxy");
    }

    #[test]
    fn the_only_connection_of_a_client_is_safe_for_a_while() {
        let seats = Arc::new(ConnectionPermits::default());
        let only = hold(&seats, 1, 1);
        idle(&only, 5);
        assert!(seats.take(1, client(2), Nanos::from_millis(5_999)).is_none());
        unfinished(&only, 5);
        assert!(seats.take(1, client(2), at(9)).is_none());
        assert!(seats.take(1, client(2), at(11)).is_some());
        assert_eq!(shed(&only), 1);
    }

    #[test]
    fn idle_connections_come_before_those_that_have_begun_something() {
        let seats = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&seats, 1, 4), hold(&seats, 2, 2));
        idle(&small, 1);
        unfinished(&large[..2], 1);
        idle(&large[2..3], 8);
        let first = seats.take(6, client(3), at(9)).unwrap();
        assert!(first.displaced);
        assert!(large[2].mark().unwrap().is_shed(), "the idle one of the client with most");
        let second = seats.take(6, client(3), at(9)).unwrap();
        assert!(second.displaced);
        drop((first, second));
        assert_eq!((shed(&large), shed(&small)), (2, 0), "then one that has begun something");
        // A newcomer has begun a connection itself, and does not make room for itself.
        large.iter().chain(&small).for_each(|seat| seat.mark().unwrap().busy());
        assert!(seats.take(6, client(1), at(9)).is_none());
        let (newcomer, next) = (seats.take(7, client(3), at(9)), seats.take(8, client(3), at(9)));
        assert_eq!(newcomer.iter().chain(&next).count(), 2);
        assert!(seats.take(8, client(4), at(9)).unwrap().displaced, "of the client that has two");
        drop((newcomer, next, large, small));
        assert_eq!(seats.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_that_is_to_close_stays_so_whatever_it_waits_for() {
        let seats = Arc::new(ConnectionPermits::default());
        let held = hold(&seats, 1, 2);
        unfinished(&held, 1);
        let _newcomer = seats.take(2, client(2), at(9)).unwrap();
        idle(&held, 9);
        unfinished(&held, 9);
        assert_eq!((shed(&held), seats.closing.load(Ordering::Relaxed)), (1, 1));
        held.iter().for_each(|seat| seat.mark().unwrap().busy());
        assert_eq!((shed(&held), seats.closing.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_request_that_comes_in_time_keeps_its_connection() {
        let seats = Arc::new(ConnectionPermits::default());
        let held = hold(&seats, 1, 2);
        idle(&held, 1);
        let newcomer = seats.take(2, client(2), at(9)).unwrap();
        assert_eq!(shed(&held), 1);
        held.iter().for_each(|seat| seat.mark().unwrap().busy());
        assert_eq!(shed(&held), 0);
        assert!(seats.take(2, client(3), at(9)).is_none(), "there is one too many");
        drop((newcomer, held));
        assert_eq!(seats.closing.load(Ordering::Relaxed), 0);
        assert_eq!(seats.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn idle_connections_close_for_their_memory() {
        let seats = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&seats, 1, 100), hold(&seats, 2, 2));
        idle(&large[10..], 1);
        idle(&small, 1);
        // One look may find busy ones only.
        let look = || (0..20).map(|_| seats.shed_idle(at(9))).sum::<usize>();
        assert_eq!(look(), MAX_CLOSING, "until some have closed");
        assert_eq!(shed(&large) + shed(&small), MAX_CLOSING);
        assert!(shed(&large) >= MAX_CLOSING - 2);
        assert_eq!(seats.shed_idle(at(9)), 0);
        drop((large, small));
        assert_eq!(seats.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_a_newcomer_costs_is_bounded() {
        let seats = Arc::new(ConnectionPermits::default());
        let (busy, held) = (hold(&seats, 1, 600), hold(&seats, 2, 500));
        // Both are looked through from the beginning, a part for each newcomer.
        idle(&busy, 1);
        busy.iter().for_each(|seat| seat.mark().unwrap().busy());
        idle(&held[499..], 1);
        let take = || seats.take(1_100, client(3), at(9));
        let refused = (0..1_000).take_while(|_| take().is_none()).count();
        assert_eq!(refused, 500_usize.div_ceil(MAX_LOOKS_PER_CLIENT) - 1);
        assert_eq!((shed(&busy), shed(&held)), (0, 1));
        idle(&held[..400], 2);
        let busy_newcomer = |seat: &ConnectionPermit| seat.mark().unwrap().busy();
        let come: Vec<_> = (0..100).filter_map(|_| take()).inspect(busy_newcomer).collect();
        assert_eq!(come.len(), MAX_CLOSING, "until some have closed");
        assert_eq!((shed(&busy), shed(&held)), (0, MAX_CLOSING));
    }
}
