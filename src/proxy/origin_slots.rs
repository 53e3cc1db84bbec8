//! How many exchanges an origin has at once, in all and of each client.
//!
//! Each may need a connection of its own, and so a descriptor and a worker of the origin. When most of the
//! slots are taken, no client gets more than its share: one that opens streams without end leaves room for
//! the others.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;

/// One client's share is the whole divided by this.
const SHARES: usize = 4;

/// Exchanges with one origin, over all generations.
#[derive(Debug, Default)]
pub struct OriginSlots {
    taken: AtomicUsize,
    /// No client is in here without an exchange, so it is no larger than `taken`.
    clients: Mutex<HashMap<IpAddr, usize>>,
}

/// Exchanges with all origins: as many as there are descriptors for.
#[derive(Debug)]
pub struct AllOriginSlots {
    taken: AtomicUsize,
    most: usize,
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
    pub const fn new(most: usize) -> Self {
        Self { taken: AtomicUsize::new(0), most }
    }

    fn take(&self) -> bool {
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        if before >= self.most {
            self.taken.fetch_sub(1, Ordering::AcqRel);
        }
        before < self.most
    }
}

impl OriginSlots {
    /// A slot for one more exchange of a client, of `most`. None when all are taken, or when this client
    /// has its share of them and the others' shares are all that is left.
    pub(super) fn take(
        self: &Arc<Self>,
        client: IpAddr,
        most: usize,
        all: &Arc<AllOriginSlots>,
    ) -> Option<OriginSlot> {
        // Shares are of what there is, not of what the file hopes for.
        let most = most.min(all.most);
        let share = (most / SHARES).max(1);
        let mut clients = self.clients.lock();
        // Changed under the lock only: one that is refused is never counted, not even for a moment.
        let before = self.taken.load(Ordering::Acquire);
        let held = clients.get(&client).copied().unwrap_or(0);
        let fits = before < most && (held < share || before < most - share);
        if !fits || !all.take() {
            return None;
        }
        self.taken.store(before + 1, Ordering::Release);
        clients.insert(client, held + 1);
        drop(clients);
        Some(OriginSlot { slots: Arc::clone(self), all: Arc::clone(all), client })
    }

    /// How many a client has.
    pub(super) fn held_by(&self, client: IpAddr) -> usize {
        self.clients.lock().get(&client).copied().unwrap_or(0)
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }
}

impl Drop for OriginSlot {
    fn drop(&mut self) {
        let mut clients = self.slots.clients.lock();
        if let Some(held) = clients.get_mut(&self.client) {
            *held -= 1;
            if *held == 0 {
                clients.remove(&self.client);
            }
        }
        self.slots.taken.fetch_sub(1, Ordering::AcqRel);
        drop(clients);
        self.all.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_room_for_the_others() {
        let (slots, all) = (Arc::<OriginSlots>::default(), Arc::new(AllOriginSlots::new(45)));
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let held: Vec<_> = (0..100).map_while(|_| slots.take(one, 40, &all)).collect();
        assert_eq!(held.len(), 30, "alone it has what is not kept for others");
        let others: Vec<_> = (0..100).map_while(|_| slots.take(other, 40, &all)).collect();
        assert_eq!(others.len(), 10);
        assert_eq!(slots.taken(), 40);
        let elsewhere = Arc::<OriginSlots>::default();
        let more: Vec<_> = (0..100).map_while(|_| elsewhere.take(other, 1_000, &all)).collect();
        assert_eq!(more.len(), 5, "of all origins");
        drop(more);
        drop(held);
        let others: Vec<_> =
            (0..100).map_while(|_| slots.take(other, 40, &all)).chain(others).collect();
        assert_eq!(others.len(), 30);
        drop(others);
        assert_eq!((slots.taken(), slots.clients.lock().len()), (0, 0));
        assert_eq!(all.taken.load(Ordering::Relaxed), 0);
        assert!(slots.take(one, 1, &all).is_some(), "one slot is everybody's");
    }
}
