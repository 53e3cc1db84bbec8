//! How many exchanges an origin has at once, in all and of each client; and how many all origins have.
//!
//! Each may need a connection of its own, and so a descriptor and a worker of the origin. Nothing is ever
//! taken away from a client, so the rule bounds what it may take:
//!
//! - While more than half of the slots are free, nobody lacks one, and a client may take what it likes.
//! - Then a client may hold a quarter of them, or three quarters if it is the only one that holds any.
//! - Of the last quarter a client takes a slot only while it holds fewer than are free (the dynamic threshold of
//!   Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). So each
//!   client leaves half of what it finds, and one that holds nothing gets even the last slot.
//! - A tunnel holds its slot for up to an hour (`timeouts.tunnel`), so its client may hold a quarter always.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

/// One client's share is the whole divided by this.
const SHARES: usize = 4;

/// How long an exchange may hold its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// To the end of an answer.
    Exchange,
    /// As long as a tunnel lives, if the origin switches protocols.
    Tunnel,
}

/// Exchanges with one origin, over all generations.
#[derive(Debug, Default)]
pub struct OriginSlots {
    taken: AtomicUsize,
    /// No client is in here without an exchange, so it is no larger than `taken`.
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// Exchanges with all origins: as many as there are descriptors for, by the same rule. (Else a client could take
/// all of them at a few origins that do not answer.)
#[derive(Debug)]
pub struct AllOriginSlots {
    slots: OriginSlots,
    max: usize,
}

/// One exchange's slot, free again when it is dropped.
#[derive(Debug)]
pub(super) struct OriginSlot {
    slots: Arc<OriginSlots>,
    all: Arc<AllOriginSlots>,
    client: IpAddr,
}

impl AllOriginSlots {
    /// So many, all of them free.
    pub fn new(max: usize) -> Self {
        Self { slots: OriginSlots::default(), max }
    }

    /// How many a client has.
    pub(super) fn held_by(&self, client: IpAddr) -> usize {
        self.slots.held_by(client)
    }
}

impl OriginSlots {
    /// A slot for one more exchange of a client, of `max`. None when all are taken, here or of all origins, or when
    /// what is free is left to other clients.
    pub(super) fn take(
        self: &Arc<Self>,
        client: IpAddr,
        stay: Stay,
        max: usize,
        all: &Arc<AllOriginSlots>,
    ) -> Option<OriginSlot> {
        // Shares are of what there is, not of what the file hopes for.
        if !self.count(client, stay, max.min(all.max)) {
            return None;
        }
        if !all.slots.count(client, stay, all.max) {
            self.give_back(client);
            return None;
        }
        Some(OriginSlot { slots: Arc::clone(self), all: Arc::clone(all), client })
    }

    /// Counts one more exchange of a client, if it may have one.
    fn count(&self, client: IpAddr, stay: Stay, max: usize) -> bool {
        let mut clients = self.clients.lock();
        // Changed under the lock only: one that is refused is never counted, not even for a moment.
        let taken = self.taken.load(Ordering::Acquire);
        let held = clients.get(&client).copied().unwrap_or(0);
        let is_fair = is_fair(held, taken, max, stay);
        if is_fair {
            self.taken.store(taken + 1, Ordering::Release);
            clients.insert(client, held + 1);
        }
        is_fair
    }

