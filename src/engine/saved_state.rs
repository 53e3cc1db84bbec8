//! What the engine keeps in a state directory, and how it comes back.
//!
//! The payloads of frames are written and read here: quotas by number, cells, rules for keys, bans (`saved_records.rs` has
//! their form). A payload comes from outside, so what no engine can have written is left out and counted. What must
//! always hold: a cell comes back under the quota that wrote it, with all its units; the frames of one group of shards
//! are restored in their order.

use std::sync::Arc;

use super::saved_records::{
    QuotaRecord, RestoredCell, RuleRecord, append, decoded, encoded, read_cells,
};
use super::state::Engine;
use crate::clock::{Stopwatch, TimeMark};
use crate::limit::{QuotaNumbers, WindowLengths};
use crate::policy::KeyRule;
use crate::state::{
    FrameKind, FrameSink, GROUPS, RestoredFrame, StateMetrics, StateSection, StateSource,
};
use crate::store::{EmbeddedStore, IssuedQuota, QuotaSpec, SHARDS, SaveBatch, SavedBan, SavedCell};
use hashbrown::HashMap;

/// The size from which a payload is closed, in bytes.
const PAYLOAD_BYTES: usize = 256 * 1024;

impl Engine {
    /// What has charges saved now that a request waits for.
    pub fn set_save_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.exact.embedded.saves().set_wake(wake);
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
    /// The payload of the last quotas that were written.
    quotas: Vec<u8>,
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
        let (quotas, rules, sections) = (Vec::new(), None, Vec::new());
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
        let record = |issued: &Arc<IssuedQuota>| QuotaRecord {
            number: issued.number(),
            limit: issued.budget().limit().to_string(),
            numbers: QuotaNumbers::from(issued.quota()),
            windows: issued.windows().lengths().to_vec(),
            denies_after_crash: issued.denies_after_crash(),
        };
        let records: Vec<QuotaRecord> = held.iter().map(record).collect();
        let payload = encoded(&records);
        if payload != self.quotas {
            sink.add(FrameKind::Quotas, 0, &payload);
            self.quotas = payload;
        }
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
            if bans.len() >= 1_024 {
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
        self.save_cells(sink, |embedded, shard, batch, save| {
            embedded.take_changed(shard, batch, save);
        });
        self.save_other_changes(sink);
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
        (self.quotas, self.rules) = (Vec::new(), None);
        self.save_quotas(sink);
        self.save_bans(true, sink);
        self.save_rules(sink);
    }

    fn save_shard(&mut self, shard: usize, sink: &mut dyn FrameSink) {
        self.save_all_of(shard, Some(self.batch), sink);
    }
}

