//! The time of a log.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Clock, Nanos, Now};

/// A clock that stands at the time of the event that is settled. Events of several threads of a process are in the order in which
/// they happened, so it may run back by a moment, as the readings of those threads did.
#[derive(Debug, Default)]
pub(super) struct LogClock {
    mono: AtomicU64,
    wall: AtomicU64,
}

impl LogClock {
    /// Goes to this time.
    pub(super) fn go_to(&self, at: Now) {
        self.mono.store(at.mono.get(), Ordering::Relaxed);
        self.wall.store(at.wall.get(), Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Now {
        Now {
            mono: Nanos::new(self.mono.load(Ordering::Relaxed)),
            wall: Nanos::new(self.wall.load(Ordering::Relaxed)),
        }
    }

    fn date(&self, at: Now) -> Nanos {
        at.wall
    }
}
