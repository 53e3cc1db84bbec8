//! How what the engine kept comes back: from a state directory, or from the process before.
//!
//! A payload comes from outside, so what no engine can have written is left out and counted. What must always hold: a cell
//! comes back under the quota that wrote it, with all its units; the frames of one group of shards are restored in their
//! order.

use std::sync::Arc;

use hashbrown::HashMap;

use super::saved_records::{
    MORE_QUOTAS, QuotaRecord, RestoredCell, decoded, read_cells, read_rules,
};
use super::state::Engine;
use crate::limit::{Quota, WindowLengths};
use crate::policy::KeyRule;
use crate::state::{FrameKind, RestoredFrame, StateMetrics};
use crate::store::{IssuedQuota, QuotaSpec, SavedBan};

/// The quotas of saved cells, by the numbers that the cells name.
pub(super) type SavedQuotas = HashMap<u32, Arc<IssuedQuota>>;

/// What a quota is, but for the windows of its limit: the name of the limit, and whether it denies after a crash.
type QuotaIdentity = (String, Quota, bool);

/// Quotas by what they are.
type KnownQuotas = HashMap<QuotaIdentity, Arc<IssuedQuota>>;

/// Puts back what was saved. Frames of quotas, rules and bans are read in order; those of cells may be read by several
/// threads, one group by one thread at a time.
pub struct Restorer {
    engine: Arc<Engine>,
    quotas: Arc<SavedQuotas>,
    /// The same, and those before them: a quota that is named again keeps its number.
    known: KnownQuotas,
    known_before: KnownQuotas,
    rules: Vec<KeyRule>,
    /// Records that could not be read.
    unreadable: u64,
    /// Whether what is restored has to be saved.
    lists_as_changed: bool,
}

/// Cells of one group, with the quotas that they name.
pub struct SavedCells {
    payload: Vec<u8>,
    quotas: Arc<SavedQuotas>,
    /// Whether the process that wrote them ended in an orderly way.
    is_clean: bool,
    /// Whether they have to be saved.
    list_as_changed: bool,
}

impl Restorer {
    /// Restores into an engine that has decided nothing yet.
    pub fn new(engine: Arc<Engine>) -> Self {
        // What is taken for spent after a crash has to be saved as such.
        engine.exact.embedded.track_changes();
        engine.fleet().made_changes.set_continuing();
        Self {
            engine,
            quotas: Arc::default(),
            known: KnownQuotas::default(),
            known_before: KnownQuotas::default(),
            rules: Vec::new(),
            unreadable: 0,
            lists_as_changed: false,
        }
    }

    /// What is restored from now on is in no directory that this engine is saved to, and has to be saved.
    pub fn list_as_changed(&mut self) {
        self.lists_as_changed = true;
    }

    /// Restores a frame, or returns the cells that it holds.
    pub fn read(&mut self, frame: RestoredFrame) -> Option<SavedCells> {
        let RestoredFrame { kind, group, payload, is_clean } = frame;
        match kind {
            FrameKind::Cells => {
                let (quotas, list_as_changed) = (Arc::clone(&self.quotas), self.lists_as_changed);
                return Some(SavedCells { payload, quotas, is_clean, list_as_changed });
            }
            FrameKind::Quotas => self.read_quotas(&payload, group == MORE_QUOTAS),
            FrameKind::Rules => self.read_rules(&payload),
            FrameKind::Bans => self.read_bans(&payload),
            // Each log begins with its quotas. Where they are damaged, those of another process would name other limits.
            FrameKind::Start => self.quotas = Arc::default(),
            FrameKind::Time
            | FrameKind::History
            | FrameKind::Complete
            | FrameKind::CleanStop
            | FrameKind::Confirm
            | FrameKind::InFlight
            | FrameKind::Fleet => {}
        }
        None
    }

    /// Restores cells. Returns how many records could not be read.
    pub fn restore_cells(engine: &Engine, metrics: &StateMetrics, cells: &SavedCells) -> u64 {
        let (now, mut restored, mut unreadable) = (engine.now(), 0, 0);
        let embedded = &engine.exact.embedded;
        for record in read_cells(&cells.payload) {
            let Some(RestoredCell { key, cell, grant }) = record else {
                unreadable += 1;
                continue;
            };
            // A process that ended in an orderly way has saved what it spent.
            let grant = grant.filter(|_| !cells.is_clean);
            let Some((number, cell)) = cell else {
                embedded.restore_absence(key, now);
                if cells.list_as_changed {
                    embedded.list_restored(key);
                }
                continue;
            };
            match cells
                .quotas
                .get(&number)
                .filter(|issued| issued.quota().could_have_written(&cell))
            {
                Some(issued) => {
                    restored += u64::from(embedded.restore_cell(key, issued, cell, grant, now));
                    if cells.list_as_changed {
                        embedded.list_restored(key);
                    }
                }
                None => unreadable += 1,
            }
        }
        metrics.add_recovered_cells(restored);
        unreadable
    }