    fn give_back(&self, client: IpAddr) {
        let mut clients = self.clients.lock();
        if let Some(held) = clients.get_mut(&client) {
            *held -= 1;
            if *held == 0 {
                clients.remove(&client);
            }
        }
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many a client has.
    fn held_by(&self, client: IpAddr) -> usize {
        self.clients.lock().get(&client).copied().unwrap_or(0)
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

/// Whether a client that holds `held` of the `taken` slots may take one more of `most`.
const fn is_fair(held: usize, taken: usize, most: usize, stay: Stay) -> bool {
    let Some(free) = most.checked_sub(taken) else {
        return false;
    };
    let share = if most < SHARES { 1 } else { most / SHARES };
    let allowed = match stay {
        Stay::Tunnel => share,
        Stay::Exchange if free > most / 2 => most,
        Stay::Exchange if held == taken => most - share,
        Stay::Exchange => share,
    };
    free > 0 && (held == 0 || (held < allowed && (free > share || held < free)))
}

impl Drop for OriginSlot {
    fn drop(&mut self) {
        self.slots.give_back(self.client);
        self.all.slots.give_back(self.client);
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
        stay: Stay,
        most: usize,
        all: &Arc<AllOriginSlots>,
    ) -> Vec<OriginSlot> {
        (0..2 * most).map_while(|_| slots.take(client(n), stay, most, all)).collect()
    }

    #[test]
    fn one_client_at_several_origins_leaves_room_for_others() {
        let all = Arc::new(AllOriginSlots::new(1_000));
        let origins: [Arc<OriginSlots>; 3] = std::array::from_fn(|_| Arc::default());
        let mut held = Vec::new();
        for origin in &origins[..2] {
            held.extend(
                (0..2_000).map_while(|_| origin.take(client(1), Stay::Exchange, 1_024, &all)),
            );
        }
        assert!(held.len() <= 750, "{}", held.len());
        let others: Vec<_> =
            (2..50).map(|n| origins[2].take(client(n), Stay::Exchange, 1_024, &all)).collect();
        assert!(others.iter().all(Option::is_some));
        drop((held, others));
        assert_eq!((all.slots.taken(), origins.map(|origin| origin.taken())), (0, [0; 3]));
    }

    #[test]
    fn each_client_leaves_room_for_the_next() {
        for (most, expected) in [
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
                (1..=11).map(|n| take(&slots, n, Stay::Exchange, most, &all)).collect();
            let counts: Vec<usize> = held.iter().map(Vec::len).collect();
            assert_eq!(counts[..expected.len()], *expected, "{most}");
            assert_eq!(slots.taken(), most);
            drop(held);
            assert_eq!((slots.taken(), slots.clients.lock().len()), (0, 0));
            assert_eq!(all.slots.taken(), 0);
        }
    }

    #[test]
    fn a_client_beside_others_holds_a_quarter_when_half_is_taken() {
        let (slots, all) = (Arc::<OriginSlots>::default(), Arc::new(AllOriginSlots::new(2_000)));
        let one = slots.take(client(1), Stay::Exchange, 1_000, &all);
        let held: Vec<_> = (2..=12).map(|n| take(&slots, n, Stay::Exchange, 1_000, &all)).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts[..7], [499, 250, 125, 63, 31, 16, 8]);
        assert_eq!(slots.taken(), 1_000, "eleven clients fill it");
        drop((one, held));
        let quarters: Vec<_> =
            (1..=2).map(|n| take(&slots, n, Stay::Tunnel, 1_000, &all)).collect();
        assert_eq!(quarters.iter().map(Vec::len).collect::<Vec<_>>(), [250, 250], "tunnels");
        assert_eq!(slots.held_by(client(1)), 250);
    }

    #[test]
    fn no_more_than_there_are_for_all_origins() {
        let (slots, all) = (Arc::<OriginSlots>::default(), Arc::new(AllOriginSlots::new(45)));
        let elsewhere = Arc::<OriginSlots>::default();
        let held = take(&slots, 1, Stay::Exchange, 40, &all);
        let more = take(&elsewhere, 2, Stay::Exchange, 1_000, &all);
        assert_eq!((held.len(), more.len()), (30, 8), "each leaves half of what it finds");
        let others = (3..).map_while(|n| elsewhere.take(client(n), Stay::Exchange, 1_000, &all));
        let others: Vec<_> = others.collect();
        assert_eq!((others.len(), all.slots.taken()), (7, 45));
        assert!(slots.take(client(20), Stay::Exchange, 40, &all).is_none());
        drop(more);
        assert!(slots.take(client(20), Stay::Exchange, 40, &all).is_some());
    }
}
