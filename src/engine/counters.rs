//! Counters of decisions: plain atomics without a metrics format.
//!
//! The counters of a limit are kept over all generations and never decrease.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::histogram::Histogram;
use crate::policy::{Tier, UnreadCost};

/// The kind of a limit's verdict in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    /// The limit admits.
    Allowed,
    /// The limit denies.
    Denied,
    /// The limit would deny, but is in shadow mode.
    ShadowDenied,
    /// The store has no room for the key, and the request is admitted.
    OverflowAllowed,
    /// The store has no room for the key, or no delay slot is free, and the request is denied.
    OverflowDenied,
    /// The shared store fails, and the request is admitted.
    DegradedAllowed,
    /// The shared store fails, and the request is denied.
    DegradedDenied,
}

impl VerdictKind {
    /// Whether there was no room for the key, or no delay slot.
    pub const fn lacks_room(self) -> bool {
        matches!(self, Self::OverflowAllowed | Self::OverflowDenied)
    }

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

    /// Whether the shared store failed.
    pub const fn is_degraded(self) -> bool {
        matches!(self, Self::DegradedAllowed | Self::DegradedDenied)
    }

    /// The label in metrics.
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

/// The kinds of the two possible verdicts of a limit.
#[derive(Clone, Copy)]
pub(super) struct VerdictKinds {
    pub(super) allowed: VerdictKind,
    pub(super) denied: VerdictKind,
}

impl VerdictKinds {
    /// The limit was judged in its own store.
    pub(super) const NORMAL: Self =
        Self { allowed: VerdictKind::Allowed, denied: VerdictKind::Denied };

    /// The store had no room for the key.
    pub(super) const OVERFLOW: Self =
        Self { allowed: VerdictKind::OverflowAllowed, denied: VerdictKind::OverflowDenied };

    /// The shared store failed.
    pub(super) const DEGRADED: Self =
        Self { allowed: VerdictKind::DegradedAllowed, denied: VerdictKind::DegradedDenied };
}

/// A candidate's verdict compared with that of the rate in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateComparison {
    /// Both decide the same.
    Agrees,
    /// The candidate would deny what is allowed.
    WouldDeny,
    /// The candidate would allow what is denied.
    WouldAllow,
}

impl CandidateComparison {
    /// Every comparison, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Agrees, Self::WouldDeny, Self::WouldAllow];

    /// The label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::WouldDeny => "would_deny",
            Self::WouldAllow => "would_allow",
        }
    }
}

/// The number of stripes of a limit's counters. Threads write to different stripes: a cache line that two cores write
/// to costs each of them more than the rest of a decision.
pub(crate) const STRIPES: usize = 8;

/// Counters of verdicts by kind, and of charged units, in a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    verdicts: [AtomicU64; VerdictKind::ALL.len()],
    charged: AtomicU64,
}

const _: () = assert!(size_of::<Stripe>() == 64);

/// The stripe of this thread.
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    OWN.with(|own| *own)
}

/// The counters of one limit, over all generations.
#[derive(Debug, Default)]
pub struct LimitCounters {
    stripes: [Stripe; STRIPES],
    candidates: [AtomicU64; CandidateComparison::ALL.len()],
    bans: AtomicU64,
    refunded: AtomicU64,
    unread_costs: [AtomicU64; UnreadCost::ALL.len()],
}

impl LimitCounters {
    pub(super) fn record(&self, kind: VerdictKind) {
        self.stripes[stripe()].verdicts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_charged(&self, units: u32) {
        self.stripes[stripe()].charged.fetch_add(units.into(), Ordering::Relaxed);
    }

    pub(super) fn record_refunded(&self, units: u32) {
        self.refunded.fetch_add(units.into(), Ordering::Relaxed);
    }

    pub(super) fn record_unread_cost(&self, reason: UnreadCost) {
        self.unread_costs[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_candidate(&self, kind: CandidateComparison) {
        self.candidates[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_ban(&self) {
        self.bans.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of comparisons of this kind between the candidate and the rate in force.
    pub fn candidate_verdicts(&self, kind: CandidateComparison) -> u64 {
        self.candidates[kind as usize].load(Ordering::Relaxed)
    }

    /// The number of bans that this node made.
    pub fn bans(&self) -> u64 {
        self.bans.load(Ordering::Relaxed)
    }

    /// The number of verdicts of this kind.
    pub fn get(&self, kind: VerdictKind) -> u64 {
        let count = |stripe: &Stripe| stripe.verdicts[kind as usize].load(Ordering::Relaxed);
        self.stripes.iter().map(count).sum()
    }

    /// Units that were charged to requests that passed, refunded ones included.
    pub fn charged(&self) -> u64 {
        self.stripes.iter().map(|stripe| stripe.charged.load(Ordering::Relaxed)).sum()
    }

    /// Units that were refunded because of the response.
    pub fn refunded(&self) -> u64 {
        self.refunded.load(Ordering::Relaxed)
    }

    /// How often the cost of a response was not known, for this reason.
    pub fn unread_costs(&self, reason: UnreadCost) -> u64 {
        self.unread_costs[reason as usize].load(Ordering::Relaxed)
    }
}

/// The durations of decisions, by the most expensive tier that they asked.
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
