//! The limits of a generation that count over the fleet, as the exchange needs them.

use std::sync::Arc;

use super::records::CountName;
use crate::clock::Nanos;
use crate::engine::Generation;
use crate::estimator::{EstimateLimit, FleetView, NodeCount};
use crate::limit::{Rate, SlidingWindow, WindowPair};

/// A limit that counts over the fleet.
#[derive(Clone, Debug)]
pub(super) struct FleetLimit {
    /// The number by which the confirm table knows it.
    pub(super) number: u8,
    pub(super) rate: Rate,
    pub(super) view: Arc<FleetView>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct FleetLimits(pub(super) Vec<FleetLimit>);

impl FleetLimit {
    fn of(estimate: &EstimateLimit) -> Option<Self> {
        let view = Arc::clone(estimate.fleet()?);
        Some(Self { number: estimate.number(), rate: estimate.rate(), view })
    }

    /// Units that count, or did in the window before, as a share of the limit: a fixed-point number with 32 binary digits
    /// after the point.
    pub(super) fn share(&self, units: u32) -> u64 {
        (u64::from(units) << 32) / u64::from(self.rate.count().max(1))
    }

    /// Units of the window of `now` and of the one before.
    pub(super) fn units(&self, counted: WindowPair, now: Nanos) -> u32 {
        let (_, current, previous) = self.window().live_counts(counted, now).counts();
        current.saturating_add(previous)
    }

    /// The window that the limit counts in.
    pub(super) const fn window(&self) -> SlidingWindow {
        SlidingWindow::new(self.rate)
    }

    /// Whether none of the windows of a count includes `now`, or will.
    pub(super) fn is_over(&self, counted: WindowPair, now: Nanos) -> bool {
        let present = (now.get() / self.rate.period().get()) as u32;
        let (window, ..) = counted.counts();
        // A window counts during the next one too.
        (2..=u32::MAX / 2).contains(&present.wrapping_sub(window))
    }

    /// Whether a count says that it has units of windows that begin after `now`.
    pub(super) fn is_ahead(&self, counted: WindowPair, now: Nanos) -> bool {
        let present = (now.get() / self.rate.period().get()) as u32;
        let (window, ..) = counted.counts();
        (1..=u32::MAX / 2).contains(&window.wrapping_sub(present))
    }
}

impl FleetLimits {
    /// Those of a generation.
    pub(super) fn of(generation: &Generation) -> Self {
        Self(generation.estimates().filter_map(|estimate| FleetLimit::of(estimate)).collect())
    }

    /// The limit that nodes call by this tag.
    pub(super) fn tagged(&self, tag: u64) -> Option<&FleetLimit> {
        self.0.iter().find(|limit| limit.view.tag() == tag)
    }

    /// The limit that counted, if it counts over the fleet, and what nodes call the key.
    pub(super) fn counted(&self, count: &NodeCount) -> Option<(&FleetLimit, CountName)> {
        let is_of = |limit: &&FleetLimit| {
            limit.number == count.limit && limit.rate.period() == count.period
        };
        let limit = self.0.iter().find(is_of)?;
        Some((limit, CountName { tag: limit.view.tag(), key: count.key }))
    }

    /// The tags, in order.
    pub(super) fn tags(&self) -> Vec<u64> {
        let mut tags: Vec<u64> = self.0.iter().map(|limit| limit.view.tag()).collect();
        tags.sort_unstable();
        tags
    }

    /// The longest window.
    pub(super) fn longest_period(&self) -> Nanos {
        self.0.iter().map(|limit| limit.rate.period()).max().unwrap_or_default()
    }
}
