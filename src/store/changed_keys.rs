//! Which cells of a shard have changed since they were last saved.
//!
//! The list is filled under the lock of its shard, which a charge holds anyway, and emptied by the thread that saves. It
//! has a fixed size: what does not fit is found by a look at the whole shard. Without a state directory there is no list.

use hashbrown::HashMap;

use super::written_ahead::KeyGrants;

/// Keys that are listed. At a million charges a second, spread evenly, a shard has 25 in 100 ms.
const MAX_LISTED: usize = 64;

/// The order of the entries of a table: what it keeps of their keys.
pub(super) type EntryOrder = (u64, u32);

/// The changed cells of one shard.
#[derive(Debug)]
pub(super) struct ChangedKeys {
    len: usize,
    is_overfull: bool,
    keys: [EntryOrder; MAX_LISTED],
    /// What keys may spend before they are saved again; only those of limits with `after_crash: deny`.
    pub(super) grants: HashMap<EntryOrder, KeyGrants>,
}

impl ChangedKeys {
    pub(super) fn new() -> Self {
        let grants = HashMap::new();
        Self { len: 0, is_overfull: false, keys: [(0, 0); MAX_LISTED], grants }
    }

    /// Adds a key that is not listed.
    pub(super) fn add(&mut self, key: EntryOrder) {
        match self.keys.get_mut(self.len) {
            Some(slot) => {
                *slot = key;
                self.len += 1;
            }
            None => self.is_overfull = true,
        }
    }

    /// The keys in the list.
    pub(super) fn listed(&self) -> &[EntryOrder] {
        &self.keys[..self.len]
    }

    /// Whether cells have changed that are not in the list.
    pub(super) const fn is_overfull(&self) -> bool {
        self.is_overfull
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.is_overfull) = (0, false);
    }
}
