//! What a refusal tells its client: `Retry-After`, `t` of `RateLimit` and `X-RateLimit-Reset` name one instant, and at that
//! instant the same request succeeds.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use proptest::prelude::*;
use sfv::{BareItem, ListEntry, Parser};
use tollgate::clock::{Clock, ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Decision, Engine, Generation, Outcome};
use tollgate::http::{AnswerPreferences, Refusal, added_fields, refusal};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConnectionFacts, Count, Facts, KeySecret};

/// The text of a limit by client address.
fn limit() -> impl Strategy<Value = String> {
    let algorithm =
        prop::sample::select(vec!["token_bucket", "sliding_window", "sliding_log", "fixed_window"]);
    let span = prop::sample::select(vec!["1s", "7s", "1m", "1h", "1500ms"]);
    (algorithm, 1..40_u32, span, 1..4_u32, any::<bool>()).prop_map(
        |(algorithm, count, span, cost, is_hidden)| {
            let hidden = if is_hidden { ", headers: hidden" } else { "" };
            let cost = cost.min(count);
            format!(
                "{{ tier: exact, algorithm: {algorithm}, rate: {count}/{span}, key: client_ip, \
                 cost: {cost}{hidden} }}"
            )
        },
    )
}

/// The name and the text of a limit of any kind.
fn any_limit() -> impl Strategy<Value = (String, String)> {
    let span = prop::sample::select(vec!["1ms", "999ms", "1s", "1500ms", "1m", "366d"]);
    let count = prop_oneof![1..5_u32, Just(9_000)];
    let kind = prop::sample::select(vec![
        "tier: estimate, rate: COUNT/SPAN",
        "tier: exact, max_in_flight: COUNT",
        "tier: exact, algorithm: sliding_window, rate: COUNT/SPAN",
        "tier: exact, algorithm: fixed_window, rate: COUNT/SPAN",
        "tier: exact, algorithm: token_bucket, rate: 9/SPAN, burst: 7",
        "tier: exact, algorithm: sliding_log, rate: 8/SPAN",
    ]);
    ("[a-zA-Z0-9_-]{1,64}", kind, count, span, any::<bool>()).prop_map(
        |(name, kind, count, span, is_hidden)| {
            let hidden = if is_hidden { ", headers: hidden" } else { "" };
            let kind = kind.replace("COUNT", &count.to_string()).replace("SPAN", span);
            (name, format!("{{ {kind}, key: client_ip{hidden} }}"))
        },
    )
}

/// A policy in force with a clock of the test.
struct Node {
    clock: Arc<ManualClock>,
    engine: Engine,
    generation: Generation,
    responses: Arc<config::Responses>,
}

impl Node {
    fn new(limits: &[String]) -> Self {
        let named = |(n, limit): (usize, &String)| (format!("l{n}"), limit.clone());
        Self::named(&limits.iter().enumerate().map(named).collect::<Vec<_>>())
    }

    /// With these limits, of which the last of each name counts.
    fn named(limits: &[(String, String)]) -> Self {
        let limits: BTreeMap<_, _> = limits.iter().cloned().collect();
        let named = limits.iter().map(|(name, limit)| format!("  \"{name}\": {limit}\n"));
        let names: Vec<String> = limits.keys().map(|name| format!("\"{name}\"")).collect();
        let text = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\n\
             origins: {{ s: {{ servers: [127.0.0.1:1] }} }}\nlimits:\n{}\
             routes: [{{ name: r, limits: [{}] }}]\nresponses: {{ retry_after_jitter: 3s }}\n",
            named.collect::<String>(),
            names.join(", ")
        );
        let loaded = config::read_text(&text, "random.yaml", Path::new("")).unwrap();
        let (policy, responses) = (loaded.config.policy, loaded.config.default_responses);
        let clock = Arc::new(ManualClock::new(Nanos::new(1_800_000_000_123_456_789)));
        let engine = Engine::new(Arc::clone(&clock) as _, KeySecret::new([7; 16]));
        let generation = engine.generation(policy, None).0;
        Self { clock, engine, generation, responses }
    }

    fn ask(&self) -> Decision {
        let headers = &HeaderMap::new();
        let facts = Facts {
            connection: &ConnectionFacts::NONE,
            client: RequestClient {
                ip: [192, 0, 2, 1].into(),
                ipv6_prefix: 64,
                peer_trusted: false,
            },
            now: self.clock.date(self.clock.now()),
            method: "GET",
            host: "h",
            path: "/",
            readings: &[],
            query: None,
            headers,
            conditions: None,
        };
        self.engine.decide_now(&self.generation, &facts).0
    }

    fn refusal(&self, decision: &Decision, chance: f64) -> Refusal {
        let headers = &HeaderMap::new();
        let preferences = AnswerPreferences { headers, chance, request_id: "id" };
        refusal(decision, self.generation.policy(), &self.responses, preferences).unwrap().unwrap()
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name).map(|value| value.to_str().unwrap().parse().unwrap())
}

/// The `t` of each limit of `RateLimit`.
fn resets(headers: &HeaderMap) -> Vec<(String, u64)> {
    let line = headers.get("ratelimit").map_or("", |value| value.to_str().unwrap());
    let members = line.split(", ").filter(|member| !member.is_empty());
    let read = |member: &str| {
        let name = member.split('"').nth(1).unwrap().to_owned();
        let reset = member.split(";t=").nth(1).unwrap().parse().unwrap();
        (name, reset)
    };
    members.map(read).collect()
}

