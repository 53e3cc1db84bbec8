//! What the algorithms of the project would truly have refused.

use tollgate::clock::{Nanos, Now};
use tollgate::limit::{
    Cell, FixedWindow, Quota, Rate, Receipt, SlidingLog, SlidingWindow, TokenBucket, WindowLengths,
};
use tollgate::replay::bounds::{Certainty, StampedRequest};

const START: u64 = 1_900_000_000_000_000_000;

/// A request as it truly was.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrueRequest {
    pub(super) key: u128,
    pub(super) at: u64,
    /// What the log gives for the cost.
    pub(super) cost: u32,
    pub(super) outcome: Outcome,
}

/// What became of a request apart from this limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Charged,
    NotReached,
    RefusedElsewhere,
    Cheaper(u32),
    RefundedAfter(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Bucket,
    SteppedBucket,
    DelayedBucket,
    SlidingWindow,
    SlidingLog,
    FixedWindow,
}

pub(super) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::Bucket,
    Algorithm::SteppedBucket,
    Algorithm::DelayedBucket,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
];

pub(super) fn quota(algorithm: Algorithm, random: &mut fastrand::Rng) -> Quota {
    const MILLI: u64 = 1_000_000;
    let periods = [250, 1_000, 1_500, 3_000, 10_000, 60_000, 31 * 86_400_000];
    let period = periods[random.usize(0..periods.len())] * MILLI;
    let count = if random.u32(0..10) == 0 { random.u32(15..400) } else { random.u32(1..15) };
    let rate = Rate::new(count, Nanos::new(period)).unwrap();
    let bucket = |rate, burst, every, delay| {
        let bucket = TokenBucket::new(rate, burst, Nanos::new(every), Nanos::new(1)).unwrap();
        Quota::TokenBucket(bucket.with_max_delay(Nanos::new(delay)).unwrap())
    };
    let burst = random.u32(1..15);
    match algorithm {
        Algorithm::Bucket => bucket(rate, burst, 0, 0),
        Algorithm::SteppedBucket => {
            let steps = [1, 2, 4, 5][random.usize(0..4)];
            let rate = Rate::new(count * steps, Nanos::new(period)).unwrap();
            bucket(rate, burst, period / u64::from(steps), 0)
        }
        Algorithm::DelayedBucket => bucket(rate, random.u32(1..4), 0, random.u64(1..period)),
        Algorithm::SlidingWindow => Quota::SlidingWindow(SlidingWindow::new(rate)),
        Algorithm::SlidingLog => Quota::SlidingLog(SlidingLog::new(rate).unwrap()),
        Algorithm::FixedWindow => Quota::FixedWindow(FixedWindow::new(rate)),
    }
}

/// The true instants of a key, ascending; in bursts, dense or sparse.
pub(super) fn instants(quota: &Quota, requests: usize, random: &mut fastrand::Rng) -> Vec<u64> {
    let spacing = quota.window().get() / u64::from(quota.limit()).max(1);
    let mean = (spacing * [1, 2, 4, 8, 20][random.usize(0..5)] / 4).max(1);
    let mut at = START + random.u64(0..10 * quota.window().get());
    let mut pause = || match random.u32(0..40) {
        0 => random.u64(0..20 * mean),
        1..8 => random.u64(0..=mean / 20),
        _ => random.u64(0..=2 * mean),
    };
    (0..requests)
        .map(|_| {
            at += pause();
            at
        })
        .collect()
}

enum Event {
    Judge(TrueRequest),
    Refund(u128, Receipt, u32),
}

/// Moves instants to the ends of the stamps' units, so that pairs of units are as dense or as far apart as they can be.
pub(super) fn snapped(mut instants: Vec<u64>, unit: u64, random: &mut fastrand::Rng) -> Vec<u64> {
    let mode = random.u64(0..4);
    for at in &mut instants {
        let begin = *at / unit * unit;
        *at = match (mode, *at / unit % 2) {
            (0 | 1, _) => *at,
            (2, 0) | (3, 1) => begin,
            _ => begin + unit - 1,
        };
    }
    instants
}

/// The number of requests that the limit refuses, at true instants.
pub(super) fn truly_refused(quota: Quota, requests: &[TrueRequest]) -> u64 {
    let has_refunds =
        requests.iter().any(|request| matches!(request.outcome, Outcome::RefundedAfter(_)));
    let quota = quota.with_refunds(has_refunds);
    let windows = WindowLengths::of([&quota]);
    let mut cells = std::collections::HashMap::<u128, Cell>::new();
    let mut events: std::collections::BTreeMap<(u64, usize), Event> = requests
        .iter()
        .enumerate()
        .map(|(index, request)| ((request.at, index), Event::Judge(*request)))
        .collect();
    let (mut refused, mut number) = (0, requests.len());
    while let Some(((at, _), event)) = events.pop_first() {
        let now = Now { mono: Nanos::new(at), wall: Nanos::new(at) };
        match event {
            Event::Refund(key, receipt, cost) => {
                if let Some(cell) = cells.get_mut(&key) {
                    quota.refund(&windows, cell, cost, receipt, now);
                }
            }
            Event::Judge(TrueRequest { key, cost, outcome, .. }) => {
                let cost = if let Outcome::Cheaper(cheaper) = outcome { cheaper } else { cost };
                if outcome == Outcome::NotReached {
                    continue;
                }
                let cell = cells.entry(key).or_insert_with(|| quota.empty_cell());
                let verdict = quota.judge(Some(cell), cost, now);
                refused += u64::from(!verdict.allowed);
                if !verdict.allowed || outcome == Outcome::RefusedElsewhere {
                    continue;
                }
                quota.charge(cell, cost, now);
                if let Outcome::RefundedAfter(later) = outcome {
                    let receipt = quota.receipt(&verdict, cost, now);
                    number += 1;
                    events.insert((at + later, number), Event::Refund(key, receipt, cost));
                }
            }
        }
    }
    refused
}

/// How a log gives instants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamps {
    /// Instants are rounded down to this.
    pub(super) unit: u64,
    /// The beginning is unknown by up to this, before and after.
    pub(super) unknown: u64,
}

impl Stamps {
    pub(super) fn any(random: &mut fastrand::Rng) -> Self {
        let unit = [1, 1_000_000, 1_000_000_000][random.usize(0..3)];
        let unknown = [0, 0, 3_000_000, 700_000_000, 5_000_000_000][random.usize(0..5)];
        Self { unit, unknown }
    }

    /// The largest uncertainty.
    pub(super) const fn uncertainty(self) -> u64 {
        self.unit - 1 + self.unknown
    }

    pub(super) fn stamped(
        self,
        request: &TrueRequest,
        certainty: Certainty,
        random: &mut fastrand::Rng,
    ) -> StampedRequest {
        let unknown = random.u64(0..=self.unknown);
        let earlier = random.u64(0..=unknown);
        let earliest = (request.at - earlier) / self.unit * self.unit;
        let latest = (request.at / self.unit * self.unit + self.unit - 1) + (unknown - earlier);
        let TrueRequest { key, cost, .. } = *request;
        let (earliest, latest) = (Nanos::new(earliest), Nanos::new(latest));
        StampedRequest { earliest, latest, key, cost, certainty }
    }
}
