//! Permits for connections: how many there are, in all and for each client.
//!
//! A newcomer gets a permit while fewer than the maximum are taken. Then an idle connection of a client that holds more
//! is told to close for it ([`ConnectionsByClient`]). It does not know what connections carry. What must always hold:
//! every permit is counted from when it is acquired until it is dropped, and there are at most [`MAX_CLOSING`] more
//! permits than the maximum.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::client_connections::ConnectionsByClient;
use super::idle_mark::IdleMark;
use crate::clock::Nanos;
use crate::edge::policy::ClientShare;

/// Connections that were told to close and have not closed yet. A newcomer has the permit of each already, so up to
/// this many connections may exist beyond `max_connections`.
const MAX_CLOSING: usize = 64;

/// Issues permits and counts them while they are held.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPermits {
    taken: Arc<AtomicUsize>,
    /// How many of those taken belong to connections that were told to close.
    closing: Arc<AtomicUsize>,
    clients: Mutex<ConnectionsByClient>,
}

/// The permit of one connection; returned when dropped.
#[derive(Debug)]
pub(in crate::edge) struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    client: Option<PermitClient>,
    /// Whether an idle connection was told to close for it.
    pub(in crate::edge) has_displaced: bool,
}

/// The client that a permit is counted for.
#[derive(Debug)]
struct PermitClient {
    address: IpAddr,
    mark: Arc<IdleMark>,
}

/// How connections are distributed.
#[derive(Clone, Copy, Debug)]
pub(in crate::edge) struct ConnectionCounts {
    /// Connections of the client that has the most.
    pub(in crate::edge) largest_client: usize,
    /// All connections.
    pub(in crate::edge) total: usize,
}

impl ConnectionPermits {
    /// Counts permits in `taken`, which others may read.
    pub(crate) fn new(taken: Arc<AtomicUsize>) -> Self {
        Self { taken, ..Self::default() }
    }

    /// Acquires a permit for one more connection. `None` if `max` are taken and none of them can be closed for it, or
    /// if the client has reached its share. A connection without a share belongs to no client and is not closed for
    /// others.
    pub(in crate::edge) fn acquire(
        self: &Arc<Self>,
        max: usize,
        share: Option<ClientShare>,
        now: Nanos,
    ) -> Option<ConnectionPermit> {
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        let mut permit =
            ConnectionPermit { permits: Arc::clone(self), client: None, has_displaced: false };
        if share.is_some_and(|share| !permit.assign_client(share)) {
            return None;
        }
        let closing = self.closing.load(Ordering::Relaxed);
        if before.saturating_sub(closing) < max {
            permit.await_first_request(now);
            return Some(permit);
        }
        // A connection that was told to close stays if its client's next request arrives in time, so the number of
        // connections beyond `max` is bounded as well.
        if closing < MAX_CLOSING && before - max < MAX_CLOSING {
            let newcomer = share.map(|share| share.client);
            permit.has_displaced = self.clients.lock().shed(newcomer, now);
        }
        // After the search, which would otherwise find the newcomer itself.
        permit.await_first_request(now);
        permit.has_displaced.then_some(permit)
    }

    /// Tells idle connections of the clients that hold most to close, to free their memory. Returns how many.
    pub(in crate::edge) fn shed_idle(&self, now: Nanos) -> usize {
        let room = MAX_CLOSING.saturating_sub(self.closing.load(Ordering::Relaxed));
        let mut clients = self.clients.lock();
        (0..room).take_while(|_| clients.shed(None, now)).count()
    }

    /// The number of connections, in all and of the client that has the most.
    pub(in crate::edge) fn counts(&self) -> ConnectionCounts {
        let largest_client = self.clients.lock().largest();
        ConnectionCounts { largest_client, total: self.taken.load(Ordering::Relaxed) }
    }
}

impl ConnectionPermit {
    /// Counts the connection for a client. Returns `false` if that client has reached its share.
    pub(in crate::edge) fn assign_client(&mut self, share: ClientShare) -> bool {
        let Some(mark) = self.permits.clients.lock().add(share, &self.permits.closing) else {
            return false;
        };
        self.client = Some(PermitClient { address: share.client, mark });
        true
    }

    /// From `now` on the connection waits for the first request.
    pub(in crate::edge) fn await_first_request(&self, now: Nanos) {
        if let Some(client) = &self.client {
            client.mark.set_unfinished(now);
        }
    }

