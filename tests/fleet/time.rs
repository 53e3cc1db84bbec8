//! Turned time: that of the world, and each node's clocks, which are off.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::clock::{Clock, Nanos, Now};

/// When every schedule begins.
const BEGIN: u64 = 1_700_000_000_000_000_000;

/// The world's time. Nobody but a schedule knows it.
pub(crate) struct World {
    origin: Instant,
    /// Where in a window the schedule begins.
    offset: u64,
}

/// The clocks of a node.
pub(crate) struct NodeClock {
    world: Arc<World>,
    /// How far its wall time is off, in nanoseconds.
    off: AtomicI64,
    /// How much its monotonic time runs fast, in parts per million.
    fast: i64,
    /// Its monotonic time at the beginning.
    mono: u64,
}

pub(crate) fn nanos(span: Duration) -> Nanos {
    Nanos::from(span)
}

impl World {
    pub(crate) fn new(offset: u64) -> Arc<Self> {
        Arc::new(Self { origin: Instant::now(), offset })
    }

    pub(crate) fn elapsed(&self) -> Nanos {
        nanos(Instant::now() - self.origin)
    }

    /// The true time.
    pub(crate) fn wall(&self) -> Nanos {
        Nanos::new(BEGIN + self.offset).saturating_add(self.elapsed())
    }
}

impl NodeClock {
    pub(crate) fn new(world: &Arc<World>, off: i64, fast: i64, mono: u64) -> Arc<Self> {
        Arc::new(Self { world: Arc::clone(world), off: AtomicI64::new(off), fast, mono })
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Now {
        let elapsed = self.world.elapsed().get();
        let drift = elapsed as i64 / 1_000_000 * self.fast;
        let run = elapsed.saturating_add_signed(drift);
        let wall = (BEGIN + self.world.offset + run)
            .saturating_add_signed(self.off.load(Ordering::SeqCst));
        Now { mono: Nanos::new(self.mono + run), wall: Nanos::new(wall) }
    }

    fn date(&self, at: Now) -> Nanos {
        at.wall
    }
}
