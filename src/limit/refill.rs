//! How a bucket refills: the arithmetic on the instant at which it is full.
//!
//! A bucket is kept as the instant at which it will be full ([`FullAt`]), in the form of the generic cell rate
//! algorithm (GCRA, ITU-T I.371). Each unit moves that instant later by one *emission interval*; units are
//! counted as the time they take to come back. This file does not judge, and does not know `max_delay`: it charges
//! what it is given.

use crate::clock::Nanos;

/// The instant (monotonic) at which a bucket is full again. The default is a full bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub struct FullAt(pub(super) Nanos);

impl FullAt {
    /// The same with `span` more spent.
    pub(super) const fn later(self, span: Nanos) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// How a bucket refills. Variants of a limit with equal values share one [`FullAt`] in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Refill {
    /// The time between two units.
    pub(super) emission: Nanos,
    /// The time that an empty bucket takes to fill.
    pub(super) fill: Nanos,
    /// The time between two refills; zero if units come one by one.
    pub(super) step: Nanos,
}

impl Refill {
    /// Whether the numbers, read from bytes, are those of a bucket.
    #[cfg(feature = "bin")]
    pub(super) fn is_sound(&self) -> bool {
        Nanos::ZERO < self.emission && self.emission <= self.fill
    }

    /// `now`, or the last refill before it.
    pub(super) const fn stepped(&self, now: Nanos) -> Nanos {
        match self.step.get() {
            0 => now,
            step => Nanos::new(now.get() - now.get() % step),
        }
    }

    /// Units as the time they take to come back.
    pub(super) const fn span(&self, units: u32) -> Nanos {
        self.emission.saturating_mul(units as u64)
    }

    /// What is spent, as the time it takes to come back.
    pub(super) const fn spent(&self, full: FullAt, now: Nanos) -> Nanos {
        full.0.saturating_sub(self.stepped(now))
    }

    /// A bucket of which `spent` is spent.
    pub(super) const fn with_spent(&self, spent: Nanos, now: Nanos) -> FullAt {
        match spent.get() {
            0 => FullAt(Nanos::ZERO),
            _ => FullAt(self.stepped(now).saturating_add(spent)),
        }
    }

    /// Charges without a limit.
    pub(super) fn charge(&self, full: FullAt, units: u32, now: Nanos) -> FullAt {
        FullAt(full.0.max(self.stepped(now)).saturating_add(self.span(units)))
    }

    /// Charges until `max_spent` is spent; a bucket of which more is spent stays as it is.
    pub(super) fn charge_up_to(
        &self,
        max_spent: Nanos,
        full: FullAt,
        units: u32,
        now: Nanos,
    ) -> FullAt {
        let latest = FullAt(self.stepped(now).saturating_add(max_spent));
        full.max(self.charge(full, units, now).min(latest))
    }

    /// Gives back all units, whatever came back since they were charged.
    pub(super) fn refund(&self, full: FullAt, units: u32) -> FullAt {
        FullAt(full.0.saturating_sub(self.span(units)))
    }
}
