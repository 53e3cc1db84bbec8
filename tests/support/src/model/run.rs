//! Random policies and random traffic through the reader and the engine, beside the model.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use http::{HeaderMap, HeaderValue};
use tollgate::cli::test::TestStore;
use tollgate::clock::{Clock, ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Decision, Engine, FinalResponse, Generation, Outcome, PendingSettlement};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeySecret};

use super::reference::{Asked, Judged, Model, Policy};

/// A day's begin, so that windows begin with the case.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

struct Bench<'s> {
    store: &'s dyn TestStore,
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
}

/// A request whose answer is not there yet, and what it will be.
struct InFlight {
    decision: Decision,
    pending: PendingSettlement,
    model: Judged,
    status: u16,
    used: Option<u32>,
    by_origin: bool,
}

impl<'s> Bench<'s> {
    fn new(policy: &str, store: &'s dyn TestStore) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let engine = store.engine(Arc::clone(&clock), KeySecret::new([5; 16]));
        let loaded = config::read_text(policy, "model.yaml", Path::new(""));
        let loaded = loaded.unwrap_or_else(|errors| panic!("{policy}\n{errors}"));
        let generation = engine.generation(loaded.config.policy, None).0;
        Self { store, clock, engine, generation }
    }

    fn decide(&self, asked: &Asked) -> (Decision, PendingSettlement) {
        let mut headers = HeaderMap::new();
        let fields = [
            ("x-a", &asked.a),
            ("x-b", &asked.b),
            ("x-plan", &asked.plan),
            ("x-cost", &asked.cost),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_str(value).unwrap());
            }
        }
        let facts = Facts {
            connection: &tollgate::policy::ConnectionFacts::NONE,
            client: RequestClient {
                ip: asked.ip.into(),
                ipv6_prefix: 64,
                peer_trusted: asked.trusted,
            },
            now: self.clock.now().wall,
            method: "POST",
            host: "h",
            path: if asked.route == 0 { "/r0" } else { "/r1" },
            readings: &[],
            query: None,
            headers: &headers,
            conditions: None,
        };
        self.store.decide(&self.engine, &self.generation, &facts)
    }

    fn finish(&self, one: &mut InFlight) {
        let mut headers = HeaderMap::new();
        if let Some(used) = one.used {
            headers.insert("x-used", HeaderValue::from(used));
        }
        let said =
            FinalResponse { status: one.status, headers: &headers, by_origin: one.by_origin };
        self.engine.finish(&self.generation, &mut one.decision, &mut one.pending, &said);
        self.store.wait_until_settled(&self.engine);
    }
}

/// What the engine said, in the model's words: limit, allowed, remaining, shadow.
type Told = (&'static str, Vec<(usize, bool, u32, bool)>);

fn told(decision: &Decision) -> Told {
    let outcome = match decision.outcome {
        Outcome::Allowed => "allowed",
        Outcome::Limited => "limited",
        Outcome::MissingKey { .. } => "missing",
        _ => "other",
    };
    let answers = decision.verdicts.iter();
    let answers =
        answers.map(|one| (one.limit.0, one.verdict.allowed, one.verdict.remaining, one.shadow));
    (outcome, answers.collect())
}

/// How long a shared store's denial is cached at most.
const CACHED: u64 = 1_000_000_000;

/// One random policy and its traffic. `tick`: the unit of the store's clock. `yaml`: what the policy
/// says of the store; no request waits for a shadow limit of a shared one. Returns how many refusals
/// were compared with all that their limits say.
pub fn run(seed: u64, store: &dyn TestStore, yaml: &str, tick: u64) -> usize {
    let mut random = Rng::with_seed(seed);
    let policy = Policy::random(&mut random);
    let text = format!("{}{yaml}", policy.yaml());
    let bench = Bench::new(&text, store);
    let mut model = Model::new(policy, tick);
    let watched = |(outcome, mut answers): Told| {
        if !yaml.is_empty() {
            answers.retain(|(_, _, _, shadow)| !shadow);
        }
        (outcome, answers)
    };
    let refusing = |(_, answers): &Told| -> Vec<usize> {
        let refuse = answers.iter().filter(|(_, allowed, _, shadow)| !allowed && !shadow);
        refuse.map(|(limit, ..)| *limit).collect()
    };
    // When each limit refused for the last time, by the store's word.
    let mut denials: HashMap<usize, u64> = HashMap::new();
    let mut compared = 0;
    let mut in_flight: Vec<InFlight> = Vec::new();
    for step in 0..60 {
        let now = bench.clock.now().wall.get();
        let asked = Asked::random(&mut random);
        let (decision, pending) = bench.decide(&asked);
        let expected = model.judge(&asked, now);
        let told = told(&decision);
        let by_model = (expected.outcome, expected.verdicts.clone());
        let (refuse, all) = (refusing(&told), refusing(&by_model));
        let at = format!("seed {seed}, step {step}: {asked:?}\n{text}");
        let is_cached = |limit: &usize| denials.get(limit).is_some_and(|at| at + CACHED > now);
        let (told, by_model) = (watched(told), watched(by_model));
        // Only a store that was asked says of a limit that it would admit.
        let asked = told.1.len() == by_model.1.len() && told.1.len() > refuse.len();
        let unasked = told.0 == "limited" && (expected.denied || refuse.iter().any(is_cached));
        if !yaml.is_empty() && unasked && !asked {
            assert_eq!(told.0, by_model.0, "{at}");
            assert!(!refuse.is_empty() && refuse.iter().all(|one| all.contains(one)), "{at}");
            if told != by_model {
                model.forget_meetings(&expected);
            }
        } else {
            assert_eq!(told, by_model, "{at}");
            compared += usize::from(expected.outcome == "limited");
        }
        denials.extend(refuse.into_iter().map(|limit| (limit, now)));
        bench.store.wait_until_settled(&bench.engine);
        if decision.outcome == Outcome::Allowed {
            let one = InFlight {
                decision,
                pending,
                model: expected,
                status: *random.choice(&[200, 200, 401, 404, 500, 503]).unwrap(),
                used: random.bool().then(|| random.u32(0..9)),
                by_origin: random.u8(0..8) > 0,
            };
            in_flight.push(one);
        }
        // Answers come at once, later, in any order, or never.
        while !in_flight.is_empty() && random.u8(0..3) > 0 {
            let mut one = in_flight.swap_remove(random.usize(0..in_flight.len()));
            if random.u8(0..6) > 0 {
                let now = bench.clock.now().wall.get();
                bench.finish(&mut one);
                model.finish(&one.model, one.status, one.used, one.by_origin, now);
            }
        }
        if random.bool() {
            let longest = *random.choice(&[300u64, 3_000, 30_000]).unwrap();
            bench.clock.advance(Nanos::from_millis(random.u64(1..longest)));
        }
    }
    compared
}
