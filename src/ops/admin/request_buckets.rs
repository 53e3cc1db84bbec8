//! Bounds how often one client may ask the admin API, so that a script that runs wild costs little.
//!
//! Each client has a bucket for requests with the token, and another for those without: a page or a program without the
//! token, at the operator's own address, must not keep the operator from changing anything. Health and metrics are not
//! counted: probes and scrapers have to be answered. What must always hold: the memory is bounded, and a client that asks
//! seldom is never refused because of others.

use std::net::IpAddr;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::clock::Nanos;

/// Requests that a client may send at once, and again for each [`REFILL`].
const BURST: u64 = 200;

/// The time in which an empty bucket fills: twenty requests a second. The page asks a handful every few seconds.
const REFILL: Nanos = Nanos::from_secs(10);

/// Clients that are remembered. Those whose buckets are full again are forgotten when there is no room.
const MAX_CLIENTS: usize = 1_024;

/// The buckets of clients, each as the time at which it is full again.
#[derive(Debug, Default)]
pub struct RequestBuckets {
    full_at: Mutex<HashMap<(IpAddr, bool), Nanos>>,
}

impl RequestBuckets {
    /// Counts a request at `now` (monotonic). The error is the time to wait.
    pub(super) fn admit(&self, client: IpAddr, has_token: bool, now: Nanos) -> Result<(), Nanos> {
        let client = (client, has_token);
        let step = Nanos::new(REFILL.get() / BURST);
        let mut buckets = self.full_at.lock();
        if buckets.len() >= MAX_CLIENTS && !buckets.contains_key(&client) {
            buckets.retain(|_, full_at| *full_at > now);
            if buckets.len() >= MAX_CLIENTS {
                // So many clients at once are no operators; whoever comes next is not refused for it.
                return Ok(());
            }
        }
        let full_at = buckets.entry(client).or_insert(now);
        let next = (*full_at).max(now).saturating_add(step);
        let excess = next.saturating_sub(now.saturating_add(REFILL));
        if excess > Nanos::ZERO {
            return Err(excess);
        }
        *full_at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_burst_is_admitted_and_then_what_refills() {
        let limit = RequestBuckets::default();
        let client = |n: u32| IpAddr::from(Ipv4Addr::from(n));
        let now = Nanos::from_secs(100);
        let admitted = (0..500).filter(|_| limit.admit(client(1), false, now).is_ok()).count();
        assert_eq!(admitted as u64, BURST);
        assert_eq!(limit.admit(client(1), true, now), Ok(()), "the operator at the same address");
        let wait = limit.admit(client(1), false, now).unwrap_err();
        assert_eq!(wait, Nanos::new(REFILL.get() / BURST));
        assert_eq!(limit.admit(client(2), false, now), Ok(()));
        assert_eq!(limit.admit(client(1), false, now.saturating_add(wait)), Ok(()));
        for n in 0..5_000 {
            // Admitted or not, each is remembered.
            let _ = limit.admit(client(n), false, now);
        }
        assert!(limit.full_at.lock().len() <= MAX_CLIENTS);
    }
}