fn check(node: &Node, decision: &Decision, chance: f64) -> Result<u64, TestCaseError> {
    let told = node.refusal(decision, chance).headers;
    let retry = number(&told, "retry-after").unwrap();
    let policy = node.generation.policy();
    let visible: Vec<&str> = decision
        .refusing()
        .map(|answer| policy.limit(answer.limit))
        .filter(|limit| !limit.hidden)
        .map(|limit| &*limit.name)
        .collect();
    let resets = resets(&told);
    let latest = resets.iter().filter(|(name, _)| visible.contains(&&**name)).map(|(_, t)| *t);
    let latest = latest.max();
    let all_visible = visible.len() == decision.refusing().count();
    prop_assert!(!all_visible || latest == Some(retry), "{resets:?}, retry after {retry}");
    prop_assert!(latest.is_none_or(|latest| latest <= retry), "{resets:?}");
    if let Some(latest) = latest {
        // The same instant, in whole seconds since the epoch. What a hidden limit adds is in `Retry-After` alone.
        let instant = decision.date.saturating_add(Nanos::from_secs(latest)).secs_ceil();
        prop_assert_eq!(number(&told, "x-ratelimit-reset"), Some(instant));
    }
    is_structured(node, decision, &told)?;
    Ok(retry)
}

/// Both fields are lists of strings with parameters, as another parser reads them: a member for each visible limit in the
/// order of the route, whose numbers are those of the decision.
fn is_structured(node: &Node, decision: &Decision, told: &HeaderMap) -> Result<(), TestCaseError> {
    let policy = node.generation.policy();
    let verdicts = decision.verdicts.iter();
    let visible: Vec<_> = verdicts.filter(|found| !policy.limit(found.limit).hidden).collect();
    for (name, keys) in [("ratelimit-policy", ["q", "w", "qu"]), ("ratelimit", ["r", "t", "-"])] {
        let lines: Vec<_> = told.get_all(name).iter().collect();
        prop_assert_eq!(lines.len(), usize::from(!visible.is_empty()), "{}", name);
        let Some(line) = lines.first() else {
            continue;
        };
        let list = Parser::parse_list(line.as_bytes())
            .map_err(|error| TestCaseError::fail(format!("{line:?}: {error}")))?;
        prop_assert_eq!(list.len(), visible.len(), "{:?}", line);
        for (member, verdict) in list.iter().zip(&visible) {
            let ListEntry::Item(member) = member else {
                return Err(TestCaseError::fail(format!("{line:?}: a list in a list")));
            };
            let limit = policy.limit(verdict.limit);
            prop_assert_eq!(member.bare_item.as_str(), Some(&*limit.name));
            prop_assert!(member.params.keys().all(|key| keys.contains(&&**key)), "{line:?}");
            let number = |key: &str| member.params.get(key).and_then(BareItem::as_int);
            let units =
                if keys[0] == "q" { verdict.verdict.limit } else { verdict.verdict.remaining };
            prop_assert_eq!(number(keys[0]), Some(i64::from(units)), "{:?}", line);
            prop_assert!(number(keys[1]).is_none_or(|seconds| seconds >= 0), "{line:?}");
            let is_in_flight = matches!(limit.count, Count::InFlight { .. });
            prop_assert_eq!(
                keys[0] == "r" && number("t").is_none(),
                is_in_flight && keys[0] == "r"
            );
            let kind = member.params.get("qu").and_then(BareItem::as_str);
            let expected = (is_in_flight && keys[0] == "q").then_some("concurrent-requests");
            prop_assert_eq!(kind, expected, "{:?}", line);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_refused_request_succeeds_when_it_was_told(
        limits in prop::collection::vec(limit(), 1..4),
        pauses in prop::collection::vec(0..3_000_u64, 1..60),
        chance in 0.0..1.0_f64,
    ) {
        let node = Node::new(&limits);
        for pause in pauses {
            node.clock.advance(Nanos::new(pause * 1_000_000));
            let decision = node.ask();
            if decision.outcome == Outcome::Allowed {
                let policy = node.generation.policy();
                let told = added_fields(&decision, policy, &node.responses).unwrap();
                is_structured(&node, &decision, &told)?;
                continue;
            }
            check(&node, &decision, chance)?;
            let earliest = check(&node, &decision, 0.0)?;
            node.clock.advance(Nanos::from_secs(earliest));
            prop_assert_eq!(node.ask().outcome, Outcome::Allowed, "{:?}: {:?}", limits, decision);
        }
    }

    /// Limits of every kind, with names at the ends of what a name may be, and rates up to the largest numbers.
    #[test]
    fn the_fields_of_every_policy_are_structured_fields(
        limits in prop::collection::vec(any_limit(), 1..6),
        pauses in prop::collection::vec(0..3_000_u64, 1..20),
    ) {
        let node = Node::named(&limits);
        for pause in pauses {
            node.clock.advance(Nanos::new(pause * 1_000_000));
            let decision = node.ask();
            let policy = node.generation.policy();
            let told = match decision.outcome {
                Outcome::Limited => node.refusal(&decision, 0.5).headers,
                _ => added_fields(&decision, policy, &node.responses).unwrap(),
            };
            is_structured(&node, &decision, &told)?;
        }
    }
}
