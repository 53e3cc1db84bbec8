//! Frees memory when it runs short: cuts connections whose clients do not read, and closes idle connections.
//!
//! While the budget is nearly used up, it checks every [`TICK`] which connections would need longer than a second for
//! what waits, and cuts some of them ([`victims`](super::victims)). Idle connections of the clients that hold most
//! are closed if that does not free enough, and instead of it while the connections of one client probably hold more
//! than waits for any other client. It knows nothing of HTTP: a connection that is cut ends its waiting responses
//! itself. What must always hold: while half of the budget is free, no connection is cut.

use std::sync::Arc;

use hashbrown::HashMap;
use tokio::time::MissedTickBehavior;

use super::budget::{MemoryBudget, MemoryKind};
use super::slow_readers::SlowReaders;
use super::victims::{self, CONNECTION_SHARE, ReaderSample, TICK};
use crate::clock::Clock;
use crate::edge::admission::ConnectionPermits;
use crate::edge::policy::{ConnectionPolicy, ShedReason};

/// Cuts slow readers when memory runs short.
pub(crate) struct MemoryWatch {
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) readers: Arc<SlowReaders>,
    pub(crate) policy: Arc<dyn ConnectionPolicy>,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl MemoryWatch {
    /// Checks periodically until the process ends.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut written_before = HashMap::new();
        loop {
            ticks.tick().await;
            self.check(&mut written_before);
        }
    }

    /// Checks once. `written_before`: what each registered connection had written at the last check, by its number.
    fn check(&self, written_before: &mut HashMap<u64, u64>) {
        let (mut total, max) = (self.budget.total(), self.policy.rules().bounds.memory);
        if total <= max / CONNECTION_SHARE {
            written_before.clear();
            return;
        }
        let readers = self.readers.registered();
        let samples: Vec<ReaderSample> = readers
            .iter()
            .map(|reader| {
                let before = written_before.get(&reader.number);
                let written = reader.state.written();
                ReaderSample {
                    client: reader.state.client,
                    waiting: reader.state.waiting(),
                    written: before.map(|before| written.saturating_sub(*before)),
                    is_cut: reader.state.is_cut(),
                }
            })
            .collect();
        let shortage = victims::shortage_begins_at(max);
        let may_wait = total > shortage && total <= victims::shortage_is_urgent_at(max);
        let idle_first = may_wait && self.largest_holder() > victims::largest_waiting(&samples);
        if idle_first && self.shed_idle() {
            total = shortage;
        }
        let mut freed = victims::being_freed(&samples);
        for index in victims::choose(&samples, total, max) {
            readers[index].state.cut();
            self.policy.record_shed(ShedReason::SlowReader);
            freed += samples[index].waiting;
        }
        if total.saturating_sub(freed) > shortage {
            self.shed_idle();
        }
        *written_before =
            readers.iter().map(|reader| (reader.number, reader.state.written())).collect();
    }

    /// An estimate of the bytes held by the client that has most connections: their number times the average size.
    fn largest_holder(&self) -> usize {
        let counts = self.permits.counts();
        let kinds = [MemoryKind::Connections, MemoryKind::Tls, MemoryKind::Streams];
        let bytes = kinds.map(|kind| self.budget.held(kind)).iter().sum::<usize>();
        bytes / counts.total.max(1) * counts.largest_client
    }

    /// Closes idle connections of the clients that hold most. Returns whether there were any.
    fn shed_idle(&self) -> bool {
        let shed = self.permits.shed_idle(self.clock.now().mono);
        (0..shed).for_each(|_| self.policy.record_shed(ShedReason::IdleConnections));
        shed > 0
    }
}
