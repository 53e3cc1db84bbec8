//! What an engine gives a successor, and how the successor takes it up.
//!
//! Cells, quotas, bans and rules have the form that they have in a state directory (`saved_state.rs`). With them go the cells
//! of the confirm table and the requests in flight. What must always hold: a shard's cells and an in-flight count change hands
//! in the instant in which their last copy is made, so nothing is charged between the copy and the switch.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fleet::Identity;
use super::generation::Generation;
use super::loaded_limit::TierState;
use super::predecessor::Predecessor;
use super::restored_state::Restorer;
use super::saved_records::encoded;
use super::saved_state::EngineSource;
use super::state::Engine;
use super::succession::{HandedEvent, HandedKey, Successor, Told};
use crate::clock::Nanos;
use crate::estimator::{EstimateLimit, FleetCounts, MovedCell};
use crate::state::{FrameKind, FrameSink};
use crate::store::{InFlightCounts, ReleaseHook};

/// How long the switch waits for the store to answer requests that were charged under estimate limits: longer than stores take,
/// and much shorter than a request may wait for the switch. What is not settled then is told the successor when it is.
const TENTATIVE_PATIENCE_MILLIS: u32 = 200;

/// Records in one frame.
const FRAME_RECORDS: usize = 4_096;

/// The requests in flight of one limit, by key.
#[derive(Serialize, Deserialize)]
struct InFlightRecord {
    limit: String,
    held: Vec<(HandedKey, u64)>,
}

/// Cells of the confirm table.
#[derive(Serialize, Deserialize)]
struct ConfirmRecord {
    /// The limits by the numbers that the cells name.
    limits: Vec<(u8, String)>,
    cells: Vec<MovedCell>,
}

/// Which node of a fleet the process is.
#[derive(Serialize, Deserialize)]
struct FleetRecord {
    identity: Identity,
    /// Bounds of the shared time less the monotonic time, by which the cells are dated.
    time: Option<(Nanos, Nanos)>,
    /// The number of the latest change of operators that the cells are without.
    made_changes: u64,
}

impl ConfirmRecord {
    /// The cells, with the numbers that their limits have in another process, and whether there is such a limit. Those of no limit
    /// there keep theirs.
    fn renumbered(self, generation: &Generation) -> impl Iterator<Item = (MovedCell, bool)> {
        let own = generation.estimate_numbers();
        let number_of = |name: &str| own.iter().find(|(_, own)| own == name).map(|(here, _)| *here);
        let limits = self.limits.into_iter();
        let numbers: Vec<(u8, u8)> =
            limits.filter_map(|(there, name)| Some((there, number_of(&name)?))).collect();
        self.cells.into_iter().map(move |cell| {
            let found = numbers.iter().find(|(there, _)| *there == cell.limit());
            match found {
                Some((_, here)) => (cell.with_limit(*here), true),
                None => (cell, false),
            }
        })
    }
}

impl EngineSource {
    /// Copies all cells of a shard, or a section behind the shards, for a successor.
    pub fn copy_shard(&mut self, shard: usize, sink: &mut dyn FrameSink) {
        self.save_all_of(shard, None, sink);
    }

    /// Copies what changed since the last copy, and makes everything that is counted exactly the successor's in the same
    /// instant: requests that need it wait until [`Engine::set_successor`] or [`Engine::take_back`].
    ///
    /// With a shared store the cells stay: they only count what this node admits while that store fails. Requests that wait for
    /// its answer are waited for, so this blocks its thread for up to [`TENTATIVE_PATIENCE_MILLIS`].
    pub fn hand_over(&mut self, generation: &Generation, sink: &mut dyn FrameSink) {
        let engine = Arc::clone(&self.engine);
        // Before everything that is copied: what is forgotten meanwhile is forgotten there once more.
        let made_changes = engine.heard_changes();
        engine.fleet().tentative.begin_switch();
        let denials = generation.denial_numbers();
        let is_denial = |limit| denials.contains(&limit);
        // From now on the successor is told of denials, so those before are copied at once, and not again below.
        let mut cells = engine.succession.begin_switch(|| {
            self.save_bans(false, sink);
            engine.confirm.moved_cells(is_denial)
        });
        self.save_quotas(sink);
        for (limit, counts) in generation.in_flight_counts() {
            engine.hand_over_in_flight(limit, &counts, sink);
        }
        match engine.remote() {
            Some(_) => self.save_changed_cells(sink),
            None => self.save_cells(sink, |embedded, shard, batch, save| {
                embedded.hand_over(shard, batch, save);
            }),
        }
        self.save_rules_and_sections(sink);
        engine.fleet().tentative.wait_until_none(TENTATIVE_PATIENCE_MILLIS);
        // Before the cells: what the node published is forgotten before its counts are taken up.
        let fleet = FleetRecord {
            identity: engine.fleet().identity.get(),
            time: engine.confirm_table().clock().bounds(),
            made_changes,
        };
        sink.add(FrameKind::Fleet, 0, &encoded(&fleet));
        let limits = generation.estimate_numbers();
        cells.extend(engine.settled_cells().into_iter().filter(|cell| !is_denial(cell.limit())));
        for cells in cells.chunks(FRAME_RECORDS) {
            let record = ConfirmRecord { limits: limits.clone(), cells: cells.to_vec() };
            sink.add(FrameKind::Confirm, 0, &encoded(&record));
        }
    }
}

