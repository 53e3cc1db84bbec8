//! The background work of a limiter: it rotates the sketches of estimate limits, removes idle keys, and reloads a policy
//! file that has changed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::file_watch::FileWatch;
use super::judge::Limiter;
use crate::engine::{FleetExchange, FleetLimits};
use crate::jwks;

/// The time between two rounds. Each sweeps a small part of the keys.
const INTERVAL: Duration = Duration::from_millis(100);

/// The time between two looks at the policy file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Limiter {
    /// Does the background work until the future is dropped. Spawn it once on a Tokio runtime; the limiter logs an error
    /// if it is missing. A Pingora server takes `Limiter::background` instead.
    ///
    /// Without it decisions stay safe, but grow stricter, and memory of idle keys is not freed.
    ///
    /// ```no_run
    /// # async fn f(limiter: tollgate::Limiter) {
    /// tokio::spawn(limiter.run_background());
    /// # }
    /// ```
    pub fn run_background(&self) -> impl Future<Output = ()> + Send + 'static {
        let (rounds, watching) = (self.clone(), self.clone());
        async move {
            // A reload that hangs (a file system that does not answer) delays no round.
            let exchanging = rounds.clone();
            tokio::join!(rounds.run_rounds(), watching.watch_file(), exchanging.exchange_counts());
        }
    }

    /// Exchanges counts with the other nodes, if limits count over the fleet.
    async fn exchange_counts(&self) {
        let mut exchange = FleetExchange::default();
        // Only the proxy is told what operators change.
        self.shared.engine.hear_no_changes();
        loop {
            let limits = FleetLimits::of(&self.shared.loaded.load().generation);
            let pause = exchange.step(&self.shared.engine, &limits).await;
            tokio::time::sleep(pause).await;
        }
    }

    async fn run_rounds(&self) {
        loop {
            self.run_round();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Reads the policy file whenever it is to be read, on a thread that may block: ten thousand routes take tens of
    /// milliseconds.
    async fn watch_file(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let limiter = self.clone();
            let looked = tokio::task::spawn_blocking(move || limiter.reload_changed_file()).await;
            if let Err(error) = looked {
                log::error!("a reload of the policy ended early: {error}");
            }
        }
    }

    fn reload_changed_file(&self) {
        let Some(version) = self.shared.watch.lock().as_mut().and_then(FileWatch::look) else {
            return;
        };
        let reloaded = self.reload();
        let mut watch = self.shared.watch.lock();
        let Some(watch) = watch.as_mut() else {
            return;
        };
        match reloaded {
            Ok(report) => {
                watch.succeeded(version);
                log::info!("the policy is reloaded: {report}");
            }
            Err(error) => {
                if watch.failed(version, &error.to_string()) {
                    log::error!("the policy stays as it was, and is tried again: {error}");
                }
            }
        }
    }

    fn run_round(&self) {
        let engine = &self.shared.engine;
        let loaded = self.shared.loaded.load();
        engine.tick(&loaded.generation);
        jwks::begin_fetches(&loaded.generation.policy().key_sets, &engine.clock());
        self.shared.last_background.store(engine.now().mono.get(), Ordering::Relaxed);
    }
}
