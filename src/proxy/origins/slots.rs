//! How many exchanges an origin has at once, in all and for each client, and how many all origins have together.
//!
//! An exchange may need a connection of its own, and so a descriptor and a worker of the origin. A slot is never taken
//! away from a client, so the rule bounds what a client may take:
//!
//! - While more than half of the slots are free, a client may take any of them.
//! - Then a client may hold a quarter of them, or three quarters if it is the only one that holds any.
//! - Of the last quarter a client takes a slot only while it holds fewer than are free (the dynamic threshold of
//!   Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). So each
//!   client leaves half of what it finds, and one that holds nothing gets even the last slot.
//! - A tunnel holds its slot for up to an hour (`timeouts.tunnel`), so a client may never hold more than a quarter for
//!   tunnels.
//!
//! There is no queue, because a request that waits in one holds a connection too. What must always hold: a client that
//! holds no slot gets any free one, even the last.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

/// A client's share is the number of slots divided by this.
const SHARES: usize = 4;

/// How long an exchange may hold its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum SlotUse {
    /// To the end of an answer.
    Exchange,
    /// As long as a tunnel lives, if the origin switches protocols.
    Tunnel,
}

/// Exchanges with one origin, over all generations.
#[derive(Debug, Default)]
pub struct OriginSlots {
    taken: AtomicUsize,
    /// Exchanges of each client. A client without one is not in the map, so it has at most `taken` entries.
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// Exchanges with all origins: as many as there are descriptors for, by the same rule. Without it a client could take
/// all descriptors at a few origins that do not answer.
#[derive(Debug)]
pub struct AllOriginSlots {
    slots: OriginSlots,
    max: usize,
}

/// The slot of one exchange; free again when dropped.
#[derive(Debug)]
pub(in crate::proxy) struct OriginSlot {
    slots: Arc<OriginSlots>,
    all: Arc<AllOriginSlots>,
    client: IpAddr,
}

impl AllOriginSlots {
    /// `max` slots, all of them free.
    pub fn new(max: usize) -> Self {
        Self { slots: OriginSlots::default(), max }
    }

    /// Slots that a client holds.
    pub(in crate::proxy) fn held_by(&self, client: IpAddr) -> usize {
        self.slots.held_by(client)
    }
}

impl OriginSlots {
    /// Takes a slot for one more exchange of a client, out of `max`. `None` when all are taken, here or at all origins
    /// together, or when the free ones are left to other clients.
    pub(in crate::proxy) fn take(
        self: &Arc<Self>,
        client: IpAddr,
        slot_use: SlotUse,
        max: usize,
        all: &Arc<AllOriginSlots>,
    ) -> Option<OriginSlot> {
        // Shares are computed from the slots that exist, which may be fewer than the file asks for.
        if !self.try_take(client, slot_use, max.min(all.max)) {
            return None;
        }
        if !all.slots.try_take(client, slot_use, all.max) {
            self.release(client);
            return None;
        }
        Some(OriginSlot { slots: Arc::clone(self), all: Arc::clone(all), client })
    }

    /// Takes one slot if the rule allows it; `false` when it does not.
    fn try_take(&self, client: IpAddr, slot_use: SlotUse, max: usize) -> bool {
        let mut clients = self.clients.lock();
        // Changed under the lock only, so a refused exchange is never counted.
        let taken = self.taken.load(Ordering::Acquire);
        let held = clients.get(&client).copied().unwrap_or(0);
        let is_fair = is_fair(held, taken, max, slot_use);
        if is_fair {
            self.taken.store(taken + 1, Ordering::Release);
            clients.insert(client, held + 1);
        }
        is_fair
    }

    fn release(&self, client: IpAddr) {
        let mut clients = self.clients.lock();
        if let Some(held) = clients.get_mut(&client) {
            *held -= 1;
            if *held == 0 {
                clients.remove(&client);
            }
        }
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }

    /// Slots that a client holds.
    fn held_by(&self, client: IpAddr) -> usize {
        self.clients.lock().get(&client).copied().unwrap_or(0)
    }