    /// The quotas that saved cells name, by the numbers in the process that saved them.
    pub(super) fn quotas(&self) -> Arc<SavedQuotas> {
        Arc::clone(&self.quotas)
    }

    /// Records that could not be read, those of cells excluded.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Gives the engine the rules for keys that were read last. Rules of a shared store come from there: what another process
    /// has read of them may be older.
    pub fn publish_rules(&self) {
        if self.engine.remote().is_some() {
            return;
        }
        let date = self.engine.date(self.engine.now());
        let in_force = self.rules.iter().filter(|rule| rule.until > date);
        self.engine.set_key_rules(in_force.cloned().collect());
    }

    /// Ends the restoring. Returns how many records could not be read, those of cells excluded, which [`Restorer::restore_cells`] returns.
    pub fn finish(self) -> u64 {
        self.publish_rules();
        self.unreadable
    }

    /// `is_more`: the quotas of the frame before stay.
    fn read_quotas(&mut self, payload: &[u8], is_more: bool) {
        let Some(records) = decoded::<Vec<QuotaRecord>>(payload) else {
            self.unreadable += 1;
            return;
        };
        if !is_more {
            self.quotas = Arc::default();
            self.known_before = std::mem::take(&mut self.known);
        }
        // Cells that wait to be restored keep what they name.
        let mut quotas = SavedQuotas::clone(&self.quotas);
        let mut unknown: Vec<(u32, QuotaIdentity, QuotaSpec)> = Vec::new();
        for record in records {
            let Some(quota) = record.numbers.quota() else {
                self.unreadable += 1;
                continue;
            };
            let QuotaRecord { number, limit, windows, denies_after_crash, .. } = record;
            let budget = self.engine.cell_budget(&limit.as_str().into());
            let windows = WindowLengths::new(windows);
            let spec = QuotaSpec { quota, windows, budget, denies_after_crash };
            let what = (limit, quota, denies_after_crash);
            match self.known_quota(&what, &spec) {
                Some(issued) => {
                    self.known.insert(what, Arc::clone(&issued));
                    quotas.insert(number, issued);
                }
                None => unknown.push((number, what, spec)),
            }
        }
        self.issue(unknown, &mut quotas);
        self.quotas = Arc::new(quotas);
    }

    /// The quota of `spec`, if it has been issued.
    fn known_quota(&self, what: &QuotaIdentity, spec: &QuotaSpec) -> Option<Arc<IssuedQuota>> {
        let known = self.known.get(what).or_else(|| self.known_before.get(what));
        known.filter(|issued| issued.equals(spec)).cloned()
    }

    /// Issues quotas that are not known, those that are equal once.
    fn issue(&mut self, unknown: Vec<(u32, QuotaIdentity, QuotaSpec)>, quotas: &mut SavedQuotas) {
        if unknown.is_empty() {
            return;
        }
        let mut specs: Vec<QuotaSpec> = Vec::new();
        let mut positions: HashMap<QuotaIdentity, usize> = HashMap::new();
        let mut numbered = Vec::with_capacity(unknown.len());
        for (number, what, spec) in unknown {
            let same = positions.get(&what).copied();
            let position = same.filter(|same| specs[*same].windows == spec.windows);
            let position = position.unwrap_or_else(|| {
                specs.push(spec);
                specs.len() - 1
            });
            positions.insert(what, position);
            numbered.push((number, position));
        }
        let issued = self.engine.exact.embedded.issue_all(specs);
        quotas.extend(numbered.into_iter().map(|(number, at)| (number, Arc::clone(&issued[at]))));
        self.known.extend(positions.into_iter().map(|(what, at)| (what, Arc::clone(&issued[at]))));
    }

    fn read_rules(&mut self, payload: &[u8]) {
        let unreadable;
        (self.rules, unreadable) = read_rules(payload);
        self.unreadable += unreadable;
    }

    fn read_bans(&mut self, payload: &[u8]) {
        match decoded::<Vec<SavedBan>>(payload) {
            Some(bans) => {
                let now = self.engine.now().mono;
                bans.into_iter().for_each(|ban| self.engine.bans.restore(ban, now));
            }
            None => self.unreadable += 1,
        }
    }
}
