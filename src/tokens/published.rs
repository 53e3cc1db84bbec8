//! A set of keys that is published at a URL: what is known of it, and how its fetches went.
//!
//! It does not fetch. Whoever does takes a [`KeySetFetch`] when it is time for one, and hands back what came. What must always
//! hold: a valid set is replaced only by another valid one, however long the publisher is away; the set, its schedule and
//! its counters continue over reloads, found by URL and authority; and no lookup waits for a fetch.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use http::Uri;
use parking_lot::Mutex;

use super::algorithm::AlgorithmSet;
use super::error::{KeysError, TokenError};
use super::keys::VerificationKeys;
use super::refresh_schedule::RefreshSchedule;
use crate::clock::Nanos;

/// Where a set is published.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySetUrl {
    /// As configured: `https`, or `http` to this machine.
    pub uri: Uri,
    /// The authorities that may sign the server's certificate, as PEM. `None`: those that the system trusts.
    pub ca: Option<Arc<[u8]>>,
}

/// A set of keys that is published at a URL.
pub struct PublishedKeySet {
    url: KeySetUrl,
    /// Its name in metrics and logs: host and path. Two sets of a configuration have different names.
    name: Box<str>,
    /// Taken over from the previous configuration, or new. Chosen before the first request.
    state: OnceLock<Arc<KeySetState>>,
}

/// What continues over reloads.
#[derive(Default)]
struct KeySetState {
    /// `None` until the first valid set.
    keys: ArcSwapOption<VerificationKeys>,
    /// The number of the set: 0 before the first, and one more with each that differs.
    version: AtomicU64,
    /// Whether a token named a key that is not in the set.
    wanted: AtomicBool,
    progress: Mutex<Progress>,
    outcomes: [AtomicU64; FetchOutcome::ALL.len()],
}

/// How the fetches went.
#[derive(Default)]
struct Progress {
    schedule: RefreshSchedule,
    /// When the publisher last gave the set in force, on the monotonic clock.
    confirmed: Option<Nanos>,
    /// Why the last attempt failed; `None` if it did not.
    failure: Option<FetchError>,
}

/// How a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// It gave another valid set, which is in force.
    Updated,
    /// It gave the set in force.
    Unchanged,
    /// The name is not known, nothing accepts connections, or TLS cannot be agreed on.
    Unreachable,
    /// It did not end in time.
    Timeout,
    /// The answer has another status than 200. Redirects are not followed.
    Status,
    /// The answer is too large.
    TooLarge,
    /// The answer is no set that can be used.
    Invalid,
}

impl FetchOutcome {
    /// Every outcome, in the order of the counters.
    pub const ALL: [Self; 7] = [
        Self::Updated,
        Self::Unchanged,
        Self::Unreachable,
        Self::Timeout,
        Self::Status,
        Self::TooLarge,
        Self::Invalid,
    ];

    /// The label value of the metric.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
        }
    }
}

/// Why a fetch gave no set. No text of the publisher is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The server cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The time is over.
    #[error("no complete answer within {0} s")]
    Timeout(u64),
    /// Another status than 200.
    #[error("the answer has status {0}; write the URL that gives the set itself")]
    Status(u16),
    /// A larger answer than this, in bytes.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The set cannot be used.
    #[error("the set {0}")]
    Invalid(#[from] KeysError),
}

impl FetchError {
    const fn outcome(&self) -> FetchOutcome {
        match self {
            Self::Unreachable(_) => FetchOutcome::Unreachable,
            Self::Timeout(_) => FetchOutcome::Timeout,
            Self::Status(_) => FetchOutcome::Status,
            Self::TooLarge(_) => FetchOutcome::TooLarge,
            Self::Invalid(_) => FetchOutcome::Invalid,
        }
    }
}

/// What a publisher answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedKeySet {
    /// The set as JSON.
    pub json: Vec<u8>,
    /// How long the publisher says that it stays valid.
    pub max_age: Option<Nanos>,
}

/// How a fetch ended, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchReport {
    /// How it ended.
    pub outcome: FetchOutcome,
    /// Why it failed.
    pub failure: Option<FetchError>,
    /// Whether the attempt before ended otherwise, so that there is something to say.
    pub is_news: bool,
    /// The number of keys in force.
    pub keys: usize,
}

/// The state of a set, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySetReport {
    /// Its host and path.
    pub name: Box<str>,
    /// The number of keys in force; 0 before the first valid set.
    pub keys: usize,
    /// How long ago the publisher last gave the set in force.
    pub age: Option<Nanos>,
    /// How many fetches ended how, in the order of [`FetchOutcome::ALL`].
    pub outcomes: [u64; FetchOutcome::ALL.len()],
    /// Why the last fetch failed; `None` if it did not.
    pub failure: Option<FetchError>,
}

impl PublishedKeySet {
    /// A set of which nothing is known yet.
    pub fn new(url: KeySetUrl, name: &str) -> Self {
        Self { url, name: name.into(), state: OnceLock::new() }
    }

    /// Where it is published.
    pub const fn url(&self) -> &KeySetUrl {
        &self.url
    }

