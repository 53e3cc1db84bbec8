//! An instant, and where instants come from.

use super::nanos::Nanos;

/// One instant, read on two time lines (see the module's documentation).
///
/// ```
/// use tollgate::clock::{Clock, Now, SystemClock};
///
/// let clock = SystemClock::new();
/// let (first, second): (Now, Now) = (clock.now(), clock.now());
/// assert!(first.mono <= second.mono && first.wall <= second.wall);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct Now {
    /// Since the clock was created; never jumps, never runs back.
    pub mono: Nanos,
    /// Since the Unix epoch, for windows; may jump forwards, never runs back.
    pub wall: Nanos,
}

/// A source of [`Now`]: the system, or a test that moves time by hand.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::Limiter;
/// use tollgate::clock::{Clock, ManualClock, Nanos};
///
/// let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Nanos::from_secs(1_700_000_000)));
/// let limiter = Limiter::builder().policy_text("version: 1\nroutes: [{ name: site }]").clock(clock).build()?;
/// # drop(limiter);
/// # Ok::<(), tollgate::LimiterError>(())
/// ```
pub trait Clock: Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Now;

    /// The date at an instant that this clock has just returned: the system's clock as it is, since the Unix epoch. It
    /// may run back. This reads no clock.
    fn date(&self, at: Now) -> Nanos;
}
