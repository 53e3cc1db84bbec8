//! The slow model: a policy as plain values, and cells as what was charged to them.

use std::collections::HashMap;
use std::fmt::Write;

use fastrand::Rng;

const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Algorithm {
    Fixed,
    Log,
    Bucket,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KeyOf {
    Ip,
    A,
    AB,
}

#[derive(Clone, Copy, Debug, PartialEq)]
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

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    Allow,
    Deny,
    Rate(Rate),
}

/// Units, and nanoseconds: every rate of a limit has a window of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    count: u32,
    period: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Limit {
    algorithm: Algorithm,
    rate: Rate,
    key: KeyOf,
    missing: Missing,
    shadow: bool,
    cost: Cost,
    /// A larger cost would never be admitted by one of its rates, or by a limit that a missing key leads to.
    max_cost: u32,
    counts_401: bool,
    refunds_5xx: bool,
    /// For x-a = a1 (where the key is x-a alone), then for 198.51.100.0/24.
    exceptions: (Option<Action>, Option<Action>),
    gold: Option<Rate>,
}

pub(crate) struct Policy {
    limits: Vec<Limit>,
    routes: [Vec<(usize, Option<Cost>)>; 2],
}

/// A request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) route: usize,
    pub(crate) ip: [u8; 4],
    pub(crate) trusted: bool,
    pub(crate) a: Option<String>,
    pub(crate) b: Option<String>,
    pub(crate) plan: Option<String>,
    pub(crate) cost: Option<String>,
}

/// What the model says of a request: limit, allowed, remaining, shadow.
pub(crate) struct Judged {
    pub(crate) outcome: &'static str,
    pub(crate) verdicts: Vec<(usize, bool, u32, bool)>,
    /// Charges that were spent.
    spent: Vec<Charge>,
    /// Whether an override denies it.
    pub(crate) denied: bool,
    /// Rates that keys met for the first time.
    met: Vec<(usize, String, Rate)>,
}

#[derive(Clone)]
struct Charge {
    limit: usize,
    key: String,
    cost: u32,
    rate: Rate,
    at: u64,
    late: Option<u32>,
    /// The largest cost of the uses that no answer changes.
    fixed: u32,
}

/// What one key was charged.
#[derive(Default)]
struct Cell {
    /// Windows: every charge with its time.
    charges: Vec<(u64, u32)>,
    /// A bucket of each rate that it was charged under.
    buckets: Vec<Bucket>,
    /// What they remember: the last instant of a sum, and its units.
    sums: Vec<(u64, u32)>,
}

struct Bucket {
    rate: Rate,
    emission: u64,
    /// Full again at.
    full: u64,
    /// The same without what is remembered, which begins here.
    base: u64,
    since: u64,
    /// The most that was spent after one of its own charges.
    most: u64,
}

impl Bucket {
    fn spent(&self, now: u64) -> u64 {
        self.full.saturating_sub(now)
    }

    fn capacity(&self) -> u64 {
        self.emission * u64::from(self.rate.count)
    }

    /// With so much spent at most.
    fn after(&self, most: u64, full: u64, units: u32, at: u64) -> u64 {
        let after = full.max(at) + u64::from(units) * self.emission;
        full.max(after.min(at + most))
    }
}

impl Cell {
    /// Returns whether the rate is new.
    fn add_bucket(&mut self, rate: Rate, tick: u64, now: u64) -> bool {
        if self.buckets.iter().all(|one| one.spent(now) == 0) {
            (self.buckets, self.sums) = (Vec::new(), Vec::new());
        }
        if self.buckets.iter().any(|one| one.rate == rate) {
            return false;
        }
        let emission = rate.emission(tick);
        let capacity = emission * u64::from(rate.count);
        let carried = |full: u64, at: u64, of: &Bucket| {
            let spent = u128::from(full.saturating_sub(at)) * u128::from(emission);
            let spent = spent.div_ceil(u128::from(of.emission)).next_multiple_of(u128::from(tick));
            at + capacity.min(spent as u64)
        };
        let (mut full, mut base, mut since) = (now, now, now);
        for one in &self.buckets {
            let spent = carried(one.full, now, one);
            if spent > full {
                (full, base, since) = (spent, carried(one.base, one.since, one), one.since);
            }
        }
        self.buckets.push(Bucket { rate, emission, full, base, since, most: capacity });
        true
    }

