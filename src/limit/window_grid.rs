//! The grid of windows that `fixed_window` and `sliding_window` count in.
//!
//! Windows are aligned to multiples of their length since the Unix epoch (wall time). A window is named by its
//! number since the epoch, of which cells keep the low 32 bits: enough to tell a window from its neighbours.

use crate::clock::Nanos;

/// The largest difference between the clock readings of two threads that charge one cell in the other order. It is
/// longer than a thread is held up between its reading and its charge.
const MAX_READING_LAG: Nanos = Nanos::SECOND;

/// An instant on the grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct GridPosition {
    /// The window, counted from the epoch modulo 2^32.
    pub(super) window: u32,
    /// The time since this window began.
    pub(super) elapsed: Nanos,
}

impl GridPosition {
    /// The position of an instant (wall time) among windows of this length.
    pub(super) const fn at(instant: Nanos, length: Nanos) -> Self {
        let (instant, length) = (instant.get(), length.get());
        Self { window: (instant / length) as u32, elapsed: Nanos::new(instant % length) }
    }
}

/// How many windows `cell` is ahead of `now`, both counted modulo 2^32.
///
/// A thread that read the clock later may have charged the cell first, and crossed an edge: then the cell's
/// window is ahead by a little. `None` if the window has passed, or is so far ahead that it was counted before
/// a clock ran back. The count of such a window is ignored; otherwise the key would be locked out until then.
pub(super) fn windows_ahead(cell: u32, now: u32, length: Nanos) -> Option<u64> {
    match cell.wrapping_sub(now) {
        // The usual case. One ahead counts for every length: another thread has crossed an edge.
        ahead @ 0..=1 => Some(ahead.into()),
        ahead if ahead > u32::MAX / 2 => None,
        ahead => Some(ahead.into()).filter(|ahead| *ahead <= MAX_READING_LAG.get() / length.get()),
    }
}
