//! The log of refusals with decisions of the real engine.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;

use super::record::refused_keys;
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::config;
use crate::engine::{Decision, Engine, Generation, VerdictKind};
use crate::policy::client::RequestClient;
use crate::policy::{ConnectionFacts, Facts, KeySecret};

const POLICY: &str = "version: 1
listeners: [{ address: 127.0.0.1:1 }]
origins: { s: { servers: [127.0.0.1:1] } }
limits:
  first: { tier: estimate, rate: 3/1500ms, key: client_ip }
  second: { tier: exact, algorithm: token_bucket, rate: 2/7d, burst: 5, key: [method, client_ip] }
  third: { tier: exact, algorithm: sliding_log, rate: 4/366d, key: method, cost: 2 }
  fourth: { tier: exact, algorithm: fixed_window, rate: 2/1h, key: client_ip, mode: shadow }
  fifth: { tier: exact, max_in_flight: 2, key: client_ip }
  sixth: { tier: exact, rate: 1/1m, key: client_ip }
routes:
  - { name: few, match: { path: /few }, limits: [first, second, third, fourth] }
  - { name: flight, match: { path: /flight }, limits: [fifth] }
  - { name: many, match: { path: /many }, limits: [fourth, first, fifth, third, sixth] }
";

struct Node {
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
    log: RefusalLog,
    names: PolicyNames,
}

impl Node {
    fn new() -> Self {
        let policy = config::read_text(POLICY, "f", Path::new("")).unwrap().config.policy;
        let clock = Arc::new(ManualClock::new(Nanos::new(1_800_000_000_123_456_789)));
        let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
        let generation = engine.generation(policy, None).0;
        let log = RefusalLog::default();
        let names = log.names_of(generation.policy());
        Self { clock, engine, generation, log, names }
    }

    /// Decides a request, and records it if it is refused.
    fn ask(&self, path: &str, client: RequestClient, id: &str) -> Decision {
        let headers = &HeaderMap::new();
        let facts = Facts {
            connection: &ConnectionFacts::NONE,
            client,
            now: self.clock.date(self.clock.now()),
            method: "GET",
            host: "h",
            path,
            readings: &[],
            query: None,
            headers,
            conditions: None,
        };
        let (decision, pending) = self.engine.decide_now(&self.generation, &facts);
        // It is in flight for ever.
        std::mem::forget(pending);
        self.log.record(&RefusedRequest {
            request_id: id.as_bytes(),
            client,
            status: 429,
            decision: &decision,
            policy: self.generation.policy(),
            names: &self.names,
        });
        decision
    }

    fn count_keys(&self) {
        let now = self.clock.now();
        self.log.count_keys(now.mono, self.clock.date(now));
    }
}

fn client(ip: &str) -> RequestClient {
    RequestClient { ip: ip.parse().unwrap(), ipv6_prefix: 64, peer_trusted: false }
}

/// Compares a record with the decision that it was made of.
fn check(node: &Node, decision: &Decision, id: &str, ip: &str) {
    let found = node.log.find(id).unwrap_or_else(|| panic!("{id} is not there"));
    let record = found.refusal;
    assert_eq!((record.date, record.generation), (decision.date, decision.generation), "{id}");
    assert_eq!(record.client, ip.parse::<IpAddr>().unwrap());
    let policy = node.generation.policy();
    assert_eq!(*node.log.name(record.route), *policy.route(decision.route.unwrap()).name);
    assert_eq!(record.limits.len() + usize::from(record.left_out), decision.verdicts.len());
    for limit in &record.limits {
        let name = node.log.name(limit.name);
        let is_own = |index| policy.limit(index).name == name;
        let verdict = decision.verdicts.iter().find(|verdict| is_own(verdict.limit)).unwrap();
        let spec = policy.limit(verdict.limit);
        let cell = limit.cell.unwrap();
        assert_eq!((cell.key, cell.kind, cell.cost), (verdict.key, verdict.kind, verdict.cost));
        assert_eq!(cell.size, verdict.verdict.limit, "{id}: {name}");
        assert_eq!(cell.remaining, Some(verdict.verdict.remaining), "{id}: {name}");
        assert_eq!((limit.tier, cell.is_shadow), (spec.count.tier(), verdict.shadow));
        assert!(spec.identity().contains(limit.algorithm.name()) || &*name == "first");
        // Milliseconds, never too early.
        let rounded = |left: Nanos| Nanos::from_millis(left.get().div_ceil(1_000_000));
        assert_eq!(cell.retry_after, verdict.verdict.retry_after.map(rounded), "{id}: {name}");
        let rate = cell.rate.map(|rate| (rate.count(), rate.period()));
        let expected = match &*name {
            "first" => Some((3, Nanos::from_millis(1_500))),
            "second" => Some((2, Nanos::from_secs(7 * 86_400))),
            "third" => Some((4, Nanos::from_secs(366 * 86_400))),
            "fourth" => Some((2, Nanos::from_secs(3_600))),
            "sixth" => Some((1, Nanos::from_secs(60))),
            _ => None,
        };
        assert_eq!(rate, expected, "{name}");
    }
    let refusing = decision.refusing().count();
    let is_refused = |limit: &RecordedLimit| {
        limit.cell.is_some_and(|cell| !cell.is_shadow && cell.kind == VerdictKind::Denied)
    };
    let kept = record.limits.iter().filter(|limit| is_refused(limit)).count();
    assert_eq!(kept, refusing.min(MAX_RECORDED_LIMITS), "those that refuse are kept");
}