impl EngineSource {
    /// Adds what has changed that is not in a cell.
    pub(super) fn save_other_changes(&mut self, sink: &mut dyn FrameSink) {
        self.save_bans(false, sink);
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
        let mut full: Vec<(usize, Vec<u8>)> = Vec::new();
        let is_first = self.quotas.is_empty();
        for shard in 0..SHARDS {
            let payload = &mut groups[usize::from(group_of(shard))];
            let timed = Stopwatch::start();
            let before = payload.len();
            let embedded = &self.engine.exact.embedded;
            take(embedded, shard, batch, &mut |cell| append(payload, cell));
            if payload.len() > before {
                self.metrics.record_lock(timed.elapsed().into());
            }
            if payload.len() >= PAYLOAD_BYTES {
                full.push((shard, std::mem::take(payload)));
                // What names a quota must stand behind it, and only cells that are copied can name it.
                self.save_quotas(sink);
                for (shard, payload) in full.drain(..) {
                    sink.add(FrameKind::Cells, group_of(shard), &payload);
                }
            }
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

/// The group of frames that a shard belongs to.
const fn group_of(shard: usize) -> u8 {
    (shard / (SHARDS / GROUPS as usize)) as u8
}

/// The quotas of saved cells, by the numbers that the cells name.
pub(super) type SavedQuotas = HashMap<u32, Arc<IssuedQuota>>;

/// Puts back what was saved. Frames of quotas, rules and bans are read in order; those of cells may be read by several
/// threads, one group by one thread at a time.
pub struct Restorer {
    engine: Arc<Engine>,
    quotas: Arc<SavedQuotas>,
    rules: Vec<KeyRule>,
    /// Records that could not be read.
    unreadable: u64,
}

/// Cells of one group, with the quotas that they name.
pub struct SavedCells {
    payload: Vec<u8>,
    quotas: Arc<SavedQuotas>,
    /// Whether the process that wrote them ended in an orderly way.
    is_settled: bool,
}

impl Restorer {
    /// Restores into an engine that has decided nothing yet.
    pub fn new(engine: Arc<Engine>) -> Self {
        // What is taken for spent after a crash has to be saved as such.
        engine.exact.embedded.track_changes();
        Self { engine, quotas: Arc::default(), rules: Vec::new(), unreadable: 0 }
    }

    /// Restores a frame, or returns the cells that it holds.
    pub fn read(&mut self, frame: RestoredFrame) -> Option<SavedCells> {
        let RestoredFrame { kind, payload, is_settled, .. } = frame;
        match kind {
            FrameKind::Cells => {
                return Some(SavedCells { payload, quotas: Arc::clone(&self.quotas), is_settled });
            }
            FrameKind::Quotas => self.read_quotas(&payload),
            FrameKind::Rules => self.read_rules(&payload),
            FrameKind::Bans => self.read_bans(&payload),
            FrameKind::Start
            | FrameKind::Time
            | FrameKind::History
            | FrameKind::Complete
            | FrameKind::CleanStop
            | FrameKind::Confirm
            | FrameKind::InFlight => {}
        }
        None
    }

    /// Restores cells. Returns how many records could not be read.
    pub fn restore_cells(engine: &Engine, metrics: &StateMetrics, cells: &SavedCells) -> u64 {
        let (now, mut restored, mut unreadable) = (engine.now(), 0, 0);
        for record in read_cells(&cells.payload) {
            let Some(RestoredCell { key, cell, grant }) = record else {
                unreadable += 1;
                continue;
            };
            // A process that ended in an orderly way has saved what it spent.
            let grant = grant.filter(|_| !cells.is_settled);
            let Some((number, cell)) = cell else {
                engine.exact.embedded.restore_absence(key, now);
                continue;
            };
            match cells
                .quotas
                .get(&number)
                .filter(|issued| issued.quota().could_have_written(&cell))
            {
                Some(issued) => {
                    let embedded = &engine.exact.embedded;
                    restored += u64::from(embedded.restore_cell(key, issued, cell, grant, now));
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

    /// Ends the restoring. Returns how many records could not be read, those given excluded.
    pub fn finish(self) -> u64 {
        self.publish_rules();
        self.unreadable
    }

    fn read_quotas(&mut self, payload: &[u8]) {
        let Some(records) = decoded::<Vec<QuotaRecord>>(payload) else {
            self.unreadable += 1;
            return;
        };
        let mut quotas = SavedQuotas::new();
        for record in records {
            let Some(quota) = record.numbers.quota() else {
                self.unreadable += 1;
                continue;
            };
            let spec = QuotaSpec {
                quota,
                windows: WindowLengths::new(record.windows),
                budget: self.engine.cell_budget(&record.limit.into()),
                denies_after_crash: record.denies_after_crash,
            };
            let known = self.quotas.values().find(|issued| issued.equals(&spec)).cloned();
            let issued = known.unwrap_or_else(|| self.engine.exact.embedded.issue(spec, None));
            quotas.insert(record.number, issued);
        }
        self.quotas = Arc::new(quotas);
    }

    fn read_rules(&mut self, payload: &[u8]) {
        match decoded::<Vec<RuleRecord>>(payload) {
            Some(records) => {
                self.rules = records.into_iter().filter_map(RuleRecord::rule).collect();
            }
            None => self.unreadable += 1,
        }
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
