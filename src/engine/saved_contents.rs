//! What a state directory holds, for people: no engine is needed to read it, and nothing is restored.
//!
//! Of each key only the limit is kept in memory: some forty bytes for each cell, less than a process needs to restore
//! it.

use hashbrown::HashMap;

use super::saved_records::{
    MORE_QUOTAS, QuotaRecord, RestoredCell, decoded, read_cells, read_rules,
};
use crate::clock::Nanos;
use crate::limit::Quota;
use crate::policy::{KeyHash, KeyRule};
use crate::state::{FrameKind, RestoredFrame};
use crate::store::SavedBan;

/// Quotas that are listed for one limit.
const MAX_LISTED_QUOTAS: usize = 16;

/// A limit that cells belong to.
#[derive(Clone, Debug)]
pub struct SavedLimit {
    /// Its name.
    pub name: String,
    /// What its cells count, at most [`MAX_LISTED_QUOTAS`]: more than one quota with plans and overrides.
    pub quotas: Vec<Quota>,
    /// Whether it admits nothing above the limit after a crash.
    pub denies_after_crash: bool,
    /// Cells.
    pub cells: u64,
}

/// What the frames of a directory hold, as far as they were read. Later frames replace what earlier ones say.
#[derive(Debug, Default)]
pub struct SavedContents {
    limits: Vec<SavedLimit>,
    indexes: HashMap<String, usize>,
    /// The quotas by the numbers that cells name, each with the index of its limit.
    quotas: HashMap<u32, (Quota, usize)>,
    /// The index of the limit of each key with a cell.
    cells: HashMap<KeyHash, usize>,
    /// When the latest ban of a key ends (monotonic).
    bans: HashMap<KeyHash, Nanos>,
    rules: Vec<KeyRule>,
    unreadable: u64,
}

impl SavedContents {
    /// Reads a frame.
    pub fn read(&mut self, frame: &RestoredFrame) {
        let payload = &*frame.payload;
        match frame.kind {
            FrameKind::Quotas => self.read_quotas(payload, frame.group == MORE_QUOTAS),
            FrameKind::Cells => self.read_cells(payload),
            FrameKind::Bans => match decoded::<Vec<SavedBan>>(payload) {
                Some(bans) => bans.iter().for_each(|ban| {
                    match ban.until() {
                        Some(until) => self.bans.insert(ban.key(), until),
                        None => self.bans.remove(&ban.key()),
                    };
                }),
                None => self.unreadable += 1,
            },
            FrameKind::Rules => {
                let unreadable;
                (self.rules, unreadable) = read_rules(payload);
                self.unreadable += unreadable;
            }
            FrameKind::Start
            | FrameKind::Time
            | FrameKind::History
            | FrameKind::Complete
            | FrameKind::CleanStop
            | FrameKind::Confirm
            | FrameKind::InFlight
            | FrameKind::Fleet => {}
        }
    }

    /// The limits with their cells, by name. A limit without a cell is one that the last process knew.
    pub fn limits(&self) -> Vec<SavedLimit> {
        let mut limits = self.limits.clone();
        for index in self.cells.values() {
            limits[*index].cells += 1;
        }
        let mut is_known = vec![false; limits.len()];
        self.quotas.values().for_each(|(_, index)| is_known[*index] = true);
        let mut is_known = is_known.into_iter();
        limits.retain(|limit| is_known.next() == Some(true) || limit.cells > 0);
        limits.sort_by(|first, second| first.name.cmp(&second.name));
        limits
    }

    /// The number of keys that are banned at `now` (monotonic).
    pub fn banned(&self, now: Nanos) -> usize {
        self.bans.values().filter(|until| **until > now).count()
    }

    /// The number of keys whose denials or bans are remembered.
    pub fn denied(&self) -> usize {
        self.bans.len()
    }

    /// The rules that operators made for keys.
    pub fn rules(&self) -> &[KeyRule] {
        &self.rules
    }

    /// Records that cannot be read, or that no engine can have written.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// `is_more`: the quotas of the frame before stay.
    fn read_quotas(&mut self, payload: &[u8], is_more: bool) {
        let Some(records) = decoded::<Vec<QuotaRecord>>(payload) else {
            self.unreadable += 1;
            return;
        };
        if !is_more {
            self.quotas.clear();
        }
        for record in records {
            let QuotaRecord { number, limit, numbers, denies_after_crash, .. } = record;
            let Some(quota) = numbers.quota() else {
                self.unreadable += 1;
                continue;
            };
            let index = self.limit(limit);
            let limit = &mut self.limits[index];
            limit.denies_after_crash = denies_after_crash;
            if limit.quotas.len() < MAX_LISTED_QUOTAS && !limit.quotas.contains(&quota) {
                limit.quotas.push(quota);
            }
            self.quotas.insert(number, (quota, index));
        }
    }

    fn read_cells(&mut self, payload: &[u8]) {
        for record in read_cells(payload) {
            let Some(RestoredCell { key, cell, .. }) = record else {
                self.unreadable += 1;
                continue;
            };
            let Some((number, cell)) = cell else {
                self.cells.remove(&key);
                continue;
            };
            match self.quotas.get(&number) {
                Some((quota, limit)) if quota.could_have_written(&cell) => {
                    self.cells.insert(key, *limit);
                }
                _ => self.unreadable += 1,
            }
        }
    }

    /// The index of the limit of this name.
    fn limit(&mut self, name: String) -> usize {
        if let Some(index) = self.indexes.get(&name) {
            return *index;
        }
        let index = self.limits.len();
        self.indexes.insert(name.clone(), index);
        let (quotas, denies_after_crash, cells) = (Vec::new(), false, 0);
        self.limits.push(SavedLimit { name, quotas, denies_after_crash, cells });
        index
    }
}