    /// Where the connection reports whether it is idle. `None` if it is never closed to make room.
    pub(in crate::edge) fn mark(&self) -> Option<Arc<IdleMark>> {
        self.client.as_ref().map(|client| Arc::clone(&client.mark))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.permits.taken.fetch_sub(1, Ordering::AcqRel);
        if let Some(PermitClient { address, mark }) = &self.client {
            mark.set_busy();
            self.permits.clients.lock().remove(*address, mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::client_connections::MAX_LOOKS_PER_CLIENT;
    use super::*;

    const MAX_PER_CLIENT: usize = 1_000;

    fn share(n: u8, max_connections: usize) -> ClientShare {
        ClientShare { client: IpAddr::from([192, 0, 2, n]), max_connections }
    }

    fn client(n: u8) -> Option<ClientShare> {
        Some(share(n, MAX_PER_CLIENT))
    }

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    /// `count` connections of a client, each with a request.
    fn hold(permits: &Arc<ConnectionPermits>, n: u8, count: usize) -> Vec<ConnectionPermit> {
        let held = (0..count).map(|_| permits.acquire(usize::MAX, client(n), at(0)).unwrap());
        held.inspect(|permit| permit.mark().unwrap().set_busy()).collect()
    }

    fn unfinished(permits: &[ConnectionPermit], since: u64) {
        permits.iter().for_each(|permit| permit.mark().unwrap().set_unfinished(at(since)));
    }

    fn idle(permits: &[ConnectionPermit], since: u64) {
        permits.iter().for_each(|permit| permit.mark().unwrap().set_idle(at(since)));
    }

    fn shed(permits: &[ConnectionPermit]) -> usize {
        permits.iter().filter(|permit| permit.mark().unwrap().is_shed()).count()
    }

    #[test]
    fn permits_are_bounded_and_returned() {
        let permits = Arc::new(ConnectionPermits::default());
        let (first, second) = (share(1, 2), share(2, 2));
        let acquire = |max| permits.acquire(max, None, at(0));
        let mut held: Vec<ConnectionPermit> = (0..3).map(|_| acquire(4).unwrap()).collect();
        assert!(held[0].assign_client(first) && held[1].assign_client(first));
        assert!(!held[2].assign_client(first), "a third connection of the same client");
        let mut fourth = acquire(4).unwrap();
        assert!(fourth.assign_client(second));
        assert!(acquire(4).is_none(), "a fifth connection in all");
        held.clear();
        assert!(acquire(2).is_some(), "returned, refused ones too");
        drop(fourth);
        assert!(permits.clients.lock().is_empty());
        assert_eq!(permits.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_client_with_the_largest_number_makes_room() {
        let permits = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&permits, 1, 6), hold(&permits, 2, 3));
        idle(&small, 1);
        idle(&large[..2], 5);
        idle(&large[2..3], 4);
        let newcomer = permits.acquire(9, client(3), at(6)).unwrap();
        assert!(newcomer.has_displaced);
        assert!(large[2].mark().unwrap().is_shed(), "the longest idle one");
        assert_eq!((shed(&large), shed(&small)), (1, 0));
        drop(large);
        let next = permits.acquire(9, client(3), at(6)).unwrap();
        assert!(!next.has_displaced, "there is room again");
        assert_eq!(permits.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_busy_connection_never_makes_room() {
        let permits = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&permits, 1, 6), hold(&permits, 2, 3));
        idle(&large, 1);
        large.iter().for_each(|permit| permit.mark().unwrap().set_busy());
        assert!(permits.acquire(9, client(3), at(9)).is_none());
        idle(&small, 1);
        assert!(permits.acquire(9, client(3), at(9)).is_some(), "the next largest client");
        assert_eq!((shed(&large), shed(&small)), (0, 1));
        idle(&large[5..], 9);
        assert!(permits.acquire(8, client(3), at(9)).is_some(), "idle again, and found again");
        assert_eq!(shed(&large), 1);
    }

    #[test]
    fn no_client_makes_room_for_a_client_that_holds_as_much() {
        let permits = Arc::new(ConnectionPermits::default());
        let (first, second) = (hold(&permits, 1, 3), hold(&permits, 2, 3));
        idle(&second, 1);
        assert!(permits.acquire(6, client(1), at(9)).is_none());
        idle(&first, 1);
        assert!(permits.acquire(6, client(1), at(9)).is_some(), "its own");
        assert_eq!((shed(&first), shed(&second)), (1, 0));
        assert!(
            permits.acquire(5, None, at(9)).unwrap().has_displaced,
            "for a client behind a proxy"
        );
    }

    #[test]
    fn the_only_connection_of_a_client_is_safe_for_a_while() {
        let permits = Arc::new(ConnectionPermits::default());
        let only = hold(&permits, 1, 1);
        idle(&only, 5);
        assert!(permits.acquire(1, client(2), Nanos::from_millis(5_999)).is_none());
        unfinished(&only, 5);
        assert!(permits.acquire(1, client(2), at(9)).is_none());
        assert!(permits.acquire(1, client(2), at(11)).is_some());
        assert_eq!(shed(&only), 1);
    }

    #[test]
    fn idle_connections_close_before_connections_with_an_unfinished_head() {
        let permits = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&permits, 1, 4), hold(&permits, 2, 2));
        idle(&small, 1);
        unfinished(&large[..2], 1);
        idle(&large[2..3], 8);
        let first = permits.acquire(6, client(3), at(9)).unwrap();
        assert!(first.has_displaced);
        assert!(large[2].mark().unwrap().is_shed(), "the idle connection of the client with most");
        let second = permits.acquire(6, client(3), at(9)).unwrap();
        assert!(second.has_displaced);
        drop((first, second));
        assert_eq!((shed(&large), shed(&small)), (2, 0), "then an unfinished one");
        // The newcomer is unfinished itself, and does not make room for itself.
        large.iter().chain(&small).for_each(|permit| permit.mark().unwrap().set_busy());
        assert!(permits.acquire(6, client(1), at(9)).is_none());
        let (newcomer, next) =
            (permits.acquire(7, client(3), at(9)), permits.acquire(8, client(3), at(9)));
        assert_eq!(newcomer.iter().chain(&next).count(), 2);
        assert!(
            permits.acquire(8, client(4), at(9)).unwrap().has_displaced,
            "a connection of the client that has two"
        );
        drop((newcomer, next, large, small));
        assert_eq!(permits.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_told_to_close_stays_so_while_it_waits() {
        let permits = Arc::new(ConnectionPermits::default());
        let held = hold(&permits, 1, 2);
        unfinished(&held, 1);
        let _newcomer = permits.acquire(2, client(2), at(9)).unwrap();
        idle(&held, 9);
        unfinished(&held, 9);
        assert_eq!((shed(&held), permits.closing.load(Ordering::Relaxed)), (1, 1));
        held.iter().for_each(|permit| permit.mark().unwrap().set_busy());
        assert_eq!((shed(&held), permits.closing.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_request_that_arrives_in_time_keeps_its_connection() {
        let permits = Arc::new(ConnectionPermits::default());
        let held = hold(&permits, 1, 2);
        idle(&held, 1);
        let newcomer = permits.acquire(2, client(2), at(9)).unwrap();
        assert_eq!(shed(&held), 1);
        held.iter().for_each(|permit| permit.mark().unwrap().set_busy());
        assert_eq!(shed(&held), 0);
        assert!(permits.acquire(2, client(3), at(9)).is_none(), "one above the maximum");
        drop((newcomer, held));
        assert_eq!(permits.closing.load(Ordering::Relaxed), 0);
        assert_eq!(permits.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn idle_connections_close_to_free_memory() {
        let permits = Arc::new(ConnectionPermits::default());
        let (large, small) = (hold(&permits, 1, 100), hold(&permits, 2, 2));
        idle(&large[10..], 1);
        idle(&small, 1);
        // One search may find busy connections only.
        let shed_some = || (0..20).map(|_| permits.shed_idle(at(9))).sum::<usize>();
        assert_eq!(shed_some(), MAX_CLOSING, "until some have closed");
        assert_eq!(shed(&large) + shed(&small), MAX_CLOSING);
        assert!(shed(&large) >= MAX_CLOSING - 2);
        assert_eq!(permits.shed_idle(at(9)), 0);
        drop((large, small));
        assert_eq!(permits.closing.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_search_for_a_newcomer_is_bounded() {
        let permits = Arc::new(ConnectionPermits::default());
        let (busy, held) = (hold(&permits, 1, 600), hold(&permits, 2, 500));
        // Each newcomer looks at some connections of both clients and continues where the last one ended.
        idle(&busy, 1);
        busy.iter().for_each(|permit| permit.mark().unwrap().set_busy());
        idle(&held[499..], 1);
        let acquire = || permits.acquire(1_100, client(3), at(9));
        let refused = (0..1_000).take_while(|_| acquire().is_none()).count();
        assert_eq!(refused, 500_usize.div_ceil(MAX_LOOKS_PER_CLIENT) - 1);
        assert_eq!((shed(&busy), shed(&held)), (0, 1));
        idle(&held[..400], 2);
        let busy_newcomer = |permit: &ConnectionPermit| permit.mark().unwrap().set_busy();
        let admitted: Vec<_> = (0..100).filter_map(|_| acquire()).inspect(busy_newcomer).collect();
        assert_eq!(admitted.len(), MAX_CLOSING, "until some have closed");
        assert_eq!((shed(&busy), shed(&held)), (0, MAX_CLOSING));
    }
}
