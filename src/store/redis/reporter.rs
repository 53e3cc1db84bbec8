//! Reports to the store what it does not know yet: soon after it is back, and otherwise every
//! second, so that single failures are reported too.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::SharedStore;
use super::batcher::Batcher;
use super::transport::{Readiness, StoreTransport};
use crate::clock::Nanos;

/// Between two reports while the store answers.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// All nodes of a site find a store back at once: each waits up to this before it reports.
const JITTER: Duration = Duration::from_millis(500);

/// Items of one round: few enough that requests find room in the queue.
const MAX_REPORTS: usize = 1_024;

/// How long a round may take, queue included.
const REPORT_TIMEOUT: Nanos = Nanos::SECOND;

/// Reports until nobody holds the store any more. `seed`: of the jitter.
pub(super) async fn run(remote: Weak<SharedStore>, transport: Arc<dyn StoreTransport>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut was_away = false;
    loop {
        let tick = tokio::time::sleep(REPORT_EVERY);
        tokio::pin!(tick);
        loop {
            tokio::select! {
                biased;
                () = transport.readiness_changed() => {
                    let is_up = transport.is_up();
                    if is_up && was_away {
                        break;
                    }
                    was_away |= !is_up;
                }
                () = &mut tick => break,
            }
        }
        if was_away && transport.is_up() {
            was_away = false;
            tokio::time::sleep(JITTER.mul_f64(random.f64())).await;
        }
        let Some(remote) = remote.upgrade() else {
            return;
        };
        flush(&remote.batcher).await;
    }
}

/// Reports what can be sent now. What was certainly not executed is put back; what may have been is
/// not reported again.
async fn flush(batcher: &Batcher) {
    let can_be_sent = |spend: &super::CellCharge| {
        let slot = batcher.slot(spend.cell_name());
        batcher.transport.readiness(slot) == Readiness::Ready
    };
    while !batcher.unreported.is_empty() {
        let now = batcher.clock.now();
        let items = batcher.unreported.take(MAX_REPORTS, now, can_be_sent);
        if items.is_empty() {
            return;
        }
        let deadline = now.mono.saturating_add(REPORT_TIMEOUT);
        let submitted: Vec<_> = items
            .into_iter()
            .map(|(item, charge)| (item, batcher.submit(charge, deadline)))
            .collect();
        let mut all_executed = true;
        for (item, waiting) in submitted {
            let outcome = match waiting {
                Ok(waiting) => waiting.await,
                Err(failure) => Err(failure),
            };
            if let Err(failure) = outcome {
                all_executed = false;
                if !failure.may_have_charged() {
                    let now = batcher.clock.now();
                    batcher.unreported.put_back(item, now, &batcher.metrics);
                }
            }
        }
        if !all_executed {
            return;
        }
    }
}
