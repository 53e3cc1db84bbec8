//! What is counted of each key of a limit, for a bounded number of keys: the first that come.

use hashbrown::HashTable;

use super::distinct::{KeyBudget, KeyEstimate, KeyNumber};
use super::window::PeakWindow;

/// Keys of one limit whose requests are counted. A table with so many takes 16 MiB.
pub const MAX_KEYS_PER_LIMIT: usize = 200_000;
/// The same over all limits: 80 MiB, and at most half as much again while a table grows.
pub const MAX_KEYS: usize = 1_000_000;

/// The counts of one key: a cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct KeyUse {
    pub(super) hash: u64,
    // Counts end at the largest number.
    pub(super) requests: u32,
    pub(super) refused: u32,
    pub(super) shadow_refused: u32,
    /// The largest number of units in a window.
    pub(super) peak: u32,
    window: PeakWindow,
}

const _: () = assert!(size_of::<KeyUse>() == 64);

impl KeyUse {
    fn new(hash: u64) -> Self {
        let window = PeakWindow::default();
        Self { hash, requests: 0, refused: 0, shadow_refused: 0, peak: 0, window }
    }

    fn add(&mut self, charge: &KeyRequest) {
        self.requests = self.requests.saturating_add(1);
        self.peak = self.peak.max(self.window.add(charge.slot, charge.cost));
        match charge.refused {
            None => {}
            Some(Refuses::Enforced) => self.refused = self.refused.saturating_add(1),
            Some(Refuses::Shadow) => self.shadow_refused = self.shadow_refused.saturating_add(1),
        }
    }

    /// Refusals, with and without effect.
    pub(super) const fn found(&self) -> u64 {
        self.refused as u64 + self.shadow_refused as u64
    }
}

/// One request as its key sees it.
#[derive(Clone, Copy)]
pub(super) struct KeyRequest {
    pub(super) hash: u64,
    /// The slot of its time.
    pub(super) slot: u64,
    pub(super) cost: u32,
    pub(super) refused: Option<Refuses>,
}

/// What a refusal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refuses {
    /// The request is refused.
    Enforced,
    /// It is only counted.
    Shadow,
}

/// The keys of a limit.
#[derive(Default)]
pub(super) struct KeyTable {
    counted: HashTable<KeyUse>,
    /// Keys that have no entry in the table.
    others: Option<Box<OtherKeys>>,
}

/// The numbers of keys that came after the bound.
#[derive(Default)]
struct OtherKeys {
    all: KeyEstimate,
    refused: KeyEstimate,
    shadow_refused: KeyEstimate,
}

impl KeyTable {
    /// Counts a request. Whether its key is in the table.
    pub(super) fn add(&mut self, request: &KeyRequest, budget: &mut KeyBudget) -> bool {
        let hash = request.hash;
        if let Some(known) = self.counted.find_mut(hash, |known| known.hash == hash) {
            known.add(request);
            return true;
        }
        let is_open = self.others.is_none() && self.counted.len() < MAX_KEYS_PER_LIMIT;
        if is_open && budget.take() {
            let mut key = KeyUse::new(hash);
            key.add(request);
            self.counted.insert_unique(hash, key, |known| known.hash);
            return true;
        }
        self.estimate(request);
        false
    }

    /// Reads the entries of keys, so that they are in the processor's cache when they are counted. Nothing between these reads
    /// depends on what was read, so they wait together.
    pub(super) fn fetch(&self, requests: &[KeyRequest]) {
        let known = requests.iter().filter_map(|request| self.find(request.hash));
        std::hint::black_box(known.map(|known| u64::from(known.peak)).sum::<u64>());
    }

    fn estimate(&mut self, request: &KeyRequest) {
        let others = self.others.get_or_insert_default();
        others.all.add(request.hash);
        match request.refused {
            None => {}
            Some(Refuses::Enforced) => others.refused.add(request.hash),
            Some(Refuses::Shadow) => others.shadow_refused.add(request.hash),
        }
    }

    pub(super) fn find(&self, hash: u64) -> Option<&KeyUse> {
        self.counted.find(hash, |known| known.hash == hash)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &KeyUse> {
        self.counted.iter()
    }

    /// Whether every key is in the table.
    pub(super) fn is_complete(&self) -> bool {
        self.others.is_none()
    }

    /// All keys, those that are refused, and those that are refused in shadow mode.
    pub(super) fn numbers(&self) -> [KeyNumber; 3] {
        let others = self.others.as_deref();
        let refused = self.iter().filter(|key| key.refused > 0).count() as u64;
        let shadow = self.iter().filter(|key| key.shadow_refused > 0).count() as u64;
        [
            KeyNumber::of(self.counted.len() as u64, others.map(|others| &others.all)),
            KeyNumber::of(refused, others.map(|others| &others.refused)),
            KeyNumber::of(shadow, others.map(|others| &others.shadow_refused)),
        ]
    }
}
