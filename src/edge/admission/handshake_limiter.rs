//! Limits how many TLS handshakes a client may begin: one token bucket for each address.
//!
//! A handshake costs this process a signature and costs the client almost nothing, and it precedes every request that
//! a limit could judge. The limiter does not know which addresses are exempt. What must always hold: the number of
//! records is bounded, and a full table locks no client out.

use std::net::IpAddr;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::{Nanos, Now};
use crate::limit::{Cell, Quota, TokenBucket};

/// Clients with a record. Each has completed a TCP handshake, so a sender cannot invent addresses. The records take
/// 4 MiB.
const MAX_CLIENTS: usize = 65_536;

/// How often full buckets are removed while the table is full.
const SWEEP_INTERVAL: Nanos = Nanos::SECOND;

/// The handshakes of each client. Buckets that are full again are removed.
#[derive(Debug, Default)]
pub(crate) struct HandshakeLimiter(Mutex<HandshakeBuckets>);

#[derive(Debug, Default)]
struct HandshakeBuckets {
    /// The bucket that the cells belong to; a reload may change it.
    bucket: Option<TokenBucket>,
    cells: HashMap<IpAddr, Cell>,
    /// No sweep before this time (monotonic).
    next_sweep: Nanos,
}

impl HandshakeLimiter {
    /// Charges a handshake to a client; returns whether the client may begin it. A client without a record and without
    /// room for one may: refusing it would let [`MAX_CLIENTS`] others lock it out.
    pub(in crate::edge) fn try_charge(
        &self,
        client: IpAddr,
        bucket: TokenBucket,
        now: Now,
    ) -> bool {
        let quota = Quota::TokenBucket(bucket);
        let mut buckets = self.0.lock();
        if buckets.bucket != Some(bucket) {
            *buckets = HandshakeBuckets { bucket: Some(bucket), ..HandshakeBuckets::default() };
        }
        if !buckets.cells.contains_key(&client) && !buckets.make_room(&quota, now) {
            return true;
        }
        let cell = buckets.cells.entry(client).or_insert_with(|| quota.empty_cell());
        let is_allowed = quota.judge(Some(cell), 1, now).allowed;
        if is_allowed {
            quota.charge(cell, 1, now);
        }
        is_allowed
    }
}

impl HandshakeBuckets {
    /// Sweeps if the table is full; returns whether there is room for one more record.
    fn make_room(&mut self, quota: &Quota, now: Now) -> bool {
        if self.cells.len() >= MAX_CLIENTS && self.next_sweep <= now.mono {
            self.next_sweep = now.mono.saturating_add(SWEEP_INTERVAL);
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
        let admitted = |client, millis| {
            (0..100).filter(|_| handshakes.try_charge(client, bucket(50), at(millis))).count()
        };
        assert_eq!(admitted(client(1), 1_000), 50);
        assert_eq!(admitted(client(2), 1_000), 50);
        assert_eq!(admitted(client(1), 1_100), 5, "a tenth of a second later");
        assert_eq!(admitted(client(1), 9_000), 50);
    }

    #[test]
    fn a_changed_rate_applies_at_once() {
        let handshakes = HandshakeLimiter::default();
        assert!((0..50).all(|_| handshakes.try_charge(client(1), bucket(50), at(1_000))));
        assert!(handshakes.try_charge(client(1), bucket(1), at(1_000)));
        assert!(!handshakes.try_charge(client(1), bucket(1), at(1_000)));
    }

    #[test]
    fn records_are_bounded_and_no_client_is_locked_out() {
        let handshakes = HandshakeLimiter::default();
        let max = u32::try_from(MAX_CLIENTS).unwrap();
        assert!((0..max).all(|n| handshakes.try_charge(client(n), bucket(1), at(0))));
        assert!(
            !handshakes.try_charge(client(7), bucket(1), at(0)),
            "a client with a record is bounded"
        );
        assert!((0..3).all(|_| handshakes.try_charge(client(max), bucket(1), at(0))));
        assert_eq!(handshakes.0.lock().cells.len(), MAX_CLIENTS);
        // All buckets are full again, so their records are removed.
        assert!(handshakes.try_charge(client(max), bucket(1), at(1_500)));
        assert!(!handshakes.try_charge(client(max), bucket(1), at(1_500)));
        assert_eq!(handshakes.0.lock().cells.len(), 1);
    }
}