#[test]
fn a_record_says_what_was_decided() {
    let node = Node::new();
    let mut refused = 0;
    for (path, ip) in [("/few", "192.0.2.7"), ("/flight", "2001:db8::7"), ("/many", "::1")] {
        for n in 0..9 {
            node.clock.advance(Nanos::from_millis(7));
            let id = format!("{path}{n}");
            let decision = node.ask(path, client(ip), &id);
            let is_refused = RefusalReason::of(&decision).is_some();
            assert_eq!(node.log.find(&id).is_some(), is_refused, "{id}");
            if is_refused {
                check(&node, &decision, &id, ip);
                refused += 1;
            }
        }
    }
    assert!(refused > 15, "{refused}");
    let all = node.log.latest(&RefusalQuery { count: 99, ..RefusalQuery::default() }).unwrap();
    assert_eq!((all.refusals.len(), all.has_more), (refused, false));
    let few = node.log.latest(&RefusalQuery { count: 3, ..RefusalQuery::default() }).unwrap();
    assert_eq!((&few.refusals[..], few.has_more), (&all.refusals[..3], true));
    let unknown = RefusalQuery { limit: Some("seventh"), count: 1, ..RefusalQuery::default() };
    assert_eq!(node.log.latest(&unknown), Err(UnknownName::Limit));
    let unknown = RefusalQuery { route: Some("none"), count: 1, ..RefusalQuery::default() };
    assert_eq!(node.log.latest(&unknown), Err(UnknownName::Route));
}

#[test]
fn keys_are_counted_once_and_addresses_only_where_they_are_the_key() {
    let node = Node::new();
    (0..20).for_each(|n| drop(node.ask("/few", client("2001:db8::7"), &n.to_string())));
    node.count_keys();
    node.count_keys();
    let now = node.clock.now().mono;
    let of = |limit: &str| node.log.frequent_keys(limit, 1, now).unwrap();
    let [first, third] = ["first", "third"].map(of);
    let counted = first.total + third.total;
    assert!(counted >= 17, "{first:?} {third:?}");
    assert_eq!(third.keys.len(), 1);
    assert_eq!((third.keys[0].address, third.keys[0].refused), (None, third.total));
    assert!(first.keys.iter().all(|key| key.address.is_some_and(|(_, prefix)| prefix == 64)));
    assert_eq!(of("fourth").total, 0, "a limit in shadow mode refuses nothing");
    assert_eq!(node.log.frequent_keys("seventh", 1, now), None);
    assert_eq!(node.log.missed(), 0);
}

/// More refusals than the ring has room for between two counts: the others are missed, and counted as that.
#[test]
fn what_was_overwritten_is_missed() {
    let node = Node::new();
    for _ in 0..2 {
        node.ask("/flight", client("192.0.2.7"), "x");
    }
    const REFUSALS: u64 = MAX_REFUSALS as u64 + 500;
    for _ in 0..REFUSALS {
        node.ask("/flight", client("192.0.2.7"), "x");
    }
    node.count_keys();
    let counted = node.log.frequent_keys("fifth", 1, node.clock.now().mono).unwrap().total;
    assert_eq!((counted, node.log.missed()), (MAX_REFUSALS as u64, 500));
    assert_eq!(node.log.find("x").map(|found| found.earlier), Some(MAX_REFUSALS - 1));
}

/// A record that is never completed is waited for, and then passed over.
#[test]
fn a_writer_that_stands_still_does_not_stop_the_count() {
    let node = Node::new();
    let total = || {
        node.count_keys();
        let now = node.clock.now().mono;
        node.log.frequent_keys("fifth", 1, now).unwrap().total
    };
    node.log.ring.push(|_| {
        for _ in 0..5 {
            node.ask("/flight", client("192.0.2.7"), "x");
        }
        assert_eq!((total(), node.log.missed()), (0, 0));
        node.clock.advance(Nanos::from_millis(999));
        assert_eq!((total(), node.log.missed()), (0, 0));
        node.clock.advance(Nanos::from_millis(1));
        assert_eq!((total(), node.log.missed()), (3, 1));
    });
}

/// A reader may see a mixture of two records: any words are read without a panic.
#[test]
fn any_words_are_read() {
    let (ring, log) = (Ring::<RECORD_WORDS>::new(1), RefusalLog::default());
    let mut random = fastrand::Rng::with_seed(7);
    for number in 0..20_000 {
        ring.push(|slot| {
            for index in 0..RECORD_WORDS {
                let word = random.u64(..);
                slot.set(index, if random.bool() { word } else { word >> random.u32(..64) });
            }
        });
        let RecordRead::Complete(record) = ring.read(number, RecordedRefusal::read) else {
            panic!("{number}");
        };
        assert!(record.limits.len() <= MAX_RECORDED_LIMITS);
        assert!(record.request_id.chars().count() <= MAX_ID_BYTES);
        let name = log.name(record.route);
        assert_eq!(&*name, UNKNOWN_NAME);
        // Whatever it says, it must not panic.
        let _ = ring.read(number, refused_keys);
    }
}