impl Engine {
    /// Everything that was handed over is counted by this engine from now on.
    pub fn set_successor(&self, successor: Arc<dyn Successor>) {
        self.succession.set_successor(successor);
    }

    /// Requests that were settled here although a successor counts, because it did not answer.
    pub fn unanswered(&self) -> u64 {
        self.succession.unanswered()
    }

    fn hand_over_in_flight(
        self: &Arc<Self>,
        limit: &Arc<str>,
        counts: &Arc<InFlightCounts>,
        sink: &mut dyn FrameSink,
    ) {
        self.handed_in_flight.lock().push(Arc::clone(counts));
        let (engine, name) = (Arc::downgrade(self), limit.to_string());
        let ended = ReleaseHook(Arc::new(move |key, cost| {
            if let Some(engine) = engine.upgrade() {
                let event =
                    HandedEvent::Ended { limit: name.clone(), key: HandedKey::of(key), cost };
                // Here, the permit has already been counted out.
                let (Told::There | Told::Here) = engine.succession.tell(event);
            }
        }));
        let mut held = Vec::new();
        counts.hand_over(&ended, |key, count| held.push((HandedKey::of(key), count)));
        for held in held.chunks(FRAME_RECORDS) {
            let record = InFlightRecord { limit: limit.to_string(), held: held.to_vec() };
            sink.add(FrameKind::InFlight, 0, &encoded(&record));
        }
    }
}

impl Restorer {
    /// Takes up what a process counts that ends now, and goes on to hear of it. `only_successor`: the payloads that no state
    /// directory has. Returns how many records could not be read, and those of no limit of `generation`.
    pub fn take_up(
        self,
        engine: &Arc<Engine>,
        generation: &Generation,
        only_successor: &[(FrameKind, Vec<u8>)],
    ) -> (Predecessor, u64) {
        let predecessor = Predecessor::new(Arc::clone(engine), self.quotas());
        let mut unreadable = self.finish();
        let mut made_changes: Option<u64> = None;
        let mut windows: HashSet<(u8, Nanos)> = HashSet::new();
        for (kind, payload) in only_successor {
            let is_read = match kind {
                FrameKind::Fleet => postcard::from_bytes::<FleetRecord>(payload).map(|record| {
                    made_changes = Some(record.made_changes);
                    engine.become_node(generation, record);
                }),
                FrameKind::Confirm => {
                    postcard::from_bytes::<ConfirmRecord>(payload).map(|record| {
                        for (cell, has_limit) in record.renumbered(generation) {
                            if has_limit {
                                windows.insert((cell.limit(), cell.period()));
                            }
                            // A cell for which there is no room refuses nobody.
                            let _is_adopted = engine.confirm.adopt(&cell);
                        }
                    })
                }
                FrameKind::InFlight => postcard::from_bytes::<InFlightRecord>(payload).map(
                    |InFlightRecord { limit, held }| {
                        for (key, count) in held {
                            predecessor.hold(generation, &limit, key, count);
                        }
                    },
                ),
                _ => Ok(()),
            };
            unreadable += u64::from(is_read.is_err());
        }
        for (number, period) in windows {
            // As after a reload: a key that comes much later is not refused for what it sent in longer windows.
            let mut estimates = generation.estimates();
            if let Some(estimate) = estimates.find(|estimate| estimate.number() == number) {
                estimate.convert(&engine.confirm, period, engine.now());
            }
        }
        if let Some(made_changes) = made_changes {
            // Once more behind the cells: what this process has forgotten meanwhile, it has not forgotten in them.
            engine.set_heard_changes(made_changes);
        }
        (predecessor, unreadable)
    }
}

/// What the counts of keys without room are called, in windows of one length. No limit has such a name.
fn overflow_name(limit: &str, what: &str, sketch: &EstimateLimit) -> String {
    format!("{limit}\0{what}\0{}", sketch.rate().period().get())
}

/// What the counts of the denials under a limit are called. No limit has such a name.
fn denials_name(limit: &str) -> String {
    format!("{limit}\0denials")
}

impl Engine {
    /// The cells of the confirm table, without units that a shared store may still have taken back.
    fn settled_cells(&self) -> Vec<MovedCell> {
        // Before the cells: what is settled meanwhile is in them or not, but never too much.
        let tentative = self.fleet().tentative.leave_out();
        let mut cells = self.confirm.moved_cells(|_| true);
        for cell in cells.iter_mut().filter(|_| !tentative.is_empty()) {
            if let Some(units) = tentative.get(&cell.key()) {
                *cell = cell.clone().without(*units);
            }
        }
        cells
    }

