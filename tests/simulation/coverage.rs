//! What the schedules met: a test that met nothing would pass.

use std::collections::BTreeMap;
use std::fmt;

use tollgate::engine::{Decision, Outcome};

/// Counts by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coverage {
    /// In how many schedules a feature or a fault stood.
    pub(crate) shares: BTreeMap<&'static str, u64>,
    /// How often something happened.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) schedules: u64,
}

impl Coverage {
    /// A schedule has it.
    pub(crate) fn has(&mut self, what: &'static str) {
        self.shares.insert(what, 1);
    }

    pub(crate) fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    pub(crate) fn decided(&mut self, decision: &Decision) {
        self.count("decision", 1);
        match decision.outcome {
            Outcome::Allowed => self.count("allowed", 1),
            Outcome::Limited if decision.is_banned() => self.count("banned", 1),
            Outcome::Limited => self.count("denial", 1),
            Outcome::Outage => self.count("outage", 1),
            _ => self.count("missing key", 1),
        }
        if decision.is_degraded() {
            self.count("degraded", 1);
        }
    }

    /// Takes in what other schedules met.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, count) in &other.shares {
            *self.shares.entry(name).or_default() += count;
        }
        for (name, count) in &other.counts {
            *self.counts.entry(name).or_default() += count;
        }
        self.schedules += other.schedules;
    }
}

/// In how many of a hundred schedules everything stands at least.
const LEAST_SHARE: u64 = 3;

/// How many features and faults there are.
const FEATURES: usize = 26 + 16;

/// What must have happened so often in a thousand schedules.
const LEAST_COUNTS: [(&str, u64); 9] = [
    ("decision", 100_000),
    ("allowed", 30_000),
    ("denial", 30_000),
    ("degraded", 3_000),
    ("outage", 500),
    ("banned", 500),
    ("refund", 2_000),
    ("debit", 300),
    ("retry told", 100),
];

impl Coverage {
    /// Panics where too little was met for a test to mean anything.
    pub(crate) fn assert_enough(&self) {
        assert_eq!(self.shares.len(), FEATURES, "{self}");
        for (name, count) in &self.shares {
            assert!(count * 100 >= self.schedules * LEAST_SHARE, "{name}: only {count}");
        }
        for (name, least) in LEAST_COUNTS {
            let count = self.counts.get(name).copied().unwrap_or(0);
            assert!(count * 1_000 >= least * self.schedules, "{name}: only {count}");
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} schedules", self.schedules)?;
        for (name, count) in &self.counts {
            writeln!(f, "  {count:>9} {name}")?;
        }
        writeln!(f, "share of the schedules that had")?;
        for (name, count) in &self.shares {
            let share = *count as f64 * 100.0 / self.schedules.max(1) as f64;
            writeln!(f, "  {share:>8.1}% {name}")?;
        }
        Ok(())
    }
}
