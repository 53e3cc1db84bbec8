//! How many connections there are, in all and of each client.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

/// Counts connections for as long as they are held.
#[derive(Debug, Default)]
pub(super) struct Seats {
    taken: Arc<AtomicUsize>,
    /// No client is in here without a connection, so it is no larger than `taken`.
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's place; given up when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    client: Option<IpAddr>,
}

impl Seats {
    /// Counts in a number that others can read.
    pub(super) fn new(taken: Arc<AtomicUsize>) -> Self {
        Self { taken, clients: Mutex::default() }
    }

    /// A place for one more connection, unless `most` are taken.
    pub(super) fn take(self: &Arc<Self>, most: usize) -> Option<Seat> {
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        let seat = Seat { seats: Arc::clone(self), client: None };
        (before < most).then_some(seat)
    }
}

impl Seat {
    /// Says whose connection this is; false when that client has `most` already.
    pub(super) fn is_of(&mut self, client: IpAddr, most: usize) -> bool {
        let mut clients = self.seats.clients.lock();
        let taken = clients.entry(client).or_default();
        if *taken >= most {
            return false;
        }
        *taken += 1;
        self.client = Some(client);
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken.fetch_sub(1, Ordering::AcqRel);
        let Some(client) = self.client else {
            return;
        };
        let mut clients = self.seats.clients.lock();
        if let Some(taken) = clients.get_mut(&client) {
            *taken -= 1;
            if *taken == 0 {
                clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_and_given_back() {
        let seats = Arc::new(Seats::default());
        let (one, two) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut held: Vec<Seat> = (0..3).map(|_| seats.take(4).unwrap()).collect();
        assert!(held[0].is_of(one, 2) && held[1].is_of(one, 2));
        assert!(!held[2].is_of(one, 2), "a third of the same client");
        let mut fourth = seats.take(4).unwrap();
        assert!(fourth.is_of(two, 2));
        assert!(seats.take(4).is_none(), "a fifth in all");
        held.clear();
        assert!(seats.take(2).is_some(), "given back, refused ones too");
        drop(fourth);
        assert!(seats.clients.lock().is_empty());
        assert_eq!(seats.taken.load(Ordering::Relaxed), 0);
    }
}