    fn charge_buckets(&mut self, rate: Rate, units: u32, returns: bool, now: u64) {
        if returns || !self.sums.is_empty() {
            let fill = self.buckets.iter().map(Bucket::capacity).min().unwrap();
            let step = fill / 16 / 1_000 * 1_000;
            match self.sums.last_mut() {
                Some(last) if last.0 / step == now / step => *last = (now, last.1 + units),
                last => {
                    if last.is_none() {
                        self.buckets
                            .iter_mut()
                            .for_each(|one| (one.base, one.since) = (one.full, now));
                    }
                    self.sums.push((now, units));
                }
            }
            // Of more than sixteen the oldest is forgotten, or two become one; not the one that came now.
            let slowest = self.buckets.iter().map(Bucket::capacity).max().unwrap();
            if self.sums.len() > 16 && self.sums[0].0 + slowest <= now {
                let (at, units) = self.sums.remove(0);
                for one in self.buckets.iter_mut().filter(|one| one.since <= at) {
                    (one.base, one.since) = (one.after(one.most, one.base, units, at), at + 1);
                }
            } else if self.sums.len() > 16 {
                let closest = (0..15).min_by_key(|n| self.sums[n + 1].0 - self.sums[*n].0).unwrap();
                let (_, units) = self.sums.remove(closest);
                self.sums[closest].1 += units;
            }
        }
        for one in &mut self.buckets {
            one.full = match one.rate == rate {
                true => one.full.max(now) + u64::from(units) * one.emission,
                false => one.after(one.capacity(), one.full, units, now),
            };
            if one.rate == rate {
                one.most = one.most.max(one.full - now);
            }
        }
    }

    fn give_buckets_back(&mut self, rate: Rate, units: u32, returns: bool, charged: u64, now: u64) {
        if !returns && self.sums.is_empty() {
            if let [one] = self.buckets.as_mut_slice()
                && one.rate == rate
            {
                let back = (u64::from(units) * one.emission).saturating_sub(now - charged);
                one.full = now + one.spent(now).saturating_sub(back);
            }
            return;
        }
        if self.buckets.iter().all(|one| one.since > charged) {
            return;
        }
        let Some(sum) = self.sums.iter_mut().find(|(last, _)| *last >= charged) else { return };
        let units = units.min(sum.1);
        sum.1 -= units;
        let alone = self.buckets.len() == 1;
        for one in self.buckets.iter_mut().filter(|one| one.since <= charged) {
            let known = self.sums.iter().filter(|(last, _)| *last >= one.since);
            let anew =
                known.fold(one.base, |full, (at, units)| one.after(one.most, full, *units, *at));
            let least = one.full.saturating_sub(u64::from(units) * one.emission);
            let anew = if alone { anew.min(least + (now - charged)) } else { anew };
            one.full = one.full.min(anew.max(least));
        }
    }
}

pub(crate) struct Model {
    policy: Policy,
    cells: HashMap<(usize, String), Cell>,
    /// The unit of the store's clock.
    tick: u64,
    /// Of each limit, whether what it is charged may be given back.
    returns: Vec<bool>,
}

struct Due {
    limit: usize,
    key: String,
    cost: u32,
    rate: Rate,
    shadow: bool,
    refused: bool,
    late: Option<u32>,
    fixed: u32,
}

impl Asked {
    pub(crate) fn random(random: &mut Rng) -> Self {
        let pick = |random: &mut Rng, values: &[&str]| {
            let value = values[random.usize(0..values.len())];
            (!value.is_empty()).then(|| value.to_owned())
        };
        Self {
            route: random.usize(0..2),
            ip: *random.choice(&[[192, 0, 2, 1], [192, 0, 2, 2], [198, 51, 100, 1]]).unwrap(),
            trusted: random.bool(),
            a: pick(random, &["a1", "a2", "a2", "192.0.2.1", ""]),
            b: pick(random, &["b1", "b2", ""]),
            plan: pick(random, &["gold", "tin", "", ""]),
            cost: pick(random, &["1", "2", "9", "0", "x", "", ""]),
        }
    }
}

