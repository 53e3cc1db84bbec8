//! Frames for a log and for a successor at once.

use super::frame::FrameKind;
use super::log::{FrameSink, StateLog};

/// What a process tells its successor about what it counts, as frames.
pub type SuccessorSink = Box<dyn FrameSink + Send>;

/// Which of the two get cells. Everything else goes to both, so that a cell never arrives before the quota that it names;
/// what no directory keeps goes to the successor alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellsFor {
    Log,
    Successor,
    Both,
}

/// Adds frames to both.
pub(super) struct SharedSink<'s> {
    /// `None`: it is not open.
    pub(super) log: Option<&'s mut StateLog>,
    /// `None`: nobody takes over now.
    pub(super) successor: Option<&'s mut SuccessorSink>,
    pub(super) cells: CellsFor,
}

impl FrameSink for SharedSink<'_> {
    fn add(&mut self, kind: FrameKind, group: u8, payload: &[u8]) {
        let (is_for_log, is_for_successor) = match kind {
            FrameKind::Cells => (self.cells != CellsFor::Successor, self.cells != CellsFor::Log),
            FrameKind::Confirm | FrameKind::InFlight | FrameKind::Fleet => (false, true),
            FrameKind::Start
            | FrameKind::Quotas
            | FrameKind::Bans
            | FrameKind::Rules
            | FrameKind::History
            | FrameKind::Time
            | FrameKind::Complete
            | FrameKind::CleanStop => (true, true),
        };
        if let Some(log) = self.log.as_mut().filter(|_| is_for_log) {
            log.add(kind, group, payload);
        }
        if let Some(successor) = self.successor.as_mut().filter(|_| is_for_successor) {
            successor.add(kind, group, payload);
        }
    }
}
