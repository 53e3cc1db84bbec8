//! How far saving has come, for requests that must not be forwarded before their charges are on the disk.
//!
//! The thread that saves numbers its batches. A charge that needs to be saved names the first batch that begins after it;
//! its request waits until that batch is on the disk. This file knows neither files nor cells.
//!
//! When the process ends, the last batch copies shard after shard while requests are still judged. What is charged after its
//! shard was copied would be forwarded and then forgotten. So from then on every charge waits, and the process ends before
//! any of these requests is forwarded.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

#[cfg(feature = "bin")]
use crate::clock::Stopwatch;

/// How long a request waits for the disk. A disk that takes longer is failing, and requests do not wait for those.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The time between two looks of a thread that waits for the disk.
#[cfg(feature = "bin")]
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The batch of charges that are made while the process ends: it never comes.
const NEVER: u64 = u64::MAX;

/// Batches that were begun, and batches that are on the disk.
pub struct SaveProgress {
    begun: AtomicU64,
    /// Whether the process ends.
    is_ending: AtomicBool,
    saved: watch::Sender<Saved>,
    /// Asks the thread that saves to begin a batch now.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Saved {
    /// The last batch that is on the disk.
    batch: u64,
    /// Whether the disk fails, so that nobody should wait.
    is_failing: bool,
}

impl Default for SaveProgress {
    fn default() -> Self {
        Self {
            begun: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            saved: watch::Sender::new(Saved::default()),
            wake: OnceLock::new(),
        }
    }
}

impl SaveProgress {
    /// The batch that has to be on the disk before a charge counts as made. `is_covered`: none has to, because what was
    /// written before allows for the charge. The caller has locked the shard of the charge.
    pub(super) fn needed(&self, is_covered: impl FnOnce() -> bool) -> Option<u64> {
        // The last batch begins after this is set. It locks each shard, so whoever locks the shard later sees it.
        if self.is_ending.load(Ordering::Relaxed) {
            return Some(NEVER);
        }
        (!is_covered()).then(|| self.begun.load(Ordering::SeqCst) + 1)
    }

    /// From now on every charge waits for ever. The last batch follows, and then the end of the process.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    /// The last batch that is on the disk.
    pub fn saved(&self) -> u64 {
        self.saved.borrow().batch
    }

    /// Begins a batch, before its first cell is copied. Returns its number.
    pub fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// All batches up to this one are on the disk.
    pub fn set_saved(&self, batch: u64) {
        self.saved.send_replace(Saved { batch, is_failing: false });
    }

    /// The disk fails.
    pub fn set_failing(&self) {
        self.saved.send_modify(|saved| saved.is_failing = true);
    }

    /// What asks for a batch now. The first stays.
    pub fn set_wake(&self, wake: Box<dyn Fn() + Send + Sync>) {
        // There is one thread that saves.
        let _ = self.wake.set(wake);
    }

    /// Returns when a batch is on the disk; `false` if it is not, because the disk fails or takes too long. While the process
    /// ends, it does not return for charges that the last batch may not contain.
    pub async fn wait(&self, batch: u64) -> bool {
        if batch == NEVER {
            return std::future::pending().await;
        }
        let mut saved = self.saved.subscribe();
        if saved.borrow().batch < batch
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
        let is_over = |saved: &Saved| saved.batch >= batch || saved.is_failing;
        let Ok(waited) = tokio::time::timeout(MAX_WAIT, saved.wait_for(is_over)).await else {
            // Others need not wait as long. The next batch that is on the disk ends it.
            self.set_failing();
            return false;
        };
        // An error of the channel is impossible: its sender lives as long as `self`.
        waited.is_ok_and(|saved| saved.batch >= batch)
    }
}

#[cfg(feature = "bin")]
impl SaveProgress {
    /// Has a batch begun now, and waits, on a thread that may, until it is on the disk; `false`: it is not, after `patience`.
    pub(crate) fn save_within(&self, patience: Duration) -> bool {
        let batch = self.begun.load(Ordering::SeqCst) + 1;
        if let Some(wake) = self.wake.get() {
            wake();
        }
        let timed = Stopwatch::start();
        while self.saved() < batch {
            if timed.elapsed() > patience {
                return false;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        true
    }
}

impl fmt::Debug for SaveProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaveProgress").field("begun", &self.begun).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request after the other would wait for a second.
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_waited_for_once() {
        let saves = SaveProgress::default();
        let batch = saves.begin();
        let within =
            async |span: Duration, batch| tokio::time::timeout(span, saves.wait(batch)).await.ok();
        let (short, long) = (MAX_WAIT / 2, MAX_WAIT * 2);
        assert_eq!(within(short, batch).await, None, "it waits");
        assert_eq!(within(long, batch).await, Some(false));
        assert_eq!(within(short, batch).await, Some(false), "it does not wait again");
        saves.set_saved(batch);
        assert_eq!(within(short, batch).await, Some(true));
        assert_eq!(within(short, batch + 1).await, None);
    }
}
