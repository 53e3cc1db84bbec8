//! Whoever copies what the running process counts: the thread that saves it, or one that is made for the handover.
//!
//! While a handover lasts, saving goes on, and what is saved goes to the successor too, in the same order.

use std::sync::Arc;

use crate::clock::{Clock, Nanos};
use crate::engine::EngineSource;
use crate::state::{AfterTask, FrameSink, Saver, SaverHandle, StateSource as _, SuccessorSink};

/// How often changes are copied without a state directory.
const COPY_INTERVAL: Nanos = Nanos::from_millis(100);

/// Work that needs the keeper, on its thread.
pub(crate) type KeeperTask = Box<dyn FnOnce(&mut Keeper<'_>) -> AfterTask + Send>;

/// Copies cells for a successor.
pub(crate) struct Keeper<'k> {
    from: CopyFrom<'k>,
    /// When changes were copied last.
    stepped: Nanos,
}

enum CopyFrom<'k> {
    Saving {
        saver: &'k mut Saver<EngineSource>,
        handle: Arc<SaverHandle<EngineSource>>,
    },
    /// Nothing is saved.
    Copying {
        source: EngineSource,
        successor: Option<SuccessorSink>,
    },
}

impl<'k> Keeper<'k> {
    /// The thread that saves.
    pub(crate) const fn saving(
        saver: &'k mut Saver<EngineSource>,
        handle: Arc<SaverHandle<EngineSource>>,
    ) -> Self {
        Self { from: CopyFrom::Saving { saver, handle }, stepped: Nanos::ZERO }
    }

    /// One that only copies.
    pub(crate) const fn copying(source: EngineSource) -> Self {
        Self { from: CopyFrom::Copying { source, successor: None }, stepped: Nanos::ZERO }
    }

    /// Whether the process is told to end, so that a handover is given up.
    pub(super) fn is_stopping(&self) -> bool {
        match &self.from {
            CopyFrom::Saving { handle, .. } => handle.is_stopping(),
            CopyFrom::Copying { .. } => false,
        }
    }

    /// From now on the successor gets what changes; `None`: no more.
    pub(super) fn set_successor_sink(&mut self, to: Option<SuccessorSink>) {
        match &mut self.from {
            CopyFrom::Saving { saver, .. } => saver.set_successor_sink(to),
            CopyFrom::Copying { successor, .. } => *successor = to,
        }
    }

    pub(super) fn shards(&self) -> usize {
        match &self.from {
            CopyFrom::Saving { saver, .. } => saver.shards(),
            CopyFrom::Copying { source, .. } => source.shards(),
        }
    }

    /// Saves and copies what has changed, if it is time.
    pub(super) fn tick(&mut self, clock: &dyn Clock) {
        let (interval, is_urgent) = match &mut self.from {
            CopyFrom::Saving { saver, handle } => (saver.flush_interval(), handle.take_urgent()),
            CopyFrom::Copying { .. } => (COPY_INTERVAL, false),
        };
        if let CopyFrom::Saving { saver, .. } = &mut self.from {
            saver.poll_sync();
        }
        if is_urgent || clock.now().mono >= self.stepped.saturating_add(interval) {
            self.step(clock, is_urgent);
        }
    }

    /// Saves and copies what has changed.
    pub(super) fn step(&mut self, clock: &dyn Clock, is_urgent: bool) {
        match &mut self.from {
            CopyFrom::Saving { saver, .. } => saver.step(is_urgent),
            CopyFrom::Copying { source, successor } => {
                if let Some(successor) = successor {
                    source.save_changes(successor.as_mut());
                }
            }
        }
        // A disk that is slower than the interval must not take all of the time.
        self.stepped = clock.now().mono;
    }

    /// The cells are here again.
    pub(super) const fn take_back(&mut self) {
        if let CopyFrom::Saving { saver, .. } = &mut self.from {
            saver.set_handed_over(false);
        }
    }

    /// Copies cells that have not changed.
    pub(super) fn copy(&mut self, add: impl FnOnce(&mut EngineSource, &mut dyn FrameSink)) {
        match &mut self.from {
            CopyFrom::Saving { saver, .. } => saver.copy_to_successor(add),
            CopyFrom::Copying { source, successor } => {
                if let Some(successor) = successor {
                    add(source, successor.as_mut());
                }
            }
        }
    }

    /// Copies what has changed in a way of its own; it is saved too.
    pub(super) fn copy_last(&mut self, add: impl FnOnce(&mut EngineSource, &mut dyn FrameSink)) {
        match &mut self.from {
            CopyFrom::Saving { saver, .. } => {
                saver.set_handed_over(true);
                saver.save_with_successor(add);
            }
            CopyFrom::Copying { source, successor } => {
                if let Some(successor) = successor {
                    add(source, successor.as_mut());
                }
            }
        }
    }
}
