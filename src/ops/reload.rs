//! A reload: from a changed file to a configuration in force, or to the reasons to refuse it.
//!
//! It does not know what triggers a reload, or on which thread it runs. What must always hold: a refused reload changes
//! nothing (the access log is opened again, no more), and counters and unchanged origins continue.

use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::access_log::AccessLogSink;
use super::policy_changes::policy_changes;
use super::status::{ReloadOutcome, Status};
use crate::clock::Nanos;
use crate::config::{self, Config, ConfigErrors};
use crate::edge::CertificateStore;
use crate::engine::Engine;
use crate::proxy::{Fixed, Live, Publishing, TrafficCounters};
use crate::signals::OperatorRequests;

/// What a reload reads.
#[derive(Clone, Debug)]
pub struct ReloadSource {
    /// The configuration's file. `None`: it came from standard input, which cannot be read again.
    pub file: Option<PathBuf>,
}

/// Replaces the configuration in force by a new one.
pub struct Reloader {
    /// What to read.
    pub source: ReloadSource,
    /// Builds the next generation.
    pub engine: Arc<Engine>,
    /// The configuration in force.
    pub live: Arc<ArcSwap<Live>>,
    /// Counters of routes and origins, which continue by name.
    pub counters: Arc<TrafficCounters>,
    /// Where the outcome is recorded.
    pub status: Arc<Status>,
    /// The access log, whose target a reload may change.
    pub access: Arc<AccessLogSink>,
    /// Certificates of the listeners.
    pub certificates: Arc<CertificateStore>,
    /// Former configurations, while requests that began under them continue.
    pub retired: Mutex<Vec<Arc<Live>>>,
    /// Held while the pointer to the configuration is replaced.
    pub publishing: Arc<Mutex<Publishing>>,
    /// Who waits for the outcome of the next reload.
    pub waiting: Mutex<Vec<oneshot::Sender<ReloadOutcome>>>,
}

/// Why nothing is put in force any more.
const HANDED_OVER: &str = "a successor has taken over; reload that process";

impl Reloader {
    /// Reads, checks and builds everything, then puts it in force in four writes: the access log, the certificates, the
    /// pointer to the configuration, the list of retired ones. Everything that can fail comes before them or is the first
    /// of them. On an error every error is logged and nothing changes; the access log is opened again all the same.
    pub async fn reload(&self) -> ReloadOutcome {
        super::supervisor::reloading();
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let begun = self.engine.now();
        let outcome = match self.attempt().await {
            Ok(outcome) => outcome,
            Err(errors) => ReloadOutcome::Refused { errors },
        };
        match &outcome {
            ReloadOutcome::Applied { generation, report, changes } => {
                let hash = Arc::clone(&self.live.load().config_hash);
                log::info!("generation {generation} is in force (configuration {hash}): {report}");
                if !changes.is_empty() {
                    log::info!("generation {generation}: {}", changes.join("; "));
                }
            }
            ReloadOutcome::Refused { errors } => {
                for error in errors {
                    log::error!("{error}");
                }
                let live = self.live.load();
                let (generation, hash) = (live.generation.number(), &live.config_hash);
                log::error!(
                    "reload refused; generation {generation} stays in force (configuration {hash})"
                );
                // The signal may come from a log rotation, which must work although the file is not valid.
                self.reopen_log();
            }
        }
        let ended = self.engine.now();
        let duration = ended.mono.saturating_sub(begun.mono);
        self.status.reloaded(self.engine.date(ended), duration, outcome.clone());
        super::supervisor::ready();
        for tell in waiting {
            // Whoever asked may have gone.
            let _ = tell.send(outcome.clone());
        }
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
        if self.publishing.lock().is_handed_over {
            return Err(vec![HANDED_OVER.to_owned()]);
        }
        let config = self.read()?;
        let certificates =
            CertificateStore::read(&config.listeners).map_err(|error| vec![error.to_string()])?;
        // The first write, and the last step that can fail.
        let date = self.engine.date(self.engine.now());
        let redirected = self.access.redirect(&config.access_log, date);
        redirected.map_err(|error| vec![format!("access_log: {error}")])?;
        let previous = self.live.load_full();
        let rules = self.engine.key_rules();
        let (mut next, report) =
            Live::build(config, &self.engine, &self.counters, Some(&previous)).await;
        let publishing = self.publishing.lock();
        if publishing.is_handed_over {
            return Err(vec![HANDED_OVER.to_owned()]);
        }
        if !Arc::ptr_eq(&rules, &self.engine.key_rules()) {
            // An operator has changed the rules for keys meanwhile.
            next = next.with_generation(self.engine.regenerate(&next.generation));
        }
        let previous = self.live.load_full();
        let generation = next.generation.number();
        let changes = policy_changes(previous.generation.policy(), next.generation.policy());
        warn_of_rules_without_effect(&self.engine, &next, self.engine.date(self.engine.now()));
        self.certificates.replace(certificates);
        self.live.store(Arc::new(next));
        self.retired.lock().push(previous);
        Ok(ReloadOutcome::Applied { generation, report, changes })
    }

