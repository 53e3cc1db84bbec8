//! Policies as data: `NAME.yaml` is a configuration, `NAME.test.yaml` its cases. They run through
//! the real gate and the real engine on a clock that is turned by hand.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use serde::Deserialize;
use tollgate::clock::{Clock, ManualClock, Nanos};
use tollgate::config::{self, Config, Responses};
use tollgate::engine::{Decision, Engine, Generation};
use tollgate::policy::client::{self, ClientRules};
use tollgate::policy::{Facts, KeySecret};
use tollgate::proxy::{self, GateBounds, Head, Reason};

/// A day's begin, so that windows of every length begin with each case.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// `embedded`: the case is of what only that store has.
    #[serde(default)]
    only: Option<String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(default)]
    at: Option<String>,
    #[serde(default = "once")]
    times: u32,
    send: Send,
    expect: Expect,
}

fn once() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    #[serde(default = "get")]
    method: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, Lines>,
    #[serde(default = "documentation_address")]
    ip: IpAddr,
}

fn get() -> String {
    "GET".to_owned()
}

fn documentation_address() -> IpAddr {
    [192, 0, 2, 7].into()
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Lines {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    route: Option<String>,
    #[serde(default)]
    allowed: Option<u32>,
    #[serde(default)]
    limited: Option<u32>,
    #[serde(default)]
    limit: Option<String>,
    #[serde(default)]
    status: Option<u16>,
    /// What the gate or a missing key is refused for.
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    client_ip: Option<String>,
    /// Of the last answer; `absent` must not be there.
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// One policy with its engine.
struct Bench<'s> {
    clock: Arc<ManualClock>,
    store: &'s dyn Store,
    engine: Engine,
    generation: Generation,
    clients: ClientRules,
    ipv6_prefix: u8,
    bounds: GateBounds,
    responses: Vec<Arc<Responses>>,
    default_responses: Arc<Responses>,
}

/// Where the exact tier of a bench counts.
pub trait Store {
    /// What a configuration says of it.
    fn yaml(&self) -> String;
    /// An engine on an empty store, with this clock.
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine;
    /// Decides, waiting for the store if need be.
    fn decide(&self, engine: &Engine, generation: &Generation, facts: &Facts<'_>) -> Decision;
}

/// What came of one request.
#[derive(Debug)]
struct Answered {
    route: Option<String>,
    status: Option<u16>,
    reason: Option<&'static str>,
    limit: Option<String>,
    client_ip: String,
    headers: BTreeMap<String, String>,
}

impl<'s> Bench<'s> {
    fn new(config: Config, store: &'s dyn Store) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let engine = store.engine(Arc::clone(&clock), KeySecret::new([3; 16]));
        let (generation, _) = engine.generation(config.policy, None);
        Self {
            clock,
            store,
            engine,
            generation,
            clients: config.clients,
            ipv6_prefix: config.ipv6_prefix,
            bounds: GateBounds {
                header_size: config.bounds.header_size,
                header_fields: config.bounds.header_fields,
                body_size: config.bounds.body_size,
            },
            responses: config.responses,
            default_responses: config.default_responses,
        }
    }

    fn go_to(&self, offset: &str) {
        let wanted = EPOCH.saturating_add(span(offset));
        let now = self.clock.now().wall;
        assert!(wanted >= now, "steps go forwards: at {offset}");
        // The housekeeping runs once in every second that passes, as it does in a process.
        let mut left = wanted.saturating_sub(now);
        while left > Nanos::ZERO {
            let step = left.min(Nanos::SECOND);
            self.clock.advance(step);
            self.engine.tick(&self.generation);
            left = left.saturating_sub(step);
        }
    }

    fn send(&self, send: &Send) -> Answered {
        let (authority, target) = match send.url.split_once("://") {
            Some((_, rest)) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", send.url.as_str()),
        };
        let mut headers = HeaderMap::new();
        for (name, lines) in &send.headers {
            let lines = match lines {
                Lines::One(line) => vec![line.clone()],
                Lines::Many(lines) => lines.clone(),
            };
            for line in lines {
                headers.append(
                    HeaderName::try_from(name).unwrap(),
                    HeaderValue::try_from(line).unwrap(),
                );
            }
        }
        if !authority.is_empty() && !headers.contains_key("host") {
            headers.insert("host", HeaderValue::try_from(authority).unwrap());
        }
        let method = Method::try_from(send.method.as_str()).unwrap();
        let version =
            if headers.contains_key("host") { Version::HTTP_11 } else { Version::HTTP_10 };
        let target = if target.is_empty() { "/" } else { target };
        let client_ip = client::resolve(send.ip, &headers, &self.clients);
        let head = Head {
            method: &method,
            target: target.as_bytes(),
            authority: None,
            version,
            headers: &headers,
        };
        let mut answered = Answered {
            route: None,
            status: None,
            reason: None,
            limit: None,
            client_ip: client_ip.to_string(),
            headers: BTreeMap::new(),
        };
        let clean = match proxy::pass(head, self.bounds) {
            Ok(clean) => clean,
            Err(reason) => {
                answered.status = Some(reason.status());
                answered.reason = Some(reason.name());
                return answered;
            }
        };
        let facts = Facts {
            client_ip,
            method: method.as_str(),
            host: &clean.host,
            path: &clean.path,
            readings: &clean.readings,
            query: clean.query,
            headers: &headers,
            ipv6_prefix: self.ipv6_prefix,
        };
        let decision = self.store.decide(&self.engine, &self.generation, &facts);
        self.tell(&decision, &mut answered);
        answered
    }

    /// What the client would see of a decision.
    fn tell(&self, decision: &Decision, answered: &mut Answered) {
        let policy = self.generation.policy();
        answered.route = decision.route.map(|route| policy.route(route).name.to_string());
        answered.limit = decision.deciding().map(|one| policy.limit(one.limit).name.to_string());
        let responses = decision.route.and_then(|route| self.responses.get(route.0));
        let responses = responses.unwrap_or(&self.default_responses);
        let refusal = proxy::refusal(decision, policy, responses).unwrap();
        let mut note = |name: &str, value: &HeaderValue| {
            answered.headers.insert(name.to_owned(), value.to_str().unwrap().to_owned());
        };
        match refusal {
            Some(refusal) => {
                refusal.head.headers.iter().for_each(|(name, value)| note(name.as_str(), value));
                answered.status = Some(refusal.head.status.as_u16());
                let body: serde_json::Value =
                    serde_json::from_slice(&refusal.body).unwrap_or_default();
                answered.reason =
                    Reason::ALL.map(Reason::name).into_iter().find(|name| body["reason"] == *name);
            }
            None => {
                let mut head = pingora::http::ResponseHeader::build(200, None).unwrap();
                proxy::write_fields(decision, policy, responses, &mut head).unwrap();
                head.headers.iter().for_each(|(name, value)| note(name.as_str(), value));
            }
        }
    }
}

fn span(text: &str) -> Nanos {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().unwrap();
    match unit {
        "ms" => Nanos::from_millis(number),
        "s" => Nanos::from_secs(number),
        "m" => Nanos::from_secs(number * 60),
        "h" => Nanos::from_secs(number * 3_600),
        "d" => Nanos::from_secs(number * 86_400),
        _ => panic!("{text} is not a duration"),
    }
}

/// Everything that is not as expected, in words.
fn differences(step: &Step, answers: &[Answered]) -> Vec<String> {
    let mut found = Vec::new();
    let last = answers.last().unwrap();
    let expect = &step.expect;
    let mut compare = |what: &str, expected: &dyn ToString, found_text: String| {
        if expected.to_string() != found_text {
            found.push(format!("{what}: expected {}, found {found_text}", expected.to_string()));
        }
    };
    let limited = answers.iter().filter(|answer| answer.status == Some(429)).count();
    let allowed = answers.iter().filter(|answer| answer.status.is_none()).count();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    if let Some(expected) = expect.allowed {
        compare("allowed", &expected, allowed.to_string());
    }
    if let Some(expected) = expect.limited {
        compare("limited", &expected, limited.to_string());
    }
    if let Some(expected) = &expect.route {
        compare("route", expected, text(&last.route));
    }
    if let Some(expected) = &expect.limit {
        compare("limit", expected, text(&last.limit));
    }
    if let Some(expected) = &expect.client_ip {
        compare("client_ip", expected, last.client_ip.clone());
    }
    if let Some(expected) = &expect.status {
        compare("status", expected, last.status.unwrap_or(200).to_string());
    }
    if let Some(expected) = &expect.reason {
        compare("reason", expected, last.reason.unwrap_or("none").to_owned());
    }
    for (name, expected) in &expect.headers {
        let value = last.headers.get(name).cloned().unwrap_or_else(|| "absent".to_owned());
        compare(name, expected, value);
    }
    found
}

fn run(policy: &Path, store: &dyn Store, failures: &mut Vec<String>) -> usize {
    let text = std::fs::read_to_string(policy).unwrap() + "\n" + &store.yaml();
    let load = || {
        let loaded = config::read_text(&text, &policy.display().to_string(), Path::new(""));
        loaded.unwrap_or_else(|errors| panic!("{errors}")).config
    };
    let cases = policy.with_extension("test.yaml");
    let text = std::fs::read_to_string(&cases).unwrap();
    let file: File =
        serde_yaml::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", cases.display()));
    let embedded = store.yaml().contains("embedded");
    for case in file.cases.iter().filter(|case| embedded || case.only.is_none()) {
        let bench = Bench::new(load(), store);
        for (number, step) in case.steps.iter().enumerate() {
            if let Some(at) = &step.at {
                bench.go_to(at);
            }
            let answers: Vec<Answered> = (0..step.times).map(|_| bench.send(&step.send)).collect();
            for difference in differences(step, &answers) {
                let name = policy.file_name().unwrap().to_string_lossy().into_owned();
                failures.push(format!(
                    "{name}: {:?}, step {}: {difference}",
                    case.name,
                    number + 1
                ));
            }
        }
    }
    file.cases.len()
}

/// Runs every case of every policy of this folder on a store; says how many.
pub fn run_all(store: &dyn Store) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies");
    let mut policies: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.ends_with(".yaml") && !name.ends_with(".test.yaml")
        })
        .collect();
    policies.sort();
    let mut failures = Vec::new();
    let cases: usize = policies.iter().map(|policy| run(policy, store, &mut failures)).sum();
    println!("{cases} cases in {} policies", policies.len());
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    cases
}
