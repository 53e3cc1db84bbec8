//! What the engine keeps in a state directory, and gives a successor.
//!
//! The payloads of frames are written here: quotas by number, cells, rules for keys, bans (`saved_records.rs` has their
//! form, `restored_state.rs` reads them). What must always hold: no cell is added before the quota that it names.

use std::sync::Arc;

use super::saved_records::{MORE_QUOTAS, QuotaRecord, RuleRecord, append, encoded};
use super::state::Engine;
use crate::clock::{Stopwatch, TimeMark};
use crate::limit::QuotaNumbers;
use crate::policy::KeyRule;
use crate::state::{FrameKind, FrameSink, GROUPS, StateMetrics, StateSection, StateSource};
use crate::store::{EmbeddedStore, IssuedQuota, SHARDS, SaveBatch, SavedBan, SavedCell};

/// The size from which a payload is closed, in bytes.
const PAYLOAD_BYTES: usize = 256 * 1024;

/// How often quotas are written, one copy behind the other: without them no cell behind them can be read, so one damaged byte must
/// not cost them.
const QUOTA_COPIES: usize = 2;

/// The most bans in one frame: some ten kilobytes.
const MAX_BANS_IN_FRAME: usize = 1_024;

impl Engine {
    /// What has charges saved now that a request waits for.
    pub fn set_save_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.exact.embedded.saves().set_wake(wake);
    }

    /// Waits until everything that is counted now is on the disk, on a thread that may wait. `false`: it is not, after
    /// `patience`.
    pub fn save_within(&self, patience: std::time::Duration) -> bool {
        self.exact.embedded.saves().save_within(patience)
    }

    /// The process ends: the last save follows, and nothing is forwarded that it may not contain.
    pub fn end_saves(&self) {
        self.exact.embedded.saves().end();
    }

    /// Nothing is saved: no request waits for it.
    pub fn set_saves_failing(&self) {
        self.exact.embedded.saves().set_failing();
    }
}

/// Saves what an engine keeps.
pub struct EngineSource {
    pub(super) engine: Arc<Engine>,
    mark: Box<dyn Fn() -> TimeMark + Send>,
    metrics: Arc<StateMetrics>,
    /// The version of the quotas that were written last.
    quotas: Option<u64>,
    /// The last rules that were written.
    rules: Option<Arc<[KeyRule]>>,
    /// The batch that is being written, or was written last.
    batch: SaveBatch,
    /// What others keep in the same directory.
    sections: Vec<Box<dyn StateSection>>,
}

impl EngineSource {
    /// Saves what this engine keeps. From now on its store lists what changes. `mark`: the present instant of its clock.
    pub fn new(
        engine: Arc<Engine>,
        mark: Box<dyn Fn() -> TimeMark + Send>,
        metrics: Arc<StateMetrics>,
    ) -> Self {
        engine.exact.embedded.track_changes();
        engine.bans.track_changes();
        let batch = SaveBatch { number: 0, began: engine.now() };
        let (quotas, rules, sections) = (None, None, Vec::new());
        Self { engine, mark, metrics, quotas, rules, batch, sections }
    }

    /// Saves this too.
    #[must_use]
    pub fn with_section(mut self, section: Box<dyn StateSection>) -> Self {
        self.sections.push(section);
        self
    }

    /// Adds the quotas that cells name, if they are not those that were written last.
    pub(super) fn save_quotas(&mut self, sink: &mut dyn FrameSink) {
        let held = self.engine.exact.embedded.hold_quotas();
        if self.quotas == Some(held.version()) {
            return;
        }
        let payloads = quota_payloads(held.list());
        for _ in 0..QUOTA_COPIES {
            for (index, payload) in payloads.iter().enumerate() {
                let group = if index == 0 { 0 } else { MORE_QUOTAS };
                sink.add(FrameKind::Quotas, group, payload);
            }
        }
        self.quotas = Some(held.version());
    }

    pub(super) fn save_rules(&mut self, sink: &mut dyn FrameSink) {
        let rules = self.engine.key_rules();
        if self.rules.as_ref().is_some_and(|saved| Arc::ptr_eq(saved, &rules)) {
            return;
        }
        let records: Vec<RuleRecord> = rules.iter().map(RuleRecord::from).collect();
        sink.add(FrameKind::Rules, 0, &encoded(&records));
        self.rules = Some(rules);
    }

    pub(super) fn save_bans(&self, all: bool, sink: &mut dyn FrameSink) {
        let mut bans: Vec<SavedBan> = Vec::new();
        self.engine.bans.save(all, |ban| {
            bans.push(ban);
            if bans.len() >= MAX_BANS_IN_FRAME {
                sink.add(FrameKind::Bans, 0, &encoded(&bans));
                bans.clear();
            }
        });
        if !bans.is_empty() {
            sink.add(FrameKind::Bans, 0, &encoded(&bans));
        }
    }
}

impl StateSource for EngineSource {
    fn mark(&self) -> TimeMark {
        (self.mark)()
    }

    /// In a round, each section comes behind the shards as if it were a further one.
    fn shards(&self) -> usize {
        SHARDS + self.sections.len()
    }

    fn save_changes(&mut self, sink: &mut dyn FrameSink) {
        self.save_changed_cells(sink);
        self.save_bans(false, sink);
        self.save_rules_and_sections(sink);
    }

