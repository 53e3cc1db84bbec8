//! The worker: the one task that owns the queue. It starts a task for each call of what is ready.
//!
//! It does not know what a charge does or what its result is. It never waits for a call, so that charges on other
//! cells go on, and it holds no lock while it works on the queue.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::batcher::{Batcher, WorkerEvent};
use super::queue::Queue;
use crate::clock::Nanos;

/// Maximum calls that are away at once to one server: enough that no charge waits for a server that is only distant,
/// few enough that charges that wait for a busy server share a call.
const MAX_CALLS_AWAY: u32 = 16;

/// The same for all servers of a Cluster together. A call carries charges of one slot there, so more calls are needed.
/// A server that hangs can hold all of them for one timeout; then it counts as away.
const MAX_CALLS_AWAY_CLUSTER: u32 = 256;

/// The owner of the queue.
pub(super) struct Worker {
    batcher: Arc<Batcher>,
    queue: Queue,
    calls_away: u32,
    max_calls_away: u32,
    /// Events that were taken from the batcher; empty between two turns of the loop.
    events: Vec<WorkerEvent>,
}

impl Worker {
    pub(super) fn new(batcher: Arc<Batcher>) -> Self {
        // So even the calls of a single cell can reach the maximum within one timeout.
        let linger = batcher.timeout / MAX_CALLS_AWAY;
        let max_calls_away =
            if batcher.has_slots { MAX_CALLS_AWAY_CLUSTER } else { MAX_CALLS_AWAY };
        let queue = Queue::new(linger.into());
        Self { batcher, queue, calls_away: 0, max_calls_away, events: Vec::new() }
    }

    /// Serves the queue until the batcher is closed and no charge is left.
    pub(super) async fn run(mut self) {
        let batcher = Arc::clone(&self.batcher);
        let mut changed = batcher.transport.readiness_changed();
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let mut timer_at: Option<Nanos> = None;
        loop {
            // Polled before readiness is read, so that no change is missed.
            while poll_fn(|context| Poll::Ready(changed.as_mut().poll(context).is_ready())).await {
                changed = batcher.transport.readiness_changed();
                self.queue.on_readiness_changed(self.now(), &*batcher);
            }
            let now = self.now();
            self.take_events(now);
            if self.queue.next_timer().is_some_and(|next| next <= now) {
                self.queue.on_timer(now, &*batcher);
            }
            self.start_calls(now);
            if batcher.is_closed() && self.queue.is_empty() && self.calls_away == 0 {
                return;
            }
            if let Some(next) = self.queue.next_timer()
                && timer_at.is_none_or(|at| next < at)
            {
                timer.set(tokio::time::sleep(next.saturating_sub(now).into()));
                timer_at = Some(next);
            }
            tokio::select! {
                biased;
                () = batcher.woken() => {}
                () = &mut changed => {
                    changed = batcher.transport.readiness_changed();
                    self.queue.on_readiness_changed(self.now(), &*batcher);
                }
                () = &mut timer, if timer_at.is_some() => timer_at = None,
            }
        }
    }

    fn now(&self) -> Nanos {
        self.batcher.clock.now().mono
    }

    fn take_events(&mut self, now: Nanos) {
        let batcher = &*self.batcher;
        batcher.swap_events(&mut self.events);
        for event in self.events.drain(..) {
            match event {
                WorkerEvent::Queue(pending) => {
                    self.queue.push(pending, |cell| batcher.slot(cell), now, batcher);
                }
                WorkerEvent::CallEnded(ended) => {
                    self.calls_away -= 1;
                    batcher.count_finished(ended.charges - ended.returned.len());
                    self.queue.on_call_ended(ended, now, batcher);
                }
            }
        }
    }

    fn start_calls(&mut self, now: Nanos) {
        if self.queue.is_empty() {
            return;
        }
        while self.calls_away < self.max_calls_away
            && let Some(batch) = self.queue.next_batch(now, &*self.batcher)
        {
            self.calls_away += 1;
            tokio::spawn(Arc::clone(&self.batcher).run_call(batch));
        }
    }
}
