//! Saving itself: what is saved, and the thread that does it.

use std::sync::Arc;

use crate::clock::SystemClock;
use crate::config::StateSettings;
use crate::engine::{Engine, EngineSource};
use crate::history::TrafficHistory;
use crate::ops::HistorySection;
use crate::state::{SaveIntervals, Saver, SaverHandle, StateDirectory, StateMetrics};

/// A thread that saves.
pub(super) type SavingThread = Arc<SaverHandle<EngineSource>>;

/// What is saved, and copied for a successor.
#[derive(Clone)]
pub(super) struct SaveContext {
    pub(super) engine: Arc<Engine>,
    pub(super) history: Arc<TrafficHistory>,
    pub(super) clock: Arc<SystemClock>,
    pub(super) metrics: Arc<StateMetrics>,
}

impl SaveContext {
    pub(super) fn source(self) -> EngineSource {
        let Self { engine, history, clock, metrics } = self;
        EngineSource::new(engine, Box::new(move || clock.mark()), metrics)
            .with_section(Box::new(HistorySection::new(history)))
    }
}

pub(super) fn intervals(settings: &StateSettings) -> SaveIntervals {
    SaveIntervals { flush: settings.flush.into(), sync: settings.sync.into() }
}

/// Starts the thread that saves. `lacks_cells`: cells that do not change may be missing in the directory.
pub(super) fn save(
    directory: StateDirectory,
    (intervals, lacks_cells): (SaveIntervals, bool),
    saved: SaveContext,
) -> Option<SavingThread> {
    let (store, metrics) = (Arc::clone(&saved.engine), Arc::clone(&saved.metrics));
    let (log, lock) = directory.into_log(Arc::clone(&metrics));
    let saver = Saver::new(saved.source(), log, intervals, metrics);
    let saver = if lacks_cells { saver.that_lacks_cells() } else { saver };
    match SaverHandle::spawn(saver, lock) {
        Ok(handle) => {
            let waiting = Arc::clone(&handle);
            store.set_save_wake(Box::new(move || waiting.hurry()));
            // Requests may have waited for the disk since before this thread was there.
            handle.hurry();
            Some(handle)
        }
        Err(error) => {
            log::error!("the state is not saved: no thread for it: {error}");
            store.set_saves_failing();
            None
        }
    }
}
