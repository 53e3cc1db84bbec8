//! How many TLS handshakes a client may begin: a token bucket for each address.
//!
//! A handshake costs this process a signature and the client next to nothing, and no request of it
//! has been seen yet that a limit could judge.

use std::net::IpAddr;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::{Nanos, Now};
use crate::limit::{Cell, Quota, TokenBucket};

/// Most clients that are counted. Each has completed a TCP handshake, so a sender cannot invent them;
/// they take 4 MiB.
const MAX_CLIENTS: usize = 65_536;

/// Between two searches for buckets that are full again, when all records are used.
const SWEEP_EVERY: Nanos = Nanos::SECOND;

/// HandshakeLimiter by client. Buckets that are full again are forgotten.
#[derive(Debug, Default)]
pub(crate) struct HandshakeLimiter(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    /// The bucket that the cells belong to: a reload may change it.
    bucket: Option<TokenBucket>,
    cells: HashMap<IpAddr, Cell>,
    /// No sweep before this (monotonic).
    next_sweep: Nanos,
}

impl HandshakeLimiter {
    /// Whether a client may begin one more handshake; if so, it is counted. A client for which there
    /// is no record may: refusing it would let [`MAX_CLIENTS`] others lock it out.
    pub(crate) fn admits(&self, client: IpAddr, bucket: TokenBucket, now: Now) -> bool {
        let quota = Quota::TokenBucket(bucket);
        let mut counted = self.0.lock();
        if counted.bucket != Some(bucket) {
            *counted = Counted { bucket: Some(bucket), ..Counted::default() };
        }
        if !counted.cells.contains_key(&client) && !counted.has_room(&quota, now) {
            return true;
        }
        let cell = counted.cells.entry(client).or_insert_with(|| quota.empty_cell());
        let admitted = quota.judge(Some(cell), 1, now).allowed;
        if admitted {
            quota.charge(cell, 1, now);
        }
        admitted
    }
}

impl Counted {
    fn has_room(&mut self, quota: &Quota, now: Now) -> bool {
        if self.cells.len() >= MAX_CLIENTS && self.next_sweep <= now.mono {
            self.next_sweep = now.mono.saturating_add(SWEEP_EVERY);
            self.cells.retain(|_, cell| !quota.is_idle(cell, now));
        }
        self.cells.len() < MAX_CLIENTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Rate;

    fn bucket(count: u32) -> TokenBucket {
        let rate = Rate::new(count, Nanos::SECOND).unwrap();
        TokenBucket::new(rate, count, Nanos::ZERO, Nanos::ZERO).unwrap()
    }

    fn at(millis: u64) -> Now {
        let instant = Nanos::from_millis(millis);
        Now { mono: instant, wall: instant }
    }

    fn client(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    #[test]
    fn a_client_has_its_own_bucket() {
        let handshakes = HandshakeLimiter::default();
        let admitted = |who, millis| {
            (0..100).filter(|_| handshakes.admits(who, bucket(50), at(millis))).count()
        };
        assert_eq!(admitted(client(1), 1_000), 50);
        assert_eq!(admitted(client(2), 1_000), 50);
        assert_eq!(admitted(client(1), 1_100), 5, "a tenth of a second later");
        assert_eq!(admitted(client(1), 9_000), 50);
    }

    #[test]
    fn a_changed_rate_holds_at_once() {
        let handshakes = HandshakeLimiter::default();
        assert!((0..50).all(|_| handshakes.admits(client(1), bucket(50), at(1_000))));
        assert!(handshakes.admits(client(1), bucket(1), at(1_000)));
        assert!(!handshakes.admits(client(1), bucket(1), at(1_000)));
    }

    #[test]
    fn records_are_bounded_and_nobody_is_locked_out() {
        let handshakes = HandshakeLimiter::default();
        let most = u32::try_from(MAX_CLIENTS).unwrap();
        assert!((0..most).all(|n| handshakes.admits(client(n), bucket(1), at(0))));
        assert!(
            !handshakes.admits(client(7), bucket(1), at(0)),
            "a client with a record is bounded"
        );
        assert!((0..3).all(|_| handshakes.admits(client(most), bucket(1), at(0))));
        assert_eq!(handshakes.0.lock().cells.len(), MAX_CLIENTS);
        // All buckets are full again, and their records free.
        assert!(handshakes.admits(client(most), bucket(1), at(1_500)));
        assert!(!handshakes.admits(client(most), bucket(1), at(1_500)));
        assert_eq!(handshakes.0.lock().cells.len(), 1);
    }
}
