//! Runs the fetches: begins each when its schedule says so, and logs how it ended.

use std::sync::Arc;
use std::time::Duration;

use super::client;
use crate::clock::Clock;
#[cfg(feature = "bin")]
use crate::tokens::FetchError;
use crate::tokens::{FetchOutcome, KeySetFetch, PublishedKeySet};

/// How long a start and a reload wait for sets of which there is none yet, so that the first requests find them. If a
/// publisher does not answer in time, `on_keys_failure` decides until it does.
const FIRST_FETCH_WAIT: Duration = Duration::from_secs(1);

/// Begins every fetch for which it is time, each as a task of its own. To be called a few times a second, on a Tokio
/// runtime with I/O.
pub(crate) fn begin_fetches(sets: &[Arc<PublishedKeySet>], clock: &Arc<dyn Clock>) {
    for set in sets {
        if let Some(fetch) = set.begin_fetch(clock.now().mono) {
            tokio::spawn(run(Arc::clone(set), fetch, Arc::clone(clock)));
        }
    }
}

/// Fetches the sets of which there is none yet, and waits for them, but no longer than [`FIRST_FETCH_WAIT`]. Fetches go
/// on after that.
pub(crate) async fn wait_for_first(sets: &[Arc<PublishedKeySet>], clock: &Arc<dyn Clock>) {
    let missing = sets.iter().filter(|set| !set.has_keys());
    let begun: Vec<_> = missing
        .filter_map(|set| {
            let fetch = set.begin_fetch(clock.now().mono)?;
            Some(tokio::spawn(run(Arc::clone(set), fetch, Arc::clone(clock))))
        })
        .collect();
    if begun.is_empty() {
        return;
    }
    let all = futures_util::future::join_all(begun);
    if tokio::time::timeout(FIRST_FETCH_WAIT, all).await.is_err() {
        let names = sets.iter().filter(|set| !set.has_keys()).map(|set| set.name());
        let names: Vec<&str> = names.collect();
        log::error!(
            "{}: no keys within {} s; on_keys_failure decides until they come",
            names.join(", "),
            FIRST_FETCH_WAIT.as_secs()
        );
    }
}

/// Fetches a set once, as a server would, and puts it in force. Returns why there is none.
#[cfg(feature = "bin")]
pub(crate) async fn fetch_failure(set: &PublishedKeySet) -> Option<FetchError> {
    let fetched = client::fetch(set.url()).await;
    fetched.and_then(|fetched| Ok(set.install(&fetched.json)?)).err()
}

async fn run(set: Arc<PublishedKeySet>, fetch: KeySetFetch, clock: Arc<dyn Clock>) {
    let fetched = client::fetch(set.url()).await;
    let report = fetch.end(fetched, fastrand::u64(..), clock.now().mono);
    let (name, keys) = (set.name(), report.keys);
    match report.failure {
        None if report.outcome == FetchOutcome::Updated => {
            log::info!("{name}: keys in force: {keys}");
        }
        None if report.is_news => log::info!("{name}: answers again, with the keys in force"),
        Some(error) if report.is_news && keys > 0 => {
            log::error!("{name}: {error}; the last good set stays, keys in force: {keys}");
        }
        Some(error) if report.is_news => {
            log::error!("{name}: {error}; there are no keys, so on_keys_failure decides");
        }
        None => log::debug!("{name}: the keys in force are confirmed"),
        Some(error) => log::debug!("{name}: {error}, again"),
    }
}