impl Policy {
    pub(crate) fn random(random: &mut Rng) -> Self {
        let mut limits: Vec<Limit> = Vec::new();
        for place in 0..random.usize(1..5) {
            let rate = Rate { count: random.u32(1..7), ..Rate::random(random) };
            let key = *random.choice(&[KeyOf::Ip, KeyOf::A, KeyOf::AB]).unwrap();
            let by_ip: Vec<usize> = (0..place).filter(|n| limits[*n].key == KeyOf::Ip).collect();
            let missing = match (random.u8(0..4), random.choice(&by_ip)) {
                (0, Some(limit)) => Missing::Limit(*limit),
                (1, _) => Missing::Deny,
                (2, _) => Missing::Ip,
                _ => Missing::Skip,
            };
            let action = |random: &mut Rng| match random.u8(0..9) {
                0 => Some(Action::Allow),
                1 => Some(Action::Deny),
                2 => Some(Action::Rate(Rate::random(random))),
                _ => None,
            };
            let mut limit = Limit {
                algorithm: *random
                    .choice(&[Algorithm::Fixed, Algorithm::Log, Algorithm::Bucket])
                    .unwrap(),
                rate,
                key,
                missing,
                shadow: random.u8(0..6) == 0,
                cost: Cost::Fixed(1),
                max_cost: rate.count,
                counts_401: random.u8(0..5) == 0,
                refunds_5xx: random.u8(0..5) == 0,
                exceptions: (action(random).filter(|_| key == KeyOf::A), action(random)),
                gold: (random.u8(0..3) == 0).then(|| Rate::random(random)),
            };
            limit.max_cost = limit.smallest_rate(&limits);
            limit.cost = Cost::random(random, limit.max_cost);
            limits.push(limit);
        }
        let route = |random: &mut Rng| {
            let mut uses: Vec<(usize, Option<Cost>)> = Vec::new();
            for (place, limit) in limits.iter().enumerate() {
                if random.u8(0..3) > 0 {
                    let own = random.u8(0..4) == 0;
                    uses.push((place, own.then(|| Cost::random(random, limit.max_cost))));
                }
            }
            random.shuffle(&mut uses);
            uses
        };
        let routes = [route(random), route(random)];
        Self { limits, routes }
    }

    fn returns(&self) -> Vec<bool> {
        let asks = |limit: &Limit| limit.counts_401 || limit.refunds_5xx;
        let mut returns: Vec<bool> = self.limits.iter().map(asks).collect();
        for (limit, own) in self.routes.iter().flatten() {
            let cost = own.unwrap_or(self.limits[*limit].cost);
            let mut next = matches!(cost, Cost::Response { .. }).then_some(*limit);
            while let Some(limit) = next {
                returns[limit] = true;
                next = match self.limits[limit].missing {
                    Missing::Limit(after) => Some(after),
                    _ => None,
                };
            }
        }
        returns
    }

    pub(crate) fn yaml(&self) -> String {
        let mut text = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
clients: { trusted_proxies: [10.0.0.0/8] }
origins: { site: { servers: [127.0.0.1:1] } }
check: { silence: [] }
limits:\n"
            .to_owned();
        for (place, limit) in self.limits.iter().enumerate() {
            limit.write(&mut text, place);
        }
        text.push_str("routes:\n");
        for (place, uses) in self.routes.iter().enumerate() {
            let uses: Vec<String> = uses
                .iter()
                .map(|(limit, cost)| match cost {
                    None => format!("l{limit}"),
                    Some(cost) => format!("{{ limit: l{limit}, cost: {} }}", cost.yaml()),
                })
                .collect();
            let uses = uses.join(", ");
            writeln!(
                text,
                "  - {{ name: r{place}, match: {{ path: /r{place} }}, limits: [{uses}] }}"
            )
            .unwrap();
        }
        text
    }
}

impl Rate {
    fn random(random: &mut Rng) -> Self {
        let period = *random.choice(&[10 * SECOND, 60 * SECOND, 3_600 * SECOND]).unwrap();
        Self { count: random.u32(1..9), period }
    }

    fn yaml(self) -> String {
        format!("{}/{}s", self.count, self.period / SECOND)
    }

    fn emission(self, tick: u64) -> u64 {
        self.period.div_ceil(u64::from(self.count)).next_multiple_of(tick)
    }
}

