//! An instant, and where instants come from.

use super::nanos::Nanos;

/// One instant, read on two time lines (see the module's documentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the clock was created; never jumps, never runs back.
    pub mono: Nanos,
    /// Since the Unix epoch, for windows; may jump forwards, never runs back.
    pub wall: Nanos,
}

/// A source of [`Now`]: the system, or a test that moves time by hand.
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Now;

    /// The date at an instant that this clock has just returned: the system's clock as it is, since the Unix epoch. It
    /// may run back. This reads no clock.
    fn date(&self, at: Now) -> Nanos;
}
