//! Reload: from a changed file to a configuration in force, or to the reasons why not.
//!
//! A refused reload changes nothing. Counters and unchanged origins continue.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::access_log::AccessLogSink;
use super::status::{ReloadOutcome, Status};
use crate::config::{self, Config, ConfigErrors};
use crate::edge::CertificateStore;
use crate::engine::Engine;
use crate::proxy::{Fixed, Live, TrafficCounters};

/// What a reload reads.
#[derive(Clone, Debug)]
pub struct ReloadSource {
    /// The configuration's file.
    pub file: PathBuf,
}

/// Replaces the configuration in force by a new one.
pub struct Reloader {
    /// What to read.
    pub source: ReloadSource,
    /// What decides.
    pub engine: Arc<Engine>,
    /// What is in force.
    pub live: Arc<ArcSwap<Live>>,
    /// Counters by name.
    pub counters: Arc<TrafficCounters>,
    /// Where the outcome is told.
    pub status: Arc<Status>,
    /// Where the access log goes.
    pub access: Arc<AccessLogSink>,
    /// Certificates of the listeners.
    pub certificates: Arc<CertificateStore>,
    /// Former configurations, while requests that began under them continue.
    pub retired: Mutex<Vec<Arc<Live>>>,
}

impl Reloader {
    /// Reads, checks and builds everything, then puts it in force in four writes: the access log, the certificates, the
    /// pointer to the configuration, the list of retired ones. Everything that can fail comes before them or is the first
    /// of them. On an error nothing changes and every error is logged.
    pub async fn reload(&self) -> ReloadOutcome {
        super::supervisor::reloading();
        let outcome = match self.attempt().await {
            Ok(outcome) => outcome,
            Err(errors) => ReloadOutcome::Refused { errors },
        };
        match &outcome {
            ReloadOutcome::Applied { generation, report } => {
                log::info!("generation {generation} is in force: {report}");
            }
            ReloadOutcome::Refused { errors } => {
                for error in errors {
                    log::error!("{error}");
                }
                let generation = self.live.load().generation.number();
                log::error!("reload refused; generation {generation} stays in force");
                // Whoever rotates logs sends the same signal, whatever the configuration says.
                self.reopen_log();
            }
        }
        self.status.reloaded(self.engine.date(self.engine.now()), outcome.clone());
        super::supervisor::ready();
        outcome
    }

    /// Opens the access log again after a rotation.
    pub fn reopen_log(&self) {
        match self.access.reopen() {
            Ok(()) => log::info!("the access log is open anew"),
            Err(error) => log::error!("access_log: {error}; the file that was open stays"),
        }
    }

    async fn attempt(&self) -> Result<ReloadOutcome, Vec<String>> {
        let config = self.read()?;
        let certificates =
            CertificateStore::read(&config.listeners).map_err(|error| vec![error])?;
        // The last step that can fail.
        let redirected = self.access.redirect(&config.access_log);
        redirected.map_err(|error| vec![format!("access_log: {error}")])?;
        let previous = self.live.load_full();
        let (next, report) =
            Live::build(config, &self.engine, &self.counters, Some(&previous)).await;
        let generation = next.generation.number();
        self.certificates.replace(certificates);
        self.live.store(Arc::new(next));
        self.retired.lock().push(previous);
        Ok(ReloadOutcome::Applied { generation, report })
    }

    /// Drops retired configurations that no request holds. Here, because the last request to end would spend
    /// milliseconds on dropping a large one.
    pub fn drop_retired(&self) {
        let gone: Vec<Arc<Live>> = {
            let mut retired = self.retired.lock();
            retired.extract_if(.., |live| Arc::strong_count(live) == 1).collect()
        };
        drop(gone);
    }

    fn read(&self) -> Result<Config, Vec<String>> {
        let lines = |errors: ConfigErrors| errors.lines();
        let loaded = config::load(&self.source.file).map_err(lines)?;
        for warning in &loaded.warnings {
            log::warn!("{warning}");
        }
        let next = Fixed::of(&loaded.config);
        if let Some(key) = self.live.load().fixed.difference(&next) {
            let file = self.source.file.display();
            return Err(vec![format!("{file}: {key}: a reload cannot change it; restart instead")]);
        }
        Ok(loaded.config)
    }
}