impl Cost {
    fn random(random: &mut Rng, count: u32) -> Self {
        match random.u8(0..6) {
            0 => Self::Request(random.u32(1..=count.max(2))),
            1 => Self::Response { reserve: random.u32(1..=count), max: count + 6 },
            2 => Self::Fixed(random.u32(1..=count)),
            _ => Self::Fixed(1),
        }
    }

    fn yaml(self) -> String {
        match self {
            Self::Fixed(cost) => cost.to_string(),
            Self::Request(max) => format!("{{ header: x-cost, max: {max} }}"),
            Self::Response { reserve, max } => {
                format!("{{ response_header: x-used, reserve: {reserve}, max: {max} }}")
            }
        }
    }

    fn at_door(self, asked: &Asked) -> u32 {
        match self {
            Self::Fixed(cost) => cost,
            Self::Response { reserve, .. } => reserve,
            Self::Request(max) => match asked.cost.as_deref() {
                None => 1,
                Some("x") => max,
                Some(number) => number.parse::<u32>().unwrap().clamp(1, max),
            },
        }
    }
}

impl Limit {
    /// The units of its smallest rate, with those of the limit for a missing key.
    fn smallest_rate(&self, limits: &[Limit]) -> u32 {
        let (by_key, by_network) = self.exceptions;
        let exceptions =
            [by_key, by_network].into_iter().flatten().filter_map(|action| match action {
                Action::Rate(rate) => Some(rate.count),
                Action::Allow | Action::Deny => None,
            });
        let next = match self.missing {
            Missing::Limit(next) => Some(limits[next].max_cost),
            Missing::Skip | Missing::Deny | Missing::Ip => None,
        };
        let others = exceptions.chain(self.gold.map(|rate| rate.count)).chain(next);
        others.fold(self.rate.count, u32::min)
    }

    fn write(&self, text: &mut String, place: usize) {
        let algorithm = match self.algorithm {
            Algorithm::Fixed => "fixed_window",
            Algorithm::Log => "sliding_log",
            Algorithm::Bucket => "token_bucket",
        };
        let (rate, cost) = (self.rate.yaml(), self.cost.yaml());
        write!(
            text,
            "  l{place}: {{ tier: exact, algorithm: {algorithm}, rate: {rate}, cost: {cost}"
        )
        .unwrap();
        text.push_str(match self.key {
            KeyOf::Ip => ", key: client_ip",
            KeyOf::A => ", key: header:x-a",
            KeyOf::AB => ", key: [header:x-a, header:x-b]",
        });
        if self.key != KeyOf::Ip {
            text.push_str(&match self.missing {
                Missing::Skip => ", missing_key: skip".to_owned(),
                Missing::Deny => ", missing_key: deny".to_owned(),
                Missing::Ip => ", missing_key: client_ip".to_owned(),
                Missing::Limit(limit) => format!(", missing_key: {{ limit: l{limit} }}"),
            });
        }
        let action = |action: Action| match action {
            Action::Allow => "action: allow".to_owned(),
            Action::Deny => "action: deny".to_owned(),
            Action::Rate(rate) => format!("rate: {}", rate.yaml()),
        };
        let mut overrides = Vec::new();
        overrides.extend(self.exceptions.0.map(|one| format!("{{ key: a1, {} }}", action(one))));
        overrides.extend(
            self.exceptions.1.map(|one| format!("{{ network: 198.51.100.0/24, {} }}", action(one))),
        );
        if !overrides.is_empty() {
            write!(text, ", overrides: [{}]", overrides.join(", ")).unwrap();
        }
        if let Some(gold) = self.gold {
            let rate = gold.yaml();
            write!(text, ", plans: {{ by: header:x-plan, rates: {{ gold: {rate} }} }}").unwrap();
        }
        for (holds, words) in [
            (self.shadow, ", mode: shadow"),
            (self.counts_401, ", count: { status: [401] }"),
            (self.refunds_5xx, ", refund: { status: [500-599] }"),
        ] {
            text.push_str(if holds { words } else { "" });
        }
        text.push_str(" }\n");
    }
}

impl Model {
    pub(crate) fn new(policy: Policy, tick: u64) -> Self {
        let returns = policy.returns();
        Self { policy, cells: HashMap::new(), tick, returns }
    }

