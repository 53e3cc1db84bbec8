//! What clients ask for, and which cells that leads to: a few values, and the rules of the file.

use fastrand::Rng;
use http::{HeaderMap, HeaderValue};

use super::cell::Variant;
use super::draw::{Action, Algorithm, Cost, KeyOf, Missing, OnFailure, Policy};

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) route: usize,
    pub(crate) ip: [u8; 4],
    pub(crate) trusted: bool,
    pub(crate) a: Option<&'static str>,
    pub(crate) b: Option<&'static str>,
    pub(crate) plan: Option<&'static str>,
    pub(crate) cost: Option<&'static str>,
}

/// What one limit of a request is due to be charged.
#[derive(Clone, Debug)]
pub(crate) struct Due {
    pub(crate) limit: usize,
    pub(crate) key: String,
    pub(crate) cost: u32,
    pub(crate) variant: Variant,
    pub(crate) shadow: bool,
    /// Whether only a share of the keys is refused: then the answer says which this is.
    pub(crate) rolled_out: bool,
    pub(crate) refused: bool,
    /// Charged by the answer, up to so much.
    pub(crate) late: Option<u32>,
    /// The largest cost of the uses that no answer changes.
    pub(crate) fixed: u32,
    pub(crate) counts_401: bool,
    pub(crate) refunds_5xx: bool,
    pub(crate) on_failure: OnFailure,
}

fn pick(random: &mut Rng, values: &[&'static str]) -> Option<&'static str> {
    let value = values[random.usize(0..values.len())];
    (!value.is_empty()).then_some(value)
}

impl Asked {
    pub(crate) fn random(random: &mut Rng) -> Self {
        Self {
            route: random.usize(0..2),
            ip: *random.choice(&[[192, 0, 2, 1], [192, 0, 2, 2], [198, 51, 100, 1]]).unwrap(),
            trusted: random.bool(),
            a: pick(random, &["a1", "a2", "a2", "192.0.2.1", ""]),
            b: pick(random, &["b1", "b2", ""]),
            plan: pick(random, &["gold", "gold", "tin", "brass", "", ""]),
            cost: pick(random, &["1", "2", "9", "0", "x", "", ""]),
        }
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let fields =
            [("x-a", self.a), ("x-b", self.b), ("x-plan", self.plan), ("x-cost", self.cost)];
        for (name, value) in fields {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        headers
    }

    pub(crate) fn path(&self) -> String {
        format!("/r{}", self.route)
    }

    /// The cells that it is to be charged to; `Err`: it lacks a key. `tick`: the unit of the clock.
    pub(crate) fn dues(&self, policy: &Policy, tick: u64) -> Result<Vec<Due>, ()> {
        let mut dues: Vec<Due> = Vec::new();
        for (limit, own) in &policy.routes[self.route] {
            let cost = own.unwrap_or(policy.limits[*limit].cost);
            if let Some(due) = self.due(policy, *limit, cost, tick)? {
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
        Ok(dues)
    }

    fn due(
        &self,
        policy: &Policy,
        mut place: usize,
        cost: Cost,
        tick: u64,
    ) -> Result<Option<Due>, ()> {
        let ip = format!("ip {:?}", self.ip);
        let key = loop {
            let limit = &policy.limits[place];
            let found = match (limit.key, self.a, self.b) {
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
        let limit = &policy.limits[place];
        let plan = self.plan.filter(|_| self.trusted);
        let by_plan = match plan {
            Some("gold") => limit.gold,
            Some("tin") => limit.tin,
            _ => None,
        };
        let by_key = limit.exceptions.0.filter(|_| key == "a a1");
        let exception = by_key.or(limit.exceptions.1.filter(|_| self.ip[0] == 198));
        let (rate, refused) = match exception {
            _ if limit.algorithm == Algorithm::InFlight => (limit.rate, false),
            Some(Action::Allow) => return Ok(None),
            Some(Action::Deny) => (by_plan.unwrap_or(limit.rate), true),
            Some(Action::Rate(rate)) => (rate, false),
            None => (by_plan.unwrap_or(limit.rate), false),
        };
        Ok(Some(Due {
            limit: place,
            key,
            cost: self.at_door(cost),
            variant: Variant::of(limit, rate, tick),
            shadow: limit.shadow,
            rolled_out: limit.rollout.is_some(),
            refused,
            late: match cost {
                Cost::Response { max, .. } => Some(max),
                Cost::Fixed(_) | Cost::Request(_) => None,
            },
            fixed: match cost {
                Cost::Response { .. } => 0,
                Cost::Fixed(_) | Cost::Request(_) => self.at_door(cost),
            },
            counts_401: limit.counts_401,
            refunds_5xx: limit.refunds_5xx,
            on_failure: limit.on_failure,
        }))
    }

    fn at_door(&self, cost: Cost) -> u32 {
        match cost {
            Cost::Fixed(cost) => cost,
            Cost::Response { reserve, .. } => reserve,
            Cost::Request(max) => match self.cost {
                None => 1,
                Some("x") => max,
                Some(number) => number.parse::<u32>().unwrap().clamp(1, max),
            },
        }
    }
}
