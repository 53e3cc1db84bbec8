//! What is counted of decisions: plain atomics, read by whoever shows them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::histogram::Histogram;
use crate::policy::Tier;

use super::trial::CandidateComparison;

/// How one limit's verdict is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    /// The charge fits.
    Allowed,
    /// It does not.
    Denied,
    /// It does not, and the limit is in shadow mode.
    ShadowDenied,
    /// No room for a new key; it passes.
    OverflowAllowed,
    /// No room for a new key, or none to wait in; it is refused.
    OverflowDenied,
    /// The store is away; it passes.
    DegradedAllowed,
    /// The store is away; it is refused.
    DegradedDenied,
}

impl VerdictKind {
    /// Every kind, in the order of the counters.
    pub const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Denied,
        Self::ShadowDenied,
        Self::OverflowAllowed,
        Self::OverflowDenied,
        Self::DegradedAllowed,
        Self::DegradedDenied,
    ];

    /// Whether the store was away.
    pub const fn is_degraded(self) -> bool {
        matches!(self, Self::DegradedAllowed | Self::DegradedDenied)
    }

    /// The word of the metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::OverflowAllowed => "overflow_allowed",
            Self::OverflowDenied => "overflow_denied",
            Self::DegradedAllowed => "degraded_allowed",
            Self::DegradedDenied => "degraded_denied",
        }
    }
}

/// How the two verdicts of a limit are counted.
#[derive(Clone, Copy)]
pub(super) struct VerdictKinds {
    pub(super) allowed: VerdictKind,
    pub(super) denied: VerdictKind,
}

impl VerdictKinds {
    /// The limit was judged where it counts.
    pub(super) const NORMAL: Self =
        Self { allowed: VerdictKind::Allowed, denied: VerdictKind::Denied };

    /// There was no room for the key.
    pub(super) const OVERFLOW: Self =
        Self { allowed: VerdictKind::OverflowAllowed, denied: VerdictKind::OverflowDenied };

    /// The store failed.
    pub(super) const DEGRADED: Self =
        Self { allowed: VerdictKind::DegradedAllowed, denied: VerdictKind::DegradedDenied };
}

/// How many places a limit's verdicts are counted in: two cores of some dozen seldom write to the
/// same, and one that is written by two costs each of them more than all else of a decision.
const STRIPES: usize = 8;

/// A line of the processor's cache of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe([AtomicU64; VerdictKind::ALL.len()]);

/// Where this thread counts.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    OWN.with(|own| *own)
}

/// The verdicts of one limit, over all generations.
#[derive(Debug, Default)]
pub struct LimitCounters {
    verdicts: [Stripe; STRIPES],
    trials: [AtomicU64; CandidateComparison::ALL.len()],
    bans: AtomicU64,
}

impl LimitCounters {
    pub(super) fn record(&self, kind: VerdictKind) {
        self.verdicts[stripe()].0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_candidate(&self, kind: CandidateComparison) {
        self.trials[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_ban(&self) {
        self.bans.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the candidate said so.
    pub fn candidate_verdicts(&self, kind: CandidateComparison) -> u64 {
        self.trials[kind as usize].load(Ordering::Relaxed)
    }

    /// Bans that this node made.
    pub fn bans(&self) -> u64 {
        self.bans.load(Ordering::Relaxed)
    }

    /// How many verdicts of a kind there were.
    pub fn get(&self, kind: VerdictKind) -> u64 {
        self.verdicts.iter().map(|stripe| stripe.0[kind as usize].load(Ordering::Relaxed)).sum()
    }
}

/// How long decisions take, by the dearest tier they asked.
#[derive(Debug)]
pub struct Durations {
    estimate: Histogram<10>,
    exact: Histogram<10>,
}

impl Default for Durations {
    fn default() -> Self {
        // From a quarter of a microsecond in steps of four: an embedded decision takes some
        // hundred nanoseconds, one that waits for a store some hundred microseconds.
        Self { estimate: Histogram::exponential(250, 4), exact: Histogram::exponential(250, 4) }
    }
}

impl Durations {
    /// The histogram of a tier.
    pub const fn of(&self, tier: Tier) -> &Histogram<10> {
        match tier {
            Tier::Estimate => &self.estimate,
            Tier::Exact => &self.exact,
        }
    }
}
