//! Puts requests that are slightly out of order into the order of their earliest instants.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::stamped_request::StampedRequest;
use crate::clock::Nanos;

/// The largest number of requests that wait for earlier ones.
const MAX_WAITING: usize = 262_144;

/// The time for which requests wait is divided into this many slots.
const SLOTS: u64 = 8;

/// Requests that wait for earlier ones. They are collected in slots of time, and a slot is sorted when it is complete.
#[derive(Debug)]
pub(super) struct Reordering {
    slots: BTreeMap<u64, Vec<StampedRequest>>,
    waiting: usize,
    /// A complete slot, latest first.
    sorted: Vec<StampedRequest>,
    /// By how much a request may come after a later one.
    disorder: Nanos,
    latest: Nanos,
}

impl Reordering {
    pub(super) const fn new(disorder: Nanos) -> Self {
        Self {
            slots: BTreeMap::new(),
            waiting: 0,
            sorted: Vec::new(),
            disorder,
            latest: Nanos::ZERO,
        }
    }

    /// Whether requests come in order.
    pub(super) fn is_needless(&self) -> bool {
        self.disorder == Nanos::ZERO
    }

    /// Adds a request.
    pub(super) fn push(&mut self, request: StampedRequest) {
        self.latest = self.latest.max(request.earliest);
        self.waiting += 1;
        let slot = request.earliest.get() / self.slot_length();
        self.slots.entry(slot).or_default().push(request);
    }

    /// The next request in order, if no earlier one is to be expected.
    pub(super) fn next(&mut self) -> Option<StampedRequest> {
        if let Some(next) = self.sorted.pop() {
            return Some(next);
        }
        let (slot, _) = self.slots.first_key_value()?;
        let end = slot.saturating_add(1).saturating_mul(self.slot_length());
        let is_complete = end.saturating_add(self.disorder.get()) <= self.latest.get();
        if is_complete || self.waiting > MAX_WAITING { self.rest() } else { None }
    }

    /// The next request in order, whatever may come.
    pub(super) fn rest(&mut self) -> Option<StampedRequest> {
        if self.sorted.is_empty()
            && let Some((_, slot)) = self.slots.pop_first()
        {
            self.waiting -= slot.len();
            self.sorted = slot;
            self.sorted.sort_unstable_by_key(|request| Reverse(request.earliest));
        }
        self.sorted.pop()
    }

    fn slot_length(&self) -> u64 {
        (self.disorder.get() / SLOTS).max(1)
    }
}
