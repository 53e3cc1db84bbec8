//! Random policies: every feature of an exact limit, in any mixture that the reader takes.

use std::collections::BTreeSet;

use fastrand::Rng;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Lengths of windows: a schedule lives through many of the first, and through none of the last.
const PERIODS: [u64; 3] = [10, 60, 3_600];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Fixed,
    Sliding,
    Log,
    Bucket,
    Leaky,
    InFlight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOf {
    Ip,
    A,
    AB,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Skip,
    Deny,
    Ip,
    Limit(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Fixed(u32),
    Request(u32),
    Response { reserve: u32, max: u32 },
}

/// Units and seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u32,
    pub(crate) period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    Deny,
    Rate(Rate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Local,
    Allow,
    Deny,
}

/// After so many denials within so many seconds a ban of so many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Penalty {
    pub(crate) after: u32,
    pub(crate) within: u64,
    pub(crate) ban: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Limit {
    pub(crate) algorithm: Algorithm,
    pub(crate) rate: Rate,
    pub(crate) key: KeyOf,
    pub(crate) missing: Missing,
    pub(crate) shadow: bool,
    pub(crate) rollout: Option<u32>,
    pub(crate) cost: Cost,
    pub(crate) counts_401: bool,
    pub(crate) refunds_5xx: bool,
    /// For x-a = a1 (where the key is x-a alone), then for 198.51.100.0/24.
    pub(crate) exceptions: (Option<Action>, Option<Action>),
    pub(crate) gold: Option<Rate>,
    pub(crate) tin: Option<Rate>,
    pub(crate) candidate: Option<Rate>,
    pub(crate) burst: Option<u32>,
    /// Seconds between two refills.
    pub(crate) step: Option<u64>,
    /// Milliseconds.
    pub(crate) max_delay: Option<u64>,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) on_failure: OnFailure,
    /// What new keys meet; only said where there is little room.
    pub(crate) when_full: Option<&'static str>,
}

/// What a schedule's policies may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) store: bool,
    /// Milliseconds that a decision waits.
    pub(crate) timeout: u64,
    /// Whether there is room for a few keys only.
    pub(crate) crowded: bool,
    /// Whether the variants of a limit differ in their windows.
    pub(crate) windows: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) limits: Vec<Limit>,
    pub(crate) routes: Vec<Vec<(usize, Option<Cost>)>>,
    pub(super) scope: Scope,
}

impl Policy {
    pub(crate) fn random(random: &mut Rng, scope: Scope) -> Self {
        let mut limits: Vec<Limit> = Vec::new();
        for place in 0..random.usize(1..5) {
            let takes = |n: &usize| limits[*n].key == KeyOf::Ip && limits[*n].takes_other_costs();
            let by_ip: Vec<usize> = (0..place).filter(takes).collect();
            // Two limits of a route must not both let a request wait.
            let may_wait = limits.iter().all(|limit| limit.max_delay.is_none());
            let mut limit = Limit::random(random, scope, &by_ip);
            while limit.max_delay.is_some() && !may_wait {
                limit = Limit::random(random, scope, &by_ip);
            }
            limits.push(limit);
        }
        let mut routes: Vec<Vec<(usize, Option<Cost>)>> = Vec::new();
        for _ in 0..2 {
            let mut uses = Vec::new();
            for (place, limit) in limits.iter().enumerate() {
                if random.u8(0..4) > 0 {
                    let own = random.u8(0..4) == 0 && limit.takes_other_costs();
                    uses.push((place, own.then(|| Cost::random(random))));
                }
            }
            random.shuffle(&mut uses);
            routes.push(uses);
        }
        // One limit each, for one unit: to look at a cell.
        routes.extend((0..limits.len()).map(|place| vec![(place, Some(Cost::Fixed(1)))]));
        Self { limits, routes, scope }
    }

    /// The same limits with other numbers, as a reload would bring them.
    pub(crate) fn changed(&self, random: &mut Rng) -> Self {
        let mut next = self.clone();
        for limit in &mut next.limits {
            match random.u8(0..4) {
                0 => limit.draw_rates(random, self.scope),
                1 => limit.draw_counts(random),
                _ => {}
            }
        }
        next
    }
}

impl Cost {
    fn random(random: &mut Rng) -> Self {
        match random.u8(0..6) {
            0 => Self::Request(random.u32(2..4)),
            1 => {
                let reserve = random.u32(1..4);
                Self::Response { reserve, max: reserve + random.u32(1..4) }
            }
            2 => Self::Fixed(random.u32(1..4)),
            _ => Self::Fixed(1),
        }
    }
}