    /// Puts the configuration in force again with the present rules for keys.
    pub fn republish(&self) {
        self.republish_under(&self.publishing.lock());
    }

    /// The same, after rules have come back from a directory or from the process before: says which have no effect now.
    pub fn republish_restored(&self) {
        self.republish();
        let date = self.engine.date(self.engine.now());
        warn_of_rules_without_effect(&self.engine, &self.live.load(), date);
    }

    /// [`Reloader::republish`], for a caller that holds the lock.
    pub fn republish_under(&self, publishing: &Publishing) {
        if publishing.is_handed_over {
            return;
        }
        let previous = self.live.load_full();
        let generation = self.engine.regenerate(&previous.generation);
        self.live.store(Arc::new(previous.with_generation(generation)));
        self.retired.lock().push(previous);
    }

    /// Asks for a reload, which begins after one that runs. The outcome comes when it has ended.
    pub fn request(&self, requests: &OperatorRequests) -> oneshot::Receiver<ReloadOutcome> {
        let (tell, outcome) = oneshot::channel();
        self.waiting.lock().push(tell);
        requests.reload.notify_one();
        outcome
    }

    /// Drops retired configurations that no request holds. If the last request dropped a large one, it would spend
    /// milliseconds on that.
    pub fn drop_retired(&self) {
        let gone: Vec<Arc<Live>> = {
            let mut retired = self.retired.lock();
            retired.extract_if(.., |live| Arc::strong_count(live) == 1).collect()
        };
        drop(gone);
    }

    fn read(&self) -> Result<Config, Vec<String>> {
        let lines = |errors: ConfigErrors| errors.lines();
        let Some(file) = &self.source.file else {
            let why = "the configuration came from standard input, which cannot be read again";
            return Err(vec![format!("{why}; restart instead, with --config FILE")]);
        };
        // Reading a pipe that nobody writes would never end, and no other reload could begin.
        if std::fs::metadata(file).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
            let file = file.display();
            return Err(vec![format!(
                "{file}: is a pipe, which cannot be read again; name a file"
            )]);
        }
        let loaded = config::load(file).map_err(lines)?;
        let date = self.engine.date(self.engine.now());
        let dates = super::certificate_warnings(&loaded.config, &loaded.source, date);
        for warning in loaded.warnings.iter().chain(&dates) {
            log::warn!("{warning}");
        }
        let next = Fixed::of(&loaded.config);
        if let Some(key) = self.live.load().fixed.difference(&next) {
            let file = file.display();
            return Err(vec![format!("{file}: {key}: a reload cannot change it; restart instead")]);
        }
        Ok(loaded.config)
    }
}

/// Says which rules of operators have no effect under a new configuration.
fn warn_of_rules_without_effect(engine: &Engine, next: &Live, date: Nanos) {
    let limits = &next.generation.policy().limits;
    for rule in engine.key_rules().iter().filter(|rule| rule.until > date) {
        let why = match limits.iter().find(|limit| limit.name == rule.limit) {
            None => "the limit is not in it".to_owned(),
            Some(limit) if limit.terms.key_rules.of_key(rule.key).is_some() => continue,
            Some(limit) => match limit.check_ruling(&rule.ruling) {
                Err(error) => error.to_string(),
                Ok(()) => "the limit cannot have one more rate".to_owned(),
            },
        };
        log::warn!(
            "limit {}: the rule of an operator for key {} has no effect under this configuration: {why}",
            rule.limit,
            rule.key
        );
    }
}
