//! A section of the state that has its own owner.

use super::log::FrameSink;

/// What is saved with the cells of the engine, by whoever owns it. Frames of a section need no order among others.
pub trait StateSection: Send {
    /// Adds what has changed since the last call. It is called at every save, so it must be cheap when nothing has.
    fn save_changes(&mut self, sink: &mut dyn FrameSink);

    /// Adds everything, once in every round.
    fn save_all(&mut self, sink: &mut dyn FrameSink);
}