impl Limit {
    fn random(random: &mut Rng, scope: Scope, by_ip: &[usize]) -> Self {
        let algorithm = *random
            .choice(&[
                Algorithm::Fixed,
                Algorithm::Fixed,
                Algorithm::Sliding,
                Algorithm::Sliding,
                Algorithm::Log,
                Algorithm::Log,
                Algorithm::Bucket,
                Algorithm::Bucket,
                Algorithm::Leaky,
                Algorithm::InFlight,
            ])
            .unwrap();
        let key = *random.choice(&[KeyOf::Ip, KeyOf::A, KeyOf::AB]).unwrap();
        let missing = match (random.u8(0..4), random.choice(by_ip)) {
            (0, Some(limit)) if algorithm != Algorithm::InFlight => Missing::Limit(*limit),
            (1, _) => Missing::Deny,
            (2, _) => Missing::Ip,
            _ => Missing::Skip,
        };
        let mut limit = Self {
            algorithm,
            rate: Rate { count: 3, period: 10 },
            key,
            missing,
            shadow: random.u8(0..8) == 0,
            rollout: (random.u8(0..10) == 0).then(|| random.u32(20..90)),
            cost: Cost::random(random),
            counts_401: random.u8(0..5) == 0,
            refunds_5xx: random.u8(0..5) == 0,
            exceptions: (None, None),
            gold: None,
            tin: None,
            candidate: None,
            burst: None,
            step: None,
            max_delay: None,
            penalty: (random.u8(0..6) == 0).then(|| Penalty {
                after: random.u32(3..8),
                within: 10,
                ban: random.u64(1..6),
            }),
            on_failure: *random
                .choice(&[OnFailure::Local, OnFailure::Local, OnFailure::Allow, OnFailure::Deny])
                .unwrap(),
            when_full: scope
                .crowded
                .then(|| *random.choice(&["estimate", "deny", "allow"]).unwrap()),
        };
        match algorithm {
            Algorithm::Bucket => match random.u8(0..5) {
                0 => limit.step = Some(0),
                1 => limit.max_delay = Some(0),
                _ => {}
            },
            Algorithm::Leaky => limit.max_delay = Some(0),
            Algorithm::InFlight => {
                (limit.counts_401, limit.refunds_5xx, limit.penalty) = (false, false, None);
                limit.cost = Cost::Fixed(random.u32(1..3));
                (limit.rollout, limit.when_full) = (None, None);
            }
            Algorithm::Fixed | Algorithm::Sliding | Algorithm::Log => {}
        }
        if limit.max_delay.is_some() {
            limit.cost = Cost::Fixed(1);
            (limit.counts_401, limit.refunds_5xx) = (false, false);
        }
        limit.draw_rates(random, scope);
        limit
    }

    /// Whether a route may charge it otherwise.
    fn takes_other_costs(&self) -> bool {
        self.algorithm != Algorithm::InFlight && self.max_delay.is_none()
    }

    fn draw_rates(&mut self, random: &mut Rng, scope: Scope) {
        let (gold, tin) = (random.u8(0..3) == 0, random.u8(0..6) == 0);
        let period = *random.choice(&PERIODS).unwrap();
        let keeps_period = !scope.windows && self.rate.period != 0 && self.burst.is_some();
        let period = if keeps_period { self.rate.period } else { period };
        let even = self.step.is_some();
        let rate = |random: &mut Rng| {
            let count = random.u32(3..9);
            let period = match scope.windows && !even {
                true if random.bool() => *random.choice(&PERIODS).unwrap(),
                _ => period,
            };
            Rate { count: if even { count.next_multiple_of(2) } else { count }, period }
        };
        self.rate = Rate { period, ..rate(random) };
        if self.algorithm == Algorithm::InFlight {
            self.rate.count = random.u32(2..6);
            return;
        }
        let action = |random: &mut Rng| match random.u8(0..10) {
            0 => Some(Action::Allow),
            1 => Some(Action::Deny),
            2 => Some(Action::Rate(rate(random))),
            _ => None,
        };
        let by_key = action(random).filter(|_| self.key == KeyOf::A);
        self.exceptions = (by_key, action(random));
        self.gold = gold.then(|| rate(random));
        self.tin = (gold && tin).then(|| rate(random));
        self.candidate = (random.u8(0..6) == 0).then(|| rate(random));
        if let Some(step) = &mut self.step {
            *step = if random.bool() { period / 2 } else { period };
        }
        if let Some(delay) = &mut self.max_delay {
            *delay = random.u64(1..4) * period * 1_000 / u64::from(self.rate.count);
        }
        self.burst = Some(match self.algorithm {
            Algorithm::Leaky => 1,
            _ => random.u32(3..8),
        });
    }

    /// Other numbers of units, in the same windows.
    fn draw_counts(&mut self, random: &mut Rng) {
        let even = self.step.is_some();
        let mut draw = |rate: &mut Rate| {
            let count = random.u32(3..9);
            rate.count = if even { count.next_multiple_of(2) } else { count };
        };
        draw(&mut self.rate);
        self.gold.iter_mut().for_each(&mut draw);
        self.tin.iter_mut().for_each(&mut draw);
        for action in [&mut self.exceptions.0, &mut self.exceptions.1] {
            if let Some(Action::Rate(rate)) = action {
                draw(rate);
            }
        }
    }

    /// The lengths of its windows, if it has windows.
    pub(crate) fn windows(&self) -> BTreeSet<u64> {
        use Algorithm::{Bucket, InFlight, Leaky};
        if matches!(self.algorithm, Bucket | Leaky | InFlight) {
            return BTreeSet::new();
        }
        let rate = |action: Option<Action>| match action {
            Some(Action::Rate(rate)) => Some(rate),
            _ => None,
        };
        let (by_key, by_network) = (rate(self.exceptions.0), rate(self.exceptions.1));
        let all = [Some(self.rate), self.gold, self.tin, by_key, by_network];
        all.into_iter().flatten().map(|rate| rate.period).collect()
    }
}
