//! The traffic history as a section of the state directory.

use std::sync::Arc;

use crate::history::TrafficHistory;
use crate::state::{FrameKind, FrameSink, StateSection};

/// Saves the minutes of a history: each once it has ended, and all in every round.
pub struct HistorySection(Arc<TrafficHistory>);

impl HistorySection {
    /// Saves the minutes of this history.
    pub const fn new(history: Arc<TrafficHistory>) -> Self {
        Self(history)
    }
}

impl StateSection for HistorySection {
    fn save_changes(&mut self, sink: &mut dyn FrameSink) {
        self.0.save(false, |payload| sink.add(FrameKind::History, 0, payload));
    }

    fn save_all(&mut self, sink: &mut dyn FrameSink) {
        self.0.save(true, |payload| sink.add(FrameKind::History, 0, payload));
    }
}
