//! How the process ends.
//!
//! After TERM the process is not ready at once and goes on accepting for `drain`. Then the listeners close, and the
//! process ends as soon as no request is in flight, here and in a process before this one, and a shared store was told of
//! everything. Requests that are in flight when `finish` is over are cut: they are settled and logged as if their clients
//! had left. A process that a successor has replaced stops accepting at once, answers on open connections for `drain`, and
//! ends as after TERM. [`crate::signals`] says which signal requests what.
//! What must always hold: once it is requested, the end comes within `drain`, `finish` and [`SETTLING_TIME`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};

use super::status::Status;
use crate::clock::{Nanos, RoundedSpan};
use crate::edge::Cutoff;
use crate::engine::Engine;
use crate::proxy::Live;
use crate::signals::{OperatorRequests, ShutdownCause};

/// Interval of the check for the last connection.
const IDLE_CHECK: Duration = Duration::from_millis(20);

/// Time for requests to end after the last connection: HTTP/2 streams of a client that left are dropped one after the
/// other, and each is logged.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// Time after `finish` for requests whose connection is cut to be settled and logged, and after the last request for its
/// charges and refunds to reach the store. A store that is away must not keep the process running.
pub(crate) const SETTLING_TIME: Duration = Duration::from_secs(1);

/// Time for a shared store that answers to be told what was admitted and banned while it did not: more than a round of reports
/// and one of bans. It ends with `finish`.
const TELLING_TIME: Duration = Duration::from_secs(3);

/// Ends the process in an orderly way.
pub struct Lifecycle {
    /// What the operator requested.
    pub requests: Arc<OperatorRequests>,
    /// Readiness, which ends when the shutdown begins.
    pub status: Arc<Status>,
    /// The configuration in force, which says how long draining and finishing may take.
    pub live: Arc<ArcSwap<Live>>,
    /// Set when connections are to close after their response.
    pub leaving: Arc<AtomicBool>,
    /// Open connections.
    pub connections: Arc<AtomicUsize>,
    /// Cuts the connections that are open when `finish` is over.
    pub(crate) cutoff: Arc<Cutoff>,
    /// Charges, and corrects charges when answers end.
    pub engine: Arc<Engine>,
    /// Whether a process before this one still serves requests, which this one counts.
    pub has_predecessor: Arc<dyn Fn() -> bool + Send + Sync>,
}

#[async_trait]
impl ShutdownSignalWatch for Lifecycle {
    /// Returns when the listeners are to be closed.
    async fn recv(&self) -> ShutdownSignal {
        let cause = self.requests.until_shutdown().await;
        self.status.set_ready(false);
        self.leaving.store(true, Ordering::Relaxed);
        let bounds = self.live.load().bounds().clone();
        match cause {
            ShutdownCause::Replaced => {
                log::info!("a successor accepts; connections end with their next answer");
                // Closing a connection while a request is on its way to it would lose that request.
                let _ = tokio::time::timeout(bounds.drain, self.until_idle()).await;
            }
            ShutdownCause::Term => {
                super::supervisor::stopping();
                let drain = RoundedSpan(bounds.drain.into());
                log::info!("TERM: not ready; accepting for {drain} more");
                tokio::time::sleep(bounds.drain).await;
            }
            // Whoever exits ends the process, within the time of the last save.
            ShutdownCause::Exit => return ShutdownSignal::GracefulTerminate,
        }
        self.end_when_idle(bounds.finish, cause == ShutdownCause::Replaced);
        ShutdownSignal::GracefulTerminate
    }
}

impl Lifecycle {
    async fn until_idle(&self) {
        while self.connections.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(IDLE_CHECK).await;
        }
    }

    /// Starts a thread that ends the process when the last connection has ended, or `finish` is over. The framework would
    /// sleep for a fixed time instead.
    fn end_when_idle(&self, finish: Duration, is_replaced: bool) {
        let ending = ShutdownWait {
            requests: Arc::clone(&self.requests),
            live: Arc::clone(&self.live),
            connections: Arc::clone(&self.connections),
            cutoff: Arc::clone(&self.cutoff),
            engine: Arc::clone(&self.engine),
            has_predecessor: Arc::clone(&self.has_predecessor),
            is_replaced,
        };
        log::info!("closing the listeners; finishing {} connections", ending.open_connections());
        let thread = std::thread::Builder::new().name("finish".to_owned());
        if thread.spawn(move || ending.run(finish)).is_err() {
            self.requests.exit(0);
        }
    }
}

/// The end of the process once its listeners close.
struct ShutdownWait {
    requests: Arc<OperatorRequests>,
    live: Arc<ArcSwap<Live>>,
    connections: Arc<AtomicUsize>,
    cutoff: Arc<Cutoff>,
    engine: Arc<Engine>,
    has_predecessor: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether a successor counts, which does not know what the store was not told of.
    is_replaced: bool,
}

impl ShutdownWait {
    fn run(&self, finish: Duration) {
        // Before the first look: a connection that arrived while the listeners close must be accepted and counted.
        std::thread::sleep(IDLE_CHECK);
        let until = self.deadline(finish);
        let is_idle = self.wait(until, || self.open_connections() == 0);
        // What it is charged later would be in no directory.
        if !self.wait(until, || !(self.has_predecessor)()) {
            log::warn!(
                "finish is over; the process before still serves requests, and counts them by itself from now on: nobody saves that"
            );
        }
        if !is_idle {
            log::warn!("finish is over; {} connections are cut", self.open_connections());
            self.cutoff.cut();
        }
        let settled = self.deadline(SETTLING_TIME);
        let requests_end = if is_idle { self.deadline(STRAGGLERS) } else { settled };
        let have_ended = self.wait(requests_end, || self.have_requests_ended());
        if !have_ended && !is_idle {
            log::warn!("some requests do not end; they are not settled and not logged");
        }
        if !self.wait(settled, || self.engine.is_quiet()) {
            log::warn!("the store does not answer; the last charges and refunds may be lost");
        }
        self.tell_store(until);
        self.requests.exit(0)
    }

    /// Waits until the shared store was told of what this process admitted and banned without it, but not beyond `until`. A store
    /// that is away is waited for if a successor serves meanwhile.
    fn tell_store(&self, until: Nanos) {
        let deadline = match self.is_replaced {
            true => until,
            false => until.min(self.deadline(TELLING_TIME)),
        };
        let is_told = || self.engine.has_told_store();
        let is_in_vain = || !self.is_replaced && !self.engine.could_tell_store();
        let _ended_early = self.wait(deadline, || is_told() || is_in_vain());
        if !is_told() {
            log::warn!(
                "the store was not told of everything that was admitted or banned while it was away"
            );
        }
    }

    fn open_connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// Whether no request holds the configuration any more. By then each request has handed its line to the log.
    fn have_requests_ended(&self) -> bool {
        /// References that no request holds: that of the pointer in `live`, and the one that is used for counting.
        const OWN_REFERENCES: usize = 2;
        self.open_connections() == 0 && Arc::strong_count(&self.live.load_full()) <= OWN_REFERENCES
    }

    fn deadline(&self, time: Duration) -> Nanos {
        self.engine.now().mono.saturating_add(time.into())
    }

    /// Waits for a condition. Returns whether it came to hold before the deadline.
    fn wait(&self, deadline: Nanos, holds: impl Fn() -> bool) -> bool {
        loop {
            if holds() {
                return true;
            }
            if self.engine.now().mono >= deadline {
                return false;
            }
            std::thread::sleep(IDLE_CHECK);
        }
    }
}
