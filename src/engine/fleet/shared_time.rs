//! What a node knows of the store's time, by which the nodes of a fleet divide windows.
//!
//! The store names its time in each reply. It was read between the call and the reply, so each reply bounds the store's time
//! less the node's monotonic time from both sides. The bounds of all replies are intersected, and widen by what two clocks
//! may drift apart in between.
//!
//! A reply that contradicts the bounds is of another clock: of another server, or of one that was set, or it lies. Windows
//! are not divided anew at once, or a store could have nodes forget what they counted as often as it likes: the node
//! counts alone until the new time has been told several times, and follows at most once in [`SharedTime::MIN_STEP_AGE`].

use crate::clock::Nanos;
use crate::limit::MICROSECOND;

/// What two clocks may drift apart: one part in this many. System clocks are corrected by at most one in 2,000 each.
const DRIFT_DIVISOR: u64 = 1_000;

/// Replies that have to agree on a new time before it is followed.
const AGREEING_REPLIES: u32 = 3;

/// Bounds of the store's time less the monotonic time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeBounds {
    pub(super) earliest: Nanos,
    pub(super) latest: Nanos,
}

/// What a reply says of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeNews {
    /// The bounds hold.
    Known,
    /// The reply contradicts what is known. Counts of other nodes are not to be used meanwhile.
    Contradicted,
    /// Another time holds from now on, which is up to `back` before the one that charges were dated by.
    Stepped {
        /// Zero: it is later.
        back: Nanos,
    },
}

/// The store's time, as replies told it.
#[derive(Debug, Default)]
pub(super) struct SharedTime {
    /// The bounds that hold, and when (monotonic) they were computed.
    known: Option<(TimeBounds, Nanos)>,
    /// Other bounds, when they were computed, and how many replies have agreed on them.
    candidate: Option<(TimeBounds, Nanos, u32)>,
    /// When bounds were followed last.
    followed_at: Nanos,
}

impl SharedTime {
    /// The shortest time between two changes to another time.
    pub(super) const MIN_STEP_AGE: Nanos = Nanos::from_secs(60);

    /// Continues with bounds that were known at a monotonic time.
    pub(super) fn continuing(bounds: Option<(Nanos, Nanos)>, now: Nanos) -> Self {
        let known = bounds.map(|(earliest, latest)| (TimeBounds { earliest, latest }, now));
        Self { known, ..Self::default() }
    }

    /// Takes up the time of a reply, from the monotonic times of the call and of the reply. `own`: the node's wall time less
    /// its monotonic time, by which it dated its charges before the first reply.
    pub(super) fn learn(
        &mut self,
        time: Nanos,
        sent: Nanos,
        received: Nanos,
        own: Nanos,
    ) -> TimeNews {
        let reply = TimeBounds {
            earliest: time.saturating_sub(received),
            latest: time.saturating_sub(sent).saturating_add(MICROSECOND),
        };
        let Some((known, at)) = self.known else {
            self.follow(reply, received);
            return TimeNews::Stepped { back: own.saturating_sub(reply.earliest) };
        };
        let widened = known.widened(received.saturating_sub(at));
        if let Some(both) = widened.and(reply) {
            self.known = Some((both, received));
            self.candidate = None;
            return TimeNews::Known;
        }
        self.known = Some((widened, received));
        let agreed = self.candidate.and_then(|(bounds, at, replies)| {
            let both = bounds.widened(received.saturating_sub(at)).and(reply)?;
            Some((both, received, replies + 1))
        });
        let candidate = agreed.unwrap_or((reply, received, 1));
        let may_follow = received.saturating_sub(self.followed_at) >= Self::MIN_STEP_AGE;
        if candidate.2 < AGREEING_REPLIES || !may_follow {
            self.candidate = Some(candidate);
            return TimeNews::Contradicted;
        }
        self.follow(candidate.0, received);
        TimeNews::Stepped { back: widened.latest.saturating_sub(candidate.0.earliest) }
    }

    /// The bounds at a monotonic time.
    pub(super) fn bounds(&self, now: Nanos) -> Option<TimeBounds> {
        self.known.map(|(bounds, at)| bounds.widened(now.saturating_sub(at)))
    }

    fn follow(&mut self, bounds: TimeBounds, now: Nanos) {
        (self.known, self.candidate, self.followed_at) = (Some((bounds, now)), None, now);
    }
}

impl TimeBounds {
    fn widened(self, age: Nanos) -> Self {
        let drift = Nanos::new(age.get() / DRIFT_DIVISOR);
        Self {
            earliest: self.earliest.saturating_sub(drift),
            latest: self.latest.saturating_add(drift),
        }
    }

    fn and(self, other: Self) -> Option<Self> {
        let both = Self {
            earliest: self.earliest.max(other.earliest),
            latest: self.latest.min(other.latest),
        };
        (both.earliest <= both.latest).then_some(both)
    }
}