    fn batch(&self) -> u64 {
        self.batch.number
    }

    fn set_saved(&mut self, batch: u64) {
        self.engine.exact.embedded.saves().set_saved(batch);
    }

    fn set_failing(&mut self) {
        self.engine.exact.embedded.saves().set_failing();
    }

    fn save_common(&mut self, sink: &mut dyn FrameSink) {
        (self.quotas, self.rules) = (None, None);
        self.save_quotas(sink);
        self.save_bans(true, sink);
        self.save_rules(sink);
    }

    fn save_shard(&mut self, shard: usize, sink: &mut dyn FrameSink) {
        self.save_all_of(shard, Some(self.batch), sink);
    }
}

impl EngineSource {
    /// Saves the cells that have changed.
    pub(super) fn save_changed_cells(&mut self, sink: &mut dyn FrameSink) {
        self.save_cells(sink, |embedded, shard, batch, save| {
            embedded.take_changed(shard, batch, save);
        });
    }

    /// Adds what has changed that is neither a cell nor a ban.
    pub(super) fn save_rules_and_sections(&mut self, sink: &mut dyn FrameSink) {
        self.save_rules(sink);
        self.sections.iter_mut().for_each(|section| section.save_changes(sink));
    }

    /// Saves the cells of all shards that `take` takes.
    pub(super) fn save_cells(
        &mut self,
        sink: &mut dyn FrameSink,
        take: impl Fn(&EmbeddedStore, usize, SaveBatch, &mut dyn FnMut(SavedCell<'_>)),
    ) {
        let number = self.engine.exact.embedded.saves().begin();
        self.batch = SaveBatch { number, began: self.engine.now() };
        let batch = self.batch;
        // While they are held, no number of a cell that is copied below is given to another quota.
        let _held = self.engine.exact.embedded.hold_quotas();
        let mut groups: Vec<Vec<u8>> = vec![Vec::new(); GROUPS.into()];
        let is_first = self.quotas.is_none();
        for shard in 0..SHARDS {
            let group = group_of(shard);
            let payload = &mut groups[usize::from(group)];
            let (timed, mut is_empty, mut full) = (Stopwatch::start(), true, Vec::new());
            let embedded = &self.engine.exact.embedded;
            take(embedded, shard, batch, &mut |cell| {
                is_empty = false;
                append(payload, cell);
                if payload.len() >= PAYLOAD_BYTES {
                    full.push(std::mem::take(payload));
                }
            });
            if !is_empty {
                self.metrics.record_lock(timed.elapsed().into());
            }
            if !full.is_empty() {
                // Cells come after the quotas that they name. Which those are is known once the cells are copied.
                self.save_quotas(sink);
            }
            full.iter().for_each(|payload| sink.add(FrameKind::Cells, group, payload));
        }
        if groups.iter().any(|payload| !payload.is_empty()) || is_first {
            self.save_quotas(sink);
        }
        for (group, payload) in (0..).zip(&groups).filter(|(_, payload)| !payload.is_empty()) {
            sink.add(FrameKind::Cells, group, payload);
        }
    }

    /// Saves all cells of a shard, or a section behind the shards. `batch`: `None` if the copies are not for the disk.
    pub(super) fn save_all_of(
        &mut self,
        shard: usize,
        batch: Option<SaveBatch>,
        sink: &mut dyn FrameSink,
    ) {
        if let Some(section) = shard.checked_sub(SHARDS) {
            self.sections[section].save_all(sink);
            return;
        }
        let _held = self.engine.exact.embedded.hold_quotas();
        let mut payloads = vec![Vec::new()];
        let timed = Stopwatch::start();
        self.engine.exact.embedded.visit_cells(shard, batch, |cell| {
            if payloads.last().is_some_and(|payload| payload.len() >= PAYLOAD_BYTES) {
                payloads.push(Vec::new());
            }
            if let Some(payload) = payloads.last_mut() {
                append(payload, cell);
            }
        });
        self.metrics.record_lock(timed.elapsed().into());
        if payloads.iter().any(|payload| !payload.is_empty()) {
            self.save_quotas(sink);
        }
        for payload in payloads.iter().filter(|payload| !payload.is_empty()) {
            sink.add(FrameKind::Cells, group_of(shard), payload);
        }
    }
}

/// The payloads of the frames of these quotas, each about as large as a payload of cells: all of them may be more than a
/// frame holds. There is at least one.
fn quota_payloads(quotas: &[Arc<IssuedQuota>]) -> Vec<Vec<u8>> {
    let (mut payloads, mut records, mut bytes) = (Vec::new(), Vec::new(), 0);
    for issued in quotas {
        let record = QuotaRecord {
            number: issued.number(),
            limit: issued.budget().limit().to_string(),
            numbers: QuotaNumbers::from(issued.quota()),
            windows: issued.windows().lengths().to_vec(),
            denies_after_crash: issued.denies_after_crash(),
        };
        bytes += record.max_bytes();
        records.push(record);
        if bytes >= PAYLOAD_BYTES {
            payloads.push(encoded(&records));
            records.clear();
            bytes = 0;
        }
    }
    if !records.is_empty() || payloads.is_empty() {
        payloads.push(encoded(&records));
    }
    payloads
}

/// The group of frames that a shard belongs to.
const fn group_of(shard: usize) -> u8 {
    (shard / (SHARDS / GROUPS as usize)) as u8
}