    pub(crate) fn judge(&mut self, asked: &Asked, now: u64) -> Judged {
        let mut judged = Judged {
            outcome: "allowed",
            verdicts: Vec::new(),
            spent: Vec::new(),
            denied: false,
            met: Vec::new(),
        };
        let mut dues: Vec<Due> = Vec::new();
        for (limit, cost) in self.policy.routes[asked.route].clone() {
            match self.due(asked, limit, cost) {
                Err(()) => {
                    judged.outcome = "missing";
                    return judged;
                }
                Ok(None) => {}
                Ok(Some(due)) => {
                    let same = |other: &&mut Due| other.limit == due.limit && other.key == due.key;
                    match dues.iter_mut().find(same) {
                        Some(other) => {
                            other.cost = other.cost.max(due.cost);
                            other.late = other.late.max(due.late);
                            other.fixed = other.fixed.max(due.fixed);
                        }
                        None => dues.push(due),
                    }
                }
            }
        }
        for due in dues.iter().filter(|due| !due.refused) {
            if self.meet(due, now) {
                judged.met.push((due.limit, due.key.clone(), due.rate));
            }
        }
        let fits = |model: &Self, due: &Due| !due.refused && model.fits(due, now);
        let mut through = true;
        for due in dues.iter().filter(|due| !due.shadow) {
            through &= fits(self, due);
            judged.denied |= due.refused;
        }
        if !through {
            judged.outcome = "limited";
        }
        for due in &dues {
            let allowed = fits(self, due);
            // A limit that only watches tells what it would have told.
            let charged = allowed && through;
            if charged {
                judged.spent.push(self.charge(due, now));
            }
            let remaining = if due.refused { 0 } else { self.remaining(due, now) };
            judged.verdicts.push((due.limit, allowed, remaining, due.shadow));
        }
        judged
    }

    /// The answer is known.
    pub(crate) fn finish(
        &mut self,
        judged: &Judged,
        status: u16,
        used: Option<u32>,
        by_origin: bool,
        now: u64,
    ) {
        for charge in &judged.spent {
            let limit = &self.policy.limits[charge.limit];
            let not_counted = by_origin && limit.counts_401 && status != 401;
            let back = not_counted || (limit.refunds_5xx && status >= 500);
            let cost = match (charge.late, used) {
                _ if back => 0,
                (Some(max), Some(used)) if by_origin => used.min(max).max(charge.fixed),
                _ => charge.cost,
            };
            if cost > charge.cost {
                self.add(charge, cost - charge.cost, now);
            } else if cost < charge.cost {
                self.take_back(charge, charge.cost - cost, now);
            }
        }
    }

    fn due(&self, asked: &Asked, limit: usize, own: Option<Cost>) -> Result<Option<Due>, ()> {
        let cost = own.unwrap_or(self.policy.limits[limit].cost);
        let ip = format!("ip {:?}", asked.ip);
        let mut place = limit;
        let key = loop {
            let limit = &self.policy.limits[place];
            let found = match (limit.key, &asked.a, &asked.b) {
                (KeyOf::Ip, _, _) => Some(ip.clone()),
                (KeyOf::A, Some(a), _) => Some(format!("a {a}")),
                (KeyOf::AB, Some(a), Some(b)) => Some(format!("a {a} b {b}")),
                _ => None,
            };
            match (found, limit.missing) {
                (Some(key), _) => break key,
                (None, Missing::Skip) => return Ok(None),
                (None, Missing::Deny) => return Err(()),
                (None, Missing::Ip) => break ip,
                (None, Missing::Limit(next)) => place = next,
            }
        };
        let limit = &self.policy.limits[place];
        let by_key = limit.exceptions.0.filter(|_| key == "a a1");
        let by_network = limit.exceptions.1.filter(|_| asked.ip[0] == 198);
        let is_gold = asked.trusted && asked.plan.as_deref() == Some("gold");
        let mut due = Due {
            limit: place,
            key,
            cost: cost.at_door(asked),
            rate: limit.gold.filter(|_| is_gold).unwrap_or(limit.rate),
            shadow: limit.shadow,
            refused: false,
            late: match cost {
                Cost::Response { max, .. } => Some(max),
                Cost::Fixed(_) | Cost::Request(_) => None,
            },
            fixed: match cost {
                Cost::Response { .. } => 0,
                Cost::Fixed(_) | Cost::Request(_) => cost.at_door(asked),
            },
        };
        match by_key.or(by_network) {
            Some(Action::Allow) => return Ok(None),
            Some(Action::Deny) => due.refused = true,
            Some(Action::Rate(rate)) => due.rate = rate,
            None => {}
        }
        Ok(Some(due))
    }

