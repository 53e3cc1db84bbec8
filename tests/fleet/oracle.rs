//! What is true, whatever nodes know: every unit that was admitted, and what may be said of it.

use std::collections::{HashMap, VecDeque};

use tollgate::clock::Nanos;
use tollgate::limit::{SlidingWindow, WindowPair};
use tollgate::policy::KeyHash;

/// What was admitted of one key.
#[derive(Clone, Debug)]
struct Truth {
    /// By the world's time.
    all: WindowPair,
    /// By the world's time as far off as the store's clock is at some time of the schedule.
    off: WindowPair,
    /// By the latest time that it can be on each node.
    by_node: Vec<WindowPair>,
    /// What each node admitted itself, by its own reading.
    alone: Vec<WindowPair>,
    /// When units were admitted lately.
    recent: VecDeque<Nanos>,
}

/// The readings of a node's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) earliest: Nanos,
    pub(crate) latest: Nanos,
}

/// Everything that was admitted under one limit.
pub(crate) struct Oracle {
    quota: SlidingWindow,
    nodes: usize,
    off: i64,
    /// How much later than it was counted a unit may be dated: by a store that lies.
    tolerance: Nanos,
    /// Units admitted within this time may be unknown to other nodes.
    pub(crate) horizon: Nanos,
    /// Nodes that have begun anew: at first they read another time than the store's.
    restarted: Vec<bool>,
    truths: HashMap<KeyHash, Truth>,
}

impl Oracle {
    pub(crate) fn new(
        quota: SlidingWindow,
        nodes: usize,
        off_micros: i64,
        tolerance: Nanos,
        horizon: Nanos,
    ) -> Self {
        let (off, restarted, truths) = (off_micros * 1_000, vec![false; nodes], HashMap::new());
        Self { quota, nodes, off, tolerance, horizon, restarted, truths }
    }

    /// Records that a node admitted a unit at the world's time `at`. Returns how far the key is above the limit now, without
    /// the units that were admitted lately.
    pub(crate) fn admitted(
        &mut self,
        key: KeyHash,
        node: usize,
        at: Nanos,
        readings: &[Reading],
    ) -> u64 {
        let (quota, horizon, off) = (self.quota, self.horizon, self.off);
        let nodes = self.nodes;
        let truth = self.truths.entry(key).or_insert_with(|| Truth {
            all: WindowPair::default(),
            off: WindowPair::default(),
            by_node: vec![WindowPair::default(); nodes],
            alone: vec![WindowPair::default(); nodes],
            recent: VecDeque::new(),
        });
        quota.charge(&mut truth.all, 1, at);
        quota.charge(&mut truth.off, 1, shifted(at, off));
        for (pair, reading) in truth.by_node.iter_mut().zip(readings) {
            quota.charge(pair, 1, reading.latest);
        }
        quota.charge(&mut truth.alone[node], 1, readings[node].earliest);
        truth.recent.push_back(at);
        while truth.recent.front().is_some_and(|first| at.saturating_sub(*first) > horizon) {
            truth.recent.pop_front();
        }
        let spent = u64::from(quota.spent(truth.all, at));
        let known = spent.saturating_sub(truth.recent.len() as u64);
        known.saturating_sub(u64::from(quota.rate().count()))
    }

    /// Whether a node that refused a unit may do so: if all that was truly admitted fills the limit, or what it admitted itself.
    pub(crate) fn may_refuse(
        &self,
        key: KeyHash,
        node: usize,
        at: Nanos,
        reading: Reading,
    ) -> bool {
        let Some(truth) = self.truths.get(&key) else {
            return false;
        };
        let refuses = |pair, at: Nanos| !self.quota.judge(pair, 1, at).allowed;
        let earlier = |at: Nanos| at.saturating_sub(self.tolerance);
        refuses(truth.alone[node], reading.earliest)
            || refuses(truth.by_node[node], earlier(reading.latest))
            || ((self.off != 0 || self.restarted[node]) && refuses(truth.all, at))
            || (self.off != 0 && refuses(truth.off, shifted(at, self.off)))
    }

    /// A node has begun anew and counts nothing.
    pub(crate) fn restarted(&mut self, node: usize) {
        self.restarted[node] = true;
        for truth in self.truths.values_mut() {
            truth.alone[node] = WindowPair::default();
        }
    }

    /// Units of a key that count at the world's time.
    pub(crate) fn spent(&self, key: KeyHash, at: Nanos) -> u64 {
        self.truths.get(&key).map_or(0, |truth| u64::from(self.quota.spent(truth.all, at)))
    }
}

fn shifted(at: Nanos, by: i64) -> Nanos {
    Nanos::new(at.get().saturating_add_signed(by))
}