    /// Slots that are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

/// Whether a client that holds `held` of the `taken` slots may take one more of `max`.
const fn is_fair(held: usize, taken: usize, max: usize, slot_use: SlotUse) -> bool {
    let Some(free) = max.checked_sub(taken) else {
        return false;
    };
    let share = if max < SHARES { 1 } else { max / SHARES };
    let allowed = match slot_use {
        SlotUse::Tunnel => share,
        SlotUse::Exchange if free > max / 2 => max,
        SlotUse::Exchange if held == taken => max - share,
        SlotUse::Exchange => share,
    };
    free > 0 && (held == 0 || (held < allowed && (free > share || held < free)))
}

impl Drop for OriginSlot {
    fn drop(&mut self) {
        self.slots.release(self.client);
        self.all.slots.release(self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn take(
        slots: &Arc<OriginSlots>,
        n: u8,
        slot_use: SlotUse,
        max: usize,
        all: &Arc<AllOriginSlots>,
    ) -> Vec<OriginSlot> {
        (0..2 * max).map_while(|_| slots.take(client(n), slot_use, max, all)).collect()
    }

    #[test]
    fn a_client_at_several_origins_leaves_room_for_others() {
        let all = Arc::new(AllOriginSlots::new(1_000));
        let origins: [Arc<OriginSlots>; 3] = std::array::from_fn(|_| Arc::default());
        let mut held = Vec::new();
        for origin in &origins[..2] {
            held.extend(
                (0..2_000).map_while(|_| origin.take(client(1), SlotUse::Exchange, 1_024, &all)),
            );
        }
        assert!(held.len() <= 750, "{}", held.len());
        let others: Vec<_> =
            (2..50).map(|n| origins[2].take(client(n), SlotUse::Exchange, 1_024, &all)).collect();
        assert!(others.iter().all(Option::is_some));
        drop((held, others));
        assert_eq!((all.slots.taken(), origins.map(|origin| origin.taken())), (0, [0; 3]));
    }

    #[test]
    fn each_client_leaves_room_for_the_next() {
        for (max, expected) in [
            (1_024, &[768, 128, 64, 32, 16, 8, 4, 2, 1, 1, 0][..]),
            (40, &[30, 5, 3, 1, 1, 0]),
            (8, &[6, 1, 1, 0]),
            (4, &[3, 1, 0]),
            (2, &[1, 1, 0]),
            (1, &[1, 0]),
        ] {
            let (slots, all) =
                (Arc::<OriginSlots>::default(), Arc::new(AllOriginSlots::new(2_000)));
            let held: Vec<_> =
                (1..=11).map(|n| take(&slots, n, SlotUse::Exchange, max, &all)).collect();
            let counts: Vec<usize> = held.iter().map(Vec::len).collect();
            assert_eq!(counts[..expected.len()], *expected, "{max}");
            assert_eq!(slots.taken(), max);
            drop(held);
            assert_eq!((slots.taken(), slots.clients.lock().len()), (0, 0));
            assert_eq!(all.slots.taken(), 0);
        }
    }

    #[test]
    fn among_others_a_client_holds_a_quarter_when_half_is_taken() {
        let (slots, all) = (Arc::<OriginSlots>::default(), Arc::new(AllOriginSlots::new(2_000)));
        let first = slots.take(client(1), SlotUse::Exchange, 1_000, &all);
        let held: Vec<_> =
            (2..=12).map(|n| take(&slots, n, SlotUse::Exchange, 1_000, &all)).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts[..7], [499, 250, 125, 63, 31, 16, 8]);
        assert_eq!(slots.taken(), 1_000, "eleven clients fill it");
        drop((first, held));
        let quarters: Vec<_> =
            (1..=2).map(|n| take(&slots, n, SlotUse::Tunnel, 1_000, &all)).collect();
        assert_eq!(quarters.iter().map(Vec::len).collect::<Vec<_>>(), [250, 250], "tunnels");
        assert_eq!(slots.held_by(client(1)), 250);
    }

    #[test]
    fn no_more_than_there_are_for_all_origins() {
        let (slots, all) = (Arc::<OriginSlots>::default(), Arc::new(AllOriginSlots::new(45)));
        let elsewhere = Arc::<OriginSlots>::default();
        let held = take(&slots, 1, SlotUse::Exchange, 40, &all);
        let more = take(&elsewhere, 2, SlotUse::Exchange, 1_000, &all);
        assert_eq!((held.len(), more.len()), (30, 8), "each leaves half of what it finds");
        let others = (3..).map_while(|n| elsewhere.take(client(n), SlotUse::Exchange, 1_000, &all));
        let others: Vec<_> = others.collect();
        assert_eq!((others.len(), all.slots.taken()), (7, 45));
        assert!(slots.take(client(20), SlotUse::Exchange, 40, &all).is_none());
        drop(more);
        assert!(slots.take(client(20), SlotUse::Exchange, 40, &all).is_some());
    }
}