    /// Becomes the node that the process before was. Its time is this one's: both continue one monotonic time.
    fn become_node(&self, generation: &Generation, record: FleetRecord) {
        if let Some((earliest, latest)) = record.time {
            self.confirm.clock().set(earliest, latest);
        }
        self.set_heard_changes(record.made_changes);
        self.fleet().identity.replace(record.identity, || {
            let views = generation.estimates().filter_map(|estimate| estimate.fleet());
            views.for_each(|view| view.replace(FleetCounts::default(), u64::MAX));
        });
    }
}

impl Generation {
    /// The estimate limits, by the numbers that lists know them by.
    fn estimate_numbers(&self) -> Vec<(u8, String)> {
        let mut numbers = Vec::new();
        for (index, limit) in self.policy().indexed_limits() {
            let loaded = self.loaded(index);
            if let TierState::Estimate(estimate) = &loaded.state {
                numbers.push((estimate.number(), limit.name.to_string()));
            }
            if let Some(denials) = &loaded.fleet_denials {
                numbers.push((denials.counts().number(), denials_name(&limit.name)));
            }
            if let TierState::Exact(exact) = &loaded.state {
                let candidate =
                    exact.candidate_overflow.iter().map(|overflow| ("candidate", overflow));
                for (what, overflow) in candidate.chain([("own", &exact.overflow)]) {
                    let name = |sketch: &EstimateLimit| overflow_name(&limit.name, what, sketch);
                    numbers
                        .extend(overflow.sketches().map(|sketch| (sketch.number(), name(sketch))));
                }
            }
        }
        numbers
    }

    /// The numbers of what counts denials.
    fn denial_numbers(&self) -> Vec<u8> {
        let limits = self.policy().indexed_limits();
        let denials = limits.filter_map(|(index, _)| self.loaded(index).fleet_denials.as_ref());
        denials.map(|denials| denials.counts().number()).collect()
    }

    /// The counts of the limits of requests in flight.
    fn in_flight_counts(&self) -> impl Iterator<Item = (&Arc<str>, Arc<InFlightCounts>)> {
        self.policy().indexed_limits().filter_map(|(index, limit)| {
            match &self.loaded(index).state {
                TierState::InFlight { table, .. } => Some((&limit.name, Arc::clone(table))),
                TierState::Exact(_) | TierState::Estimate(_) => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, ManualClock};
    use crate::limit::Rate;
    use crate::policy::{KeyHash, KeySecret};

    fn engine(clock: &Arc<ManualClock>) -> Engine {
        Engine::new(Arc::clone(clock) as _, KeySecret::new([7; 16]))
    }

    #[test]
    fn counts_of_keys_without_room_go_over_by_the_name_of_their_limit() {
        let yaml = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { site: { servers: [127.0.0.1:2] } }
store: { redis: { url: \"redis://127.0.0.1:3\" } }
limits:
  writes: { tier: exact, rate: 9/1m, key: client_ip, when_full: estimate, scope: fleet }
  pages: { tier: estimate, rate: 9/1m, key: client_ip }
routes: [{ name: site, origin: site, limits: [writes, pages] }]
";
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_000)));
        let generation = |engine: &Engine| {
            let loaded = crate::config::read_text(yaml, "", std::path::Path::new("")).unwrap();
            engine.generation(loaded.config.policy, None).0
        };
        let [old, new] = [(); 2].map(|()| engine(&clock));
        let [from, to] = [&old, &new].map(generation);
        let sketch_of = |generation: &Generation| {
            let mut numbers = generation.estimate_numbers().into_iter();
            numbers.find(|(_, name)| name.starts_with("writes\0own\0")).unwrap().0
        };
        let sketch = from.estimates().find(|sketch| sketch.number() == sketch_of(&from)).unwrap();
        let _receipt = sketch.debit(&old.confirm, KeyHash { high: 1, low: 2 }, 9, clock.now());
        let record = ConfirmRecord { limits: from.estimate_numbers(), cells: old.settled_cells() };
        let numbers: Vec<u8> = record.renumbered(&to).map(|(cell, _)| cell.limit()).collect();
        assert_eq!(numbers, [sketch_of(&to)]);
        assert_ne!(sketch_of(&to), sketch_of(&from), "or this shows nothing");
    }

    #[test]
    fn units_that_may_be_taken_back_do_not_go_over() {
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_000)));
        let engine = engine(&clock);
        let limit =
            EstimateLimit::new(Rate::new(9, Nanos::from_secs(60)).unwrap(), 1_000, clock.now());
        let key = KeyHash { high: 1, low: 2 };
        let held = engine.fleet().tentative.hold(key, 2);
        for _ in 0..5 {
            let _ = limit.debit(&engine.confirm, key, 1, clock.now());
        }
        let moved_remaining = || {
            let successor = crate::estimator::ConfirmTable::default();
            assert!(engine.settled_cells().iter().all(|cell| successor.adopt(cell)));
            limit.judge(&successor, key, clock.now()).remaining
        };
        let unreduced = limit.judge(&engine.confirm, key, clock.now()).remaining;
        assert_eq!(moved_remaining(), unreduced + 2);
        engine.fleet().tentative.wait_until_none(1);
        drop(held);
        assert_eq!(moved_remaining(), unreduced);
    }
}
