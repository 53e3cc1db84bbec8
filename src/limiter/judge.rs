//! Judges requests, and swaps the policy that judges them.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use http::request::Parts;
use parking_lot::Mutex;

use super::builder::{LimiterBuilder, PolicySource, accepted};
use super::error::LimiterError;
use super::file_watch::FileWatch;
use super::judged::Judged;
use super::loaded::LoadedPolicy;
use super::target;
use crate::clock::{Nanos, Now};
use crate::config::{Config, StoreConfig};
use crate::engine::{Engine, PendingSettlement, ReloadReport};
use crate::http::{Head, validate};
use crate::policy::{ConditionResults, ConnectionFacts};

/// How long the background work may be missing before it is logged.
const MAX_IDLE_BACKGROUND: Nanos = Nanos::from_secs(10);

/// A policy that judges requests. Clones share counters and policy.
///
/// Its policy is that of the proxy, but may leave out `listeners`, `origins` and the origin of a route. It uses `clients`,
/// `limits`, `routes`, `defaults`, `responses`, `store` and, of `limits_of_this_proxy`, the bounds of a request's head and
/// (in a Pingora proxy) `discard`.
/// Other keys are read, so that the proxy's file serves too, and have no effect.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::clock::{ManualClock, Nanos};
/// use tollgate::{Action, Limiter};
///
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000)));
/// let limiter = Limiter::builder()
///     .policy_text(
///         "
///         version: 1
///         limits: { site: { tier: exact, key: client_ip, algorithm: token_bucket, rate: 1/1s } }
///         routes: [{ name: site, limits: [site] }]
///         ",
///     )
///     .clock(clock.clone())
///     .build()?;
/// let request = http::Request::get("/").header("host", "www.example.com").body(())?;
/// let (parts, ()) = request.into_parts();
/// let client = [192, 0, 2, 1].into();
///
/// assert!(matches!(limiter.judge(&parts, client).await.action(), Action::Forward { .. }));
/// let judged = limiter.judge(&parts, client).await;
/// let Action::Refuse(refusal) = judged.action() else { panic!("one request per second") };
/// assert_eq!(refusal.status, 429);
/// assert_eq!(refusal.headers["retry-after"], "1");
///
/// clock.advance(Nanos::SECOND);
/// assert!(matches!(limiter.judge(&parts, client).await.action(), Action::Forward { .. }));
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(f()).unwrap();
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(super) shared: Arc<LimiterState>,
}

/// What the clones of a limiter share.
pub(super) struct LimiterState {
    pub(super) engine: Engine,
    pub(super) loaded: ArcSwap<LoadedPolicy>,
    source: Option<PolicySource>,
    folder: PathBuf,
    store: StoreConfig,
    /// One reload at a time: each continues the counters of the one before.
    reloading: Mutex<()>,
    /// The policy file, if its changes are reloaded.
    pub(super) watch: Mutex<Option<FileWatch>>,
    /// When the background work ran last, on the engine's clock.
    pub(super) last_background: AtomicU64,
    misses_background: AtomicBool,
}

impl Limiter {
    /// Builds a limiter.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    pub(super) fn new(
        source: Option<PolicySource>,
        folder: PathBuf,
        config: Config,
        engine: Engine,
        watch: Option<FileWatch>,
    ) -> Self {
        let store = config.store.clone();
        let (loaded, _) = LoadedPolicy::new(config, &engine, None);
        let last_background = AtomicU64::new(engine.now().mono.get());
        let shared = LimiterState {
            engine,
            loaded: ArcSwap::from_pointee(loaded),
            source,
            folder,
            store,
            reloading: Mutex::default(),
            watch: Mutex::new(watch),
            last_background,
            misses_background: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Judges a request and charges its limits: all, or none. `peer` is the address of the connection; `clients` of the
    /// policy says which peers may name another client. Call it before a router rewrites the URI.
    ///
    /// It waits only with a shared store, and at most the store's `timeout`. Keep the result until the answer has
    /// been sent: it holds the request's slots in flight.
    pub async fn judge(&self, request: &Parts, peer: IpAddr) -> Judged {
        let target = target::target(request);
        self.judge_head(target::head(request, &target), peer).await
    }

    pub(super) async fn judge_head(&self, head: Head<'_>, peer: IpAddr) -> Judged {
        let Self { shared } = self;
        let loaded = shared.loaded.load_full();
        let now = shared.engine.now();
        shared.check_background(now);
        let valid = validate(head, loaded.bounds).and_then(|valid| {
            loaded.field_rules.check(valid.uncommon, head.method, head.headers).map(|()| valid)
        });
        let (decision, pending) = match valid {
            Ok(valid) => {
                let client = loaded.clients.client(peer, head.headers);
                let date = shared.engine.date(now);
                let (connection, conditions) =
                    (&ConnectionFacts::NONE, ConditionResults::default());
                let facts =
                    valid.facts(client, connection, date, head.method, head.headers, &conditions);
                let (decision, pending) = shared.engine.decide(&loaded.generation, &facts).await;
                (Ok(decision), pending)
            }
            Err(reason) => (Err(reason), PendingSettlement::default()),
        };
        Judged::new(Arc::clone(shared), loaded, decision, pending, head.headers)
    }

    /// Reads the policy's file again. Counters of limits continue by name; the report says which do. Requests that
    /// were judged before are settled under the policy that judged them.
    ///
    /// # Errors
    ///
    /// [`LimiterError::Policy`], [`LimiterError::StoreChanged`] and [`LimiterError::NoFile`]. The policy in force stays.
    pub fn reload(&self) -> Result<ReloadReport, LimiterError> {
        match &self.shared.source {
            Some(file @ PolicySource::File(_)) => self.shared.replace(file, Path::new("")),
            Some(PolicySource::Text(_)) | None => Err(LimiterError::NoFile),
        }
    }

    /// Replaces the policy by a text. Otherwise as [`Limiter::reload`]. A watched file replaces it again when it changes.
    ///
    /// # Errors
    ///
    /// [`LimiterError::Policy`] and [`LimiterError::StoreChanged`]. The policy in force stays.
    pub fn reload_text(&self, text: impl Into<String>) -> Result<ReloadReport, LimiterError> {
        self.shared.replace(&PolicySource::Text(text.into()), &self.shared.folder)
    }
}

impl LimiterState {
    fn replace(&self, source: &PolicySource, folder: &Path) -> Result<ReloadReport, LimiterError> {
        // Before the file is read: a reload that read an older version must not replace a newer one.
        let _reloading = self.reloading.lock();
        let read = source.read(folder)?;
        if read.config.store != self.store {
            return Err(LimiterError::StoreChanged);
        }
        let config = accepted(read);
        let previous = self.loaded.load_full();
        let (next, report) = LoadedPolicy::new(config, &self.engine, Some(&previous.generation));
        self.loaded.store(Arc::new(next));
        if let Some(watch) = self.watch.lock().as_mut() {
            watch.superseded();
        }
        Ok(report)
    }

    /// Logs once if nothing does the background work: sketches would only fill up, and idle keys would stay.
    fn check_background(&self, now: Now) {
        let last = Nanos::new(self.last_background.load(Ordering::Relaxed));
        if now.mono.saturating_sub(last) > MAX_IDLE_BACKGROUND
            && !self.misses_background.swap(true, Ordering::Relaxed)
        {
            log::error!(
                "the limiter's background work does not run: spawn Limiter::run_background, or \
                 add Limiter::background to the Pingora server"
            );
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}
