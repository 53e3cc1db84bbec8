//! The limits of a generation that count over the fleet, as the exchange needs them.

use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::records::CountName;
use crate::clock::Nanos;
use crate::engine::Generation;
use crate::estimator::{ConfirmTable, EstimateLimit, FleetView, NodeCount};
use crate::limit::{Rate, SlidingWindow, WindowPair};
use crate::policy::FleetTerms;

/// A limit that counts over the fleet.
#[derive(Clone, Debug)]
pub(super) struct FleetLimit {
    /// The number by which the confirm table knows it.
    pub(super) number: u8,
    pub(super) rate: Rate,
    pub(super) view: Arc<FleetView>,
    /// It counts on this node.
    estimate: Arc<EstimateLimit>,
}

/// All of them, found by what nodes call them and by what the confirm table calls them. It keeps no generation alive: an exchange
/// may wait for the store after a reload has replaced its generation.
#[derive(Debug)]
pub struct FleetLimits {
    pub(super) terms: FleetTerms,
    /// The number of the generation.
    pub(super) epoch: u64,
    limits: Vec<FleetLimit>,
    by_tag: HashMap<u64, usize>,
    /// By number and length of the window. Numbers are used again after 256 limits, so several may have the same.
    by_number: HashMap<(u8, Nanos), SmallVec<[usize; 1]>>,
}

impl FleetLimit {
    fn of(estimate: &Arc<EstimateLimit>) -> Option<Self> {
        let view = Arc::clone(estimate.fleet()?);
        let (number, rate) = (estimate.number(), estimate.rate());
        Some(Self { number, rate, view, estimate: Arc::clone(estimate) })
    }

    /// The most units of a key that this node did not count for certain, lately.
    pub(super) fn uncounted(&self, table: &ConfirmTable) -> u64 {
        self.estimate.confirm_error(table)
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
    pub fn of(generation: &Generation) -> Self {
        let mut all = Self {
            terms: generation.policy().fleet,
            epoch: generation.epoch(),
            limits: Vec::new(),
            by_tag: HashMap::new(),
            by_number: HashMap::new(),
        };
        for limit in generation.estimates().filter_map(FleetLimit::of) {
            let index = all.limits.len();
            all.by_tag.insert(limit.view.tag(), index);
            all.by_number.entry((limit.number, limit.rate.period())).or_default().push(index);
            all.limits.push(limit);
        }
        all
    }

    /// All limits.
    pub(super) fn iter(&self) -> impl Iterator<Item = &FleetLimit> {
        self.limits.iter()
    }

    /// Whether no limit counts over the fleet.
    pub(super) const fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The limit that nodes call by this tag.
    pub(super) fn tagged(&self, tag: u64) -> Option<&FleetLimit> {
        self.by_tag.get(&tag).map(|index| &self.limits[*index])
    }

    /// The limit that counted, if it counts over the fleet, and what nodes call the key; or each that may have counted. (The hash
    /// of a key covers its limit, so a count under the name of another limit is read by nobody.)
    pub(super) fn counted(
        &self,
        count: &NodeCount,
    ) -> impl Iterator<Item = (&FleetLimit, CountName)> {
        let key = count.key;
        let indices = self.by_number.get(&(count.limit, count.period)).into_iter().flatten();
        indices.map(move |index| {
            let limit = &self.limits[*index];
            (limit, CountName { tag: limit.view.tag(), key })
        })
    }

    /// The tags, in order.
    pub(super) fn tags(&self) -> Vec<u64> {
        let mut tags: Vec<u64> = self.iter().map(|limit| limit.view.tag()).collect();
        tags.sort_unstable();
        tags
    }

    /// The longest window.
    pub(super) fn longest_period(&self) -> Nanos {
        self.iter().map(|limit| limit.rate.period()).max().unwrap_or_default()
    }
}
