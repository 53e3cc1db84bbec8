//! Periodic work in the background: the engine's housekeeping, session ticket keys, reloads, suppressed log lines, counts
//! of refused keys, minutes of the history.
//!
//! It runs on the background runtime, and each reload on a thread of its own. What must always hold: at most one reload
//! runs at a time, and a reload does not delay the periodic work.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use crate::clock::{Nanos, RoundedSpan};
use crate::edge::ServingGate;
use crate::edge::TicketKeys;
use crate::engine::{FleetExchange, FleetLimits};
use crate::history::TrafficHistory;
use crate::jwks;
use crate::log_sampler::{LOG_SAMPLER, LogKind};
use crate::ops::{KeyChanges, POLL_EVERY, Reloader, traffic_totals};
use crate::proxy::Live;
use crate::signals::OperatorRequests;
use crate::state::StateMetrics;

/// The interval of the periodic work.
const TICK: Duration = Duration::from_millis(100);

/// The age of what is saved from which a disk counts as hanging.
const MAX_STATE_AGE: Nanos = Nanos::from_secs(10);

/// Niceness of a reload (as nice(1) counts): a large file takes a core for a while, and requests must not wait for it.
const RELOAD_NICENESS: i32 = 10;

/// Rotates sketches and ticket keys, sweeps cells, and reloads when an operator requests it.
pub(super) struct Housekeeping {
    pub(super) reloader: Arc<Reloader>,
    pub(super) changes: Arc<KeyChanges>,
    pub(super) ticket_keys: Arc<TicketKeys>,
    pub(super) requests: Arc<OperatorRequests>,
    pub(super) history: Arc<TrafficHistory>,
    pub(super) state: Arc<StateMetrics>,
    /// Opens when this process may judge.
    pub(super) gate: Arc<ServingGate>,
}

/// What the log was told of the state.
#[derive(Default)]
struct StateWatch {
    is_stalled: bool,
    /// How many bytes were written when it was looked last, and when that changed.
    written: u64,
    written_at: Nanos,
    /// Requests that did not wait for the disk, as they were told last, and when they are told again at the earliest.
    unsaved_told: u64,
    unsaved_next: Nanos,
}

/// Exchanges counts with the other nodes of the fleet, for as long as the process lives. A successor begins when it has been
/// handed the counts: before, it would be one node more.
async fn exchange_counts(reloader: Arc<Reloader>, gate: Arc<ServingGate>) {
    gate.passed().await;
    let mut exchange = FleetExchange::default();
    loop {
        // The configuration is not held: one that was replaced must end, with the health checks of its origins.
        let limits = FleetLimits::of(&reloader.live.load().generation);
        let pause = exchange.step(&reloader.engine, &limits).await;
        tokio::time::sleep(pause).await;
    }
}

impl Housekeeping {
    pub(super) async fn run(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut reload, mut watch) = (None, StateWatch::default());
        let changes = Arc::clone(&self.changes);
        tokio::spawn(async move {
            loop {
                changes.poll().await;
                tokio::time::sleep(POLL_EVERY).await;
            }
        });
        tokio::spawn(exchange_counts(Arc::clone(&self.reloader), Arc::clone(&self.gate)));
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let live = self.reloader.live.load_full();
                    self.reloader.engine.tick(&live.generation);
                    let sets = &live.generation.policy().key_sets;
                    jwks::begin_fetches(sets, &self.reloader.engine.clock());
                    self.changes.expire();
                    self.reloader.drop_retired();
                    self.ticket_keys.rotate(self.reloader.engine.now().mono);
                    self.log_suppressed();
                    self.watch_state(&mut watch);
                    self.keep_traffic(&live);
                }
                // A reload that is requested while one runs begins after it.
                () = self.requests.reload.notified(), if reload.is_none() => {
                    reload = self.begin_reload();
                }
                () = ended(&mut reload) => reload = None,
                () = self.requests.reopen.notified() => self.reloader.reopen_log(),
            }
        }
    }

    /// Logs how many lines were suppressed in the last second.
    fn log_suppressed(&self) {
        let date = self.reloader.engine.date(self.reloader.engine.now());
        for kind in LogKind::ALL {
            if let Some(lines) = LOG_SAMPLER.take_unreported(kind, date) {
                log::warn!("and {lines} more ({})", kind.name());
            }
        }
    }

    /// Tells once when nothing has been saved for long, although nothing has failed: the thread that saves cannot tell that
    /// it hangs. Tells now and then that requests have not waited for the disk any longer.
    fn watch_state(&self, watch: &mut StateWatch) {
        let now = self.reloader.engine.now().mono;
        let age = self.state.age(now);
        let (written, is_failing) = (self.state.written(), self.state.is_failing());
        // What was lost in a failure takes its time to be written anew, and is not the latest before all of it is.
        if is_failing || written != watch.written {
            (watch.written, watch.written_at) = (written, now);
        }
        let is_silent = now.saturating_sub(watch.written_at) > MAX_STATE_AGE;
        match (age > MAX_STATE_AGE && is_silent, watch.is_stalled) {
            (true, false) => {
                let age = RoundedSpan(age);
                log::error!(
                    "the state has not been saved for {age}: the disk does not answer; requests are judged as before, and a restart would lose what is spent from now on"
                );
                watch.is_stalled = true;
            }
            (false, true) if age < MAX_STATE_AGE => {
                log::warn!("the state is saved again");
                watch.is_stalled = false;
            }
            (true, true) | (false, _) => {}
        }
        let unsaved = self.reloader.engine.unsaved();
        if unsaved > watch.unsaved_told && now >= watch.unsaved_next {
            log::error!(
                "{} requests under after_crash: deny were forwarded before their charges were on the disk, which takes longer than 1 s or fails: a kill would let these units be spent again",
                unsaved - watch.unsaved_told
            );
            (watch.unsaved_told, watch.unsaved_next) = (unsaved, now.saturating_add(MAX_STATE_AGE));
        }
    }

    /// Counts the keys of new refusals, and keeps a minute that has ended.
    fn keep_traffic(&self, live: &Live) {
        let counters = &self.reloader.counters;
        let now = self.reloader.engine.now();
        let date = self.reloader.engine.date(now);
        counters.refusals().count_keys(now.mono, date);
        self.history.advance(now.mono, date, || traffic_totals(live, counters));
    }

    /// Starts a reload on a thread of its own. `None` if no thread can be started.
    fn begin_reload(&self) -> Option<oneshot::Receiver<()>> {
        let (tell, ended) = oneshot::channel();
        let (reloader, runtime) = (Arc::clone(&self.reloader), tokio::runtime::Handle::current());
        let spawned = std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
            let own = Some(rustix::thread::gettid());
            if let Err(error) = rustix::process::setpriority_process(own, RELOAD_NICENESS) {
                log::debug!("a reload as urgent as requests: {error}");
            }
            runtime.block_on(reloader.reload());
            // The receiver has gone if the process is about to end.
            let _ = tell.send(());
        });
        match spawned {
            Ok(_) => Some(ended),
            Err(error) => {
                log::error!("reload refused: no thread for it: {error}");
                None
            }
        }
    }
}

/// Returns when the reload has ended; never without one.
async fn ended(reload: &mut Option<oneshot::Receiver<()>>) {
    match reload {
        // An error means that the thread has panicked, so the reload has ended as well.
        Some(ended) => drop(ended.await),
        None => std::future::pending().await,
    }
}
