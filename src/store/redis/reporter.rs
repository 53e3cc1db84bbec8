//! Reports unreported usage to the store: soon after the store has come back, and otherwise every second, because
//! single calls fail too. It runs in a task of its own; no request waits for it.
//!
//! What always holds: a report that may have been executed is never sent again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;

use super::batcher::Batcher;
use super::charge::CellCharge;
use super::failure::StoreFailure;
use super::pending::ChargeFuture;
use super::shared_store::SharedStore;
use super::transport::{Readiness, StoreTransport};
use super::usage_report::{ReportOutcome, UsageReport};
use crate::clock::Nanos;

/// The time between two reports while the store answers.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// All nodes notice at once that a store is back. Each waits a random part of this time before it reports.
const JITTER: Duration = Duration::from_millis(500);

/// Reports per round: few enough that requests find room in the queue.
const MAX_REPORTS: usize = 1_024;

/// The longest time that a report may take, queue included.
const REPORT_TIMEOUT: Nanos = Nanos::SECOND;

/// Reports until the store is dropped. `seed` seeds the jitter.
pub(super) async fn run(store: Weak<SharedStore>, transport: Arc<dyn StoreTransport>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut was_away = false;
    loop {
        wait_for_next_round(&*transport, &mut was_away).await;
        if was_away && transport.is_up() {
            was_away = false;
            tokio::time::sleep(JITTER.mul_f64(random.f64())).await;
        }
        let Some(store) = store.upgrade() else {
            return;
        };
        flush(store.batcher()).await;
    }
}

/// Waits until the store has come back, and for [`REPORT_EVERY`] at most.
async fn wait_for_next_round(transport: &dyn StoreTransport, was_away: &mut bool) {
    let tick = tokio::time::sleep(REPORT_EVERY);
    tokio::pin!(tick);
    loop {
        tokio::select! {
            biased;
            () = transport.readiness_changed() => {
                let is_up = transport.is_up();
                if is_up && *was_away {
                    return;
                }
                *was_away |= !is_up;
            }
            () = &mut tick => return,
        }
    }
}

/// The charges of one report, in the queue of the batcher.
type SubmittedCharges = SmallVec<[Result<ChargeFuture, StoreFailure>; 2]>;

/// What became of a charge that reports.
async fn outcome(waiting: Result<ChargeFuture, StoreFailure>) -> ReportOutcome {
    let result = match waiting {
        Ok(waiting) => waiting.await,
        Err(failure) => Err(failure),
    };
    match result {
        Ok(reply) => ReportOutcome::Charged { at: reply.at, units: reply.reported },
        Err(failure) if failure.may_have_charged() => ReportOutcome::Unknown,
        Err(_) => ReportOutcome::NotExecuted,
    }
}

/// Reports all usage that can be sent now. Reports that were certainly not executed are put back; those that may
/// have been executed are dropped.
async fn flush(batcher: &Batcher) {
    let can_be_sent = |charge: &CellCharge| {
        let slot = batcher.slot(charge.cell_name());
        batcher.transport.readiness(slot) == Readiness::Ready
    };
    while !batcher.unreported.is_empty() {
        let now = batcher.clock.now();
        let reports = batcher.unreported.take(MAX_REPORTS, now, can_be_sent);
        if reports.is_empty() {
            return;
        }
        let deadline = now.mono.saturating_add(REPORT_TIMEOUT);
        let submitted: Vec<_> = reports
            .into_iter()
            .map(|UsageReport { item, charges }| {
                let submit = |charge| batcher.submit(charge, deadline);
                (item, charges.into_iter().map(submit).collect::<SubmittedCharges>())
            })
            .collect();
        let mut all_executed = true;
        for (item, charges) in submitted {
            let mut outcomes: SmallVec<[ReportOutcome; 2]> = SmallVec::new();
            for waiting in charges {
                outcomes.push(outcome(waiting).await);
            }
            let is_executed = |outcome: &_| matches!(outcome, ReportOutcome::Charged { .. });
            all_executed &= outcomes.iter().all(is_executed);
            let now = batcher.clock.now();
            let refunds = batcher.unreported.conclude(item, &outcomes, now, &batcher.metrics);
            batcher.send_refunds(refunds);
        }
        if !all_executed {
            return;
        }
    }
}