    /// A rate that a key meets for the first time has a bucket of its own from then on, which begins
    /// with what is spent. Returns whether this is the first time.
    fn meet(&mut self, due: &Due, now: u64) -> bool {
        let bucket = self.policy.limits[due.limit].algorithm == Algorithm::Bucket;
        let tick = self.tick;
        if let Some(cell) = self.cells.get_mut(&(due.limit, due.key.clone()))
            && bucket
        {
            return cell.add_bucket(due.rate, tick, now);
        }
        false
    }

    /// The store was not asked, because a denial was remembered: it has not met the rates.
    pub(crate) fn forget_meetings(&mut self, judged: &Judged) {
        for (limit, key, rate) in &judged.met {
            if let Some(cell) = self.cells.get_mut(&(*limit, key.clone())) {
                cell.buckets.retain(|one| one.rate != *rate);
            }
        }
    }

    /// What is spent: of a window in units, of a bucket in time.
    fn spent(&self, limit: usize, key: &str, rate: Rate, now: u64) -> u64 {
        let period = rate.period;
        let algorithm = self.policy.limits[limit].algorithm;
        let Some(cell) = self.cells.get(&(limit, key.to_owned())) else {
            return 0;
        };
        let sum = |counts: &dyn Fn(u64) -> bool| {
            let live = cell.charges.iter().filter(|(at, _)| counts(*at));
            live.map(|(_, cost)| u64::from(*cost)).sum()
        };
        match algorithm {
            Algorithm::Fixed => sum(&|at| at / period == now / period),
            Algorithm::Log => sum(&|at| at + period > now),
            Algorithm::Bucket => {
                let own = cell.buckets.iter().find(|one| one.rate == rate);
                own.map_or(0, |one| one.spent(now))
            }
        }
    }

    fn fits(&self, due: &Due, now: u64) -> bool {
        let unit = self.unit(due.limit, due.rate);
        let spent = self.spent(due.limit, &due.key, due.rate, now);
        spent + u64::from(due.cost) * unit <= u64::from(due.rate.count) * unit
    }

    fn remaining(&self, due: &Due, now: u64) -> u32 {
        let unit = self.unit(due.limit, due.rate);
        let spent = self.spent(due.limit, &due.key, due.rate, now);
        ((u64::from(due.rate.count) * unit).saturating_sub(spent) / unit) as u32
    }

    fn unit(&self, limit: usize, rate: Rate) -> u64 {
        let limit = &self.policy.limits[limit];
        if limit.algorithm == Algorithm::Bucket { rate.emission(self.tick) } else { 1 }
    }

    fn charge(&mut self, due: &Due, now: u64) -> Charge {
        let charge = Charge {
            limit: due.limit,
            key: due.key.clone(),
            cost: due.cost,
            rate: due.rate,
            at: now,
            late: due.late,
            fixed: due.fixed,
        };
        self.add(&charge, charge.cost, now);
        charge
    }

    fn add(&mut self, charge: &Charge, units: u32, now: u64) {
        let (tick, returns) = (self.tick, self.returns[charge.limit]);
        let cell = self.cells.entry((charge.limit, charge.key.clone())).or_default();
        cell.charges.push((now, units));
        cell.add_bucket(charge.rate, tick, now);
        cell.charge_buckets(charge.rate, units, returns, now);
    }

    /// As if it had never been.
    fn take_back(&mut self, charge: &Charge, units: u32, now: u64) {
        let returns = self.returns[charge.limit];
        let cell = self.cells.entry((charge.limit, charge.key.clone())).or_default();
        let mut left = units;
        for (_, cost) in cell.charges.iter_mut().filter(|(at, _)| *at == charge.at) {
            let taken = left.min(*cost);
            *cost -= taken;
            left -= taken;
        }
        cell.give_buckets_back(charge.rate, units, returns, charge.at, now);
    }
}
