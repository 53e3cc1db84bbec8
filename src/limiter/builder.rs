//! Builds a limiter from a policy and a clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::LimiterError;
use super::file_watch::FileWatch;
use super::judge::Limiter;
use crate::clock::{Clock, SystemClock};
use crate::config::{self, Config, ConfigUse, LoadedConfig};
use crate::engine::Engine;
use crate::jwks;

/// The name of a policy text in errors.
const TEXT_NAME: &str = "policy";

/// Builds a [`Limiter`].
///
/// ```
/// use std::sync::Arc;
/// use tollgate::Limiter;
/// use tollgate::clock::{ManualClock, Nanos};
///
/// let limiter = Limiter::builder()
///     .policy_text("version: 1\nroutes: [{ name: site }]")
///     .clock(Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000))))
///     .build()?;
/// # Ok::<(), tollgate::LimiterError>(())
/// ```
#[derive(Default)]
#[must_use = "call build or connect"]
pub struct LimiterBuilder {
    source: Option<PolicySource>,
    folder: PathBuf,
    clock: Option<Arc<dyn Clock>>,
    reload_on_change: bool,
}

/// Where the policy is.
pub(super) enum PolicySource {
    Text(String),
    File(PathBuf),
}

impl LimiterBuilder {
    /// The policy, as YAML.
    pub fn policy_text(mut self, text: impl Into<String>) -> Self {
        self.source = Some(PolicySource::Text(text.into()));
        self
    }

    /// The file with the policy. [`Limiter::reload`] reads it again.
    pub fn policy_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.source = Some(PolicySource::File(file.into()));
        self
    }

    /// Where relative names of files in a policy text start (`jwks_file`, `secret_file` and so on). The default is the
    /// current directory. In a policy file they start at the file's folder.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = folder.into();
        self
    }

    /// Makes the background work reload the policy file when it has changed, at most two seconds after the last write. If
    /// that fails, the reason is logged once for each version of the file, and the policy in force stays. The same version
    /// is tried again, at first after a second and later every 16 seconds, so that a cause that passes (a file that the
    /// policy names is missing for a moment) needs no other change. A policy text never changes.
    pub fn reload_on_change(mut self) -> Self {
        self.reload_on_change = true;
        self
    }

    /// The clock that requests are judged by. The default is [`SystemClock`]; tests use
    /// [`ManualClock`](crate::clock::ManualClock).
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds a limiter that counts in this process.
    ///
    /// # Errors
    ///
    /// [`LimiterError::NoPolicy`], [`LimiterError::Policy`] and [`LimiterError::Randomness`];
    /// [`LimiterError::NeedsConnect`] if the policy has a `store.redis`.
    pub fn build(self) -> Result<Limiter, LimiterError> {
        let (config, watch) = self.read()?;
        if !config.store.is_embedded() {
            return Err(LimiterError::NeedsConnect);
        }
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let engine = Engine::embedded(clock).map_err(LimiterError::randomness)?;
        Ok(Limiter::new(self.source, self.folder, config, engine, watch))
    }

    /// Builds a limiter that counts where the policy says. It waits for a store, but at most a second: while the store
    /// is away, `on_store_failure` of each limit decides. It also waits, at most a second, for keys at a `jwks_url`; after
    /// that the background work fetches them, on a runtime that needs its I/O driver (`enable_all`).
    ///
    /// Connections live on the Tokio runtime that polls this. That runtime must live as long as the limiter: Pingora
    /// gives each service its own, so a Pingora proxy keeps one more.
    ///
    /// ```no_run
    /// let runtime = tokio::runtime::Runtime::new()?;
    /// let builder = tollgate::Limiter::builder().policy_file("policy.yaml");
    /// let limiter = runtime.block_on(builder.connect())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`LimiterError::NoPolicy`], [`LimiterError::Policy`] and [`LimiterError::Randomness`].
    pub async fn connect(self) -> Result<Limiter, LimiterError> {
        let (config, watch) = self.read()?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let engine =
            Engine::connect(&config.store, clock).await.map_err(LimiterError::randomness)?;
        let limiter = Limiter::new(self.source, self.folder, config, engine, watch);
        let loaded = limiter.shared.loaded.load_full();
        let key_sets = &loaded.generation.policy().key_sets;
        jwks::wait_for_first(key_sets, &limiter.shared.engine.clock()).await;
        Ok(limiter)
    }

    /// The configuration, and the watch of its file. The watch begins first, so that it sees a change during the
    /// reading.
    fn read(&self) -> Result<(Config, Option<FileWatch>), LimiterError> {
        let source = self.source.as_ref().ok_or(LimiterError::NoPolicy)?;
        let watch = match source {
            PolicySource::File(file) if self.reload_on_change => Some(FileWatch::new(file.clone())),
            PolicySource::File(_) | PolicySource::Text(_) => None,
        };
        Ok((accepted(source.read(&self.folder)?), watch))
    }
}

impl PolicySource {
    pub(super) fn read(&self, folder: &Path) -> Result<LoadedConfig, LimiterError> {
        let loaded = match self {
            Self::Text(text) => config::read_text_for(ConfigUse::Plugin, text, TEXT_NAME, folder),
            Self::File(file) => config::load_for(ConfigUse::Plugin, file),
        };
        loaded.map_err(LimiterError::Policy)
    }
}

/// The configuration that is put in force. Its warnings go to the log now: a reload that fails is tried again, and would
/// repeat them.
pub(super) fn accepted(loaded: LoadedConfig) -> Config {
    for warning in &loaded.warnings {
        log::warn!("{warning}");
    }
    loaded.config
}