    /// Its name in metrics and logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Continues what the previous configuration knows of this set. To be called before the first request.
    pub fn continue_from(&self, previous: &[Arc<Self>]) {
        if let Some(same) = previous.iter().find(|set| set.url == self.url) {
            // Fails if it was called before; then this set has its state already.
            let _ = self.state.set(Arc::clone(same.state()));
        }
    }

    /// Whether there is a valid set.
    pub fn has_keys(&self) -> bool {
        self.version() > 0
    }

    /// Puts a set in force without a fetch, for tests of policies. Returns the number of its keys.
    ///
    /// # Errors
    ///
    /// The set cannot be used.
    pub fn install(&self, json: &[u8]) -> Result<usize, KeysError> {
        let keys = VerificationKeys::from_published_jwks(json)?;
        let count = keys.count();
        self.state().replace(keys);
        Ok(count)
    }

    /// Begins a fetch if it is time for one at `now` (monotonic).
    pub fn begin_fetch(&self, now: Nanos) -> Option<KeySetFetch> {
        let state = self.state();
        let wanted = state.wanted.load(Ordering::Relaxed);
        if !state.progress.lock().schedule.begin(wanted, now) {
            return None;
        }
        // A token that is judged from now on may ask for one more.
        state.wanted.store(false, Ordering::Relaxed);
        Some(KeySetFetch { state: Arc::clone(state), is_ended: false })
    }

    /// The state at `now` (monotonic).
    pub fn report(&self, now: Nanos) -> KeySetReport {
        let state = self.state();
        let progress = state.progress.lock();
        KeySetReport {
            name: self.name.clone(),
            keys: state.count(),
            age: progress.confirmed.map(|confirmed| now.saturating_sub(confirmed)),
            outcomes: std::array::from_fn(|index| state.outcomes[index].load(Ordering::Relaxed)),
            failure: progress.failure.clone(),
        }
    }

    /// The number of the set in force; 0: there is none yet.
    pub(super) fn version(&self) -> u64 {
        self.state().version.load(Ordering::Acquire)
    }

    /// Asks for a fetch: a token names a key that is not in the set.
    pub(super) fn want(&self) {
        self.state().wanted.store(true, Ordering::Relaxed);
    }

    /// Verifies a token with the set in force.
    pub(super) fn verify(
        &self,
        token: &[u8],
        algorithms: AlgorithmSet,
    ) -> Result<serde_json::Map<String, serde_json::Value>, TokenError> {
        match &*self.state().keys.load() {
            Some(keys) => keys.verify(token, algorithms),
            None => Err(TokenError::NoKeys),
        }
    }

    fn state(&self) -> &Arc<KeySetState> {
        self.state.get_or_init(Arc::default)
    }
}

impl KeySetState {
    fn count(&self) -> usize {
        self.keys.load().as_ref().map_or(0, |keys| keys.count())
    }

    /// Puts a set in force. Returns whether it differs from the one before.
    fn replace(&self, keys: VerificationKeys) -> bool {
        if self.keys.load().as_deref().is_some_and(|before| *before == keys) {
            return false;
        }
        // In this order: results that are remembered under a version come from its keys or from later ones.
        self.keys.store(Some(Arc::new(keys)));
        self.version.fetch_add(1, Ordering::Release);
        true
    }
}

/// A fetch that has begun. One that is dropped is begun again.
#[must_use = "a fetch that is dropped is begun again"]
pub struct KeySetFetch {
    state: Arc<KeySetState>,
    is_ended: bool,
}

impl KeySetFetch {
    /// Ends the fetch at `now` (monotonic). `chance`: a random number, which spreads the next fetch.
    pub fn end(
        mut self,
        fetched: Result<FetchedKeySet, FetchError>,
        chance: u64,
        now: Nanos,
    ) -> FetchReport {
        let read = fetched.and_then(|fetched| {
            let keys = VerificationKeys::from_published_jwks(&fetched.json)?;
            Ok((keys, fetched.max_age))
        });
        self.is_ended = true;
        let state = &self.state;
        let mut progress = state.progress.lock();
        let (outcome, failure) = match read {
            Ok((keys, max_age)) => {
                progress.schedule.succeeded(max_age, chance, now);
                progress.confirmed = Some(now);
                let is_other = state.replace(keys);
                (if is_other { FetchOutcome::Updated } else { FetchOutcome::Unchanged }, None)
            }
            Err(error) => {
                progress.schedule.failed(chance, now);
                (error.outcome(), Some(error))
            }
        };
        state.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        let is_news = outcome == FetchOutcome::Updated || progress.failure != failure;
        progress.failure.clone_from(&failure);
        FetchReport { outcome, failure, is_news, keys: state.count() }
    }
}

impl Drop for KeySetFetch {
    fn drop(&mut self) {
        if !self.is_ended {
            self.state.progress.lock().schedule.abandoned();
        }
    }
}

/// Shows the name only: the query of a URL may be a secret.
impl fmt::Debug for PublishedKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedKeySet").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Shows no URL.
impl fmt::Debug for KeySetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySetUrl(..)")
    }
}

impl fmt::Debug for KeySetFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySetFetch(..)")
    }
}
