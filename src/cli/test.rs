//! `tollgate test`: a policy meets cases before it meets traffic.
//!
//! The cases run through the real gate and the real engine on a clock that is turned by hand, so
//! days pass in milliseconds. The exact tier counts in this process, whatever the policy's store.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use http::{HeaderMap, Version};

use super::REFUSED;
use crate::clock::{Clock, ManualClock, Nanos};
use crate::config::{self, Case, Config, ConfigErrors, Expect, Request, Responses, Step};
use crate::engine::{Decision, Engine, Generation};
use crate::policy::client::{self, ClientRules};
use crate::policy::{Facts, KeySecret};
use crate::proxy::{self, GateBounds, Head, Reason};

/// A day's begin, so that windows of every length begin with each case.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

/// Between two rounds of the housekeeping while time passes; beyond [`BUSY`] it is skipped.
const TICK: Nanos = Nanos::SECOND;

/// As much of a pause is lived through second by second; what is idle for longer only ages.
const BUSY: Nanos = Nanos::from_secs(600);

/// Cases and the policy that they are for.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Writes the results for a CI server.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Files of cases.
    #[arg(required = true, value_name = "CASES")]
    cases: Vec<PathBuf>,
}

/// Where the exact tier of a bench counts.
pub trait Store {
    /// An engine on an empty store, with this clock.
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine;
    /// Decides, waiting for the store if need be.
    fn decide(&self, engine: &Engine, generation: &Generation, facts: &Facts<'_>) -> Decision;
}

/// In this process.
#[derive(Debug)]
pub struct Embedded;

impl Store for Embedded {
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine {
        Engine::new(clock, secret)
    }

    fn decide(&self, engine: &Engine, generation: &Generation, facts: &Facts<'_>) -> Decision {
        engine.decide_embedded(generation, facts)
    }
}

/// What came of one case.
#[derive(Debug)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// What was not as expected, in words; empty: it passed.
    pub differences: Vec<String>,
}

/// 0 when all pass, 1 when one does not, 2 when a file cannot be read.
pub(super) fn test(args: &TestArgs) -> ExitCode {
    let mut suites = Vec::new();
    for file in &args.cases {
        match suite(&args.config, file) {
            Ok(outcomes) => suites.push((file.display().to_string(), outcomes)),
            Err(errors) => {
                errors.lines().iter().for_each(|line| eprintln!("{line}"));
                return ExitCode::from(REFUSED);
            }
        }
    }
    let (told, failed) = told(&suites);
    print!("{told}");
    if let Some(file) = &args.junit
        && let Err(error) = std::fs::write(file, junit(&suites))
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::from(REFUSED);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn suite(policy: &Path, cases: &Path) -> Result<Vec<Outcome>, ConfigErrors> {
    let cases = config::load_cases(cases)?;
    cases.iter().map(|case| Ok(run(config::load(policy)?.config, case, &Embedded))).collect()
}

/// Runs one case under a configuration.
pub fn run(config: Config, case: &Case, store: &dyn Store) -> Outcome {
    let bench = Bench::new(config, store);
    let mut differences = Vec::new();
    for step in &case.steps {
        if let Some(at) = step.at {
            bench.go_to(EPOCH.saturating_add(Nanos::from(at)));
        }
        let (mut allowed, mut limited, mut last) = (0, 0, None);
        for _ in 0..step.times {
            let answered = bench.send(&step.send);
            allowed += u32::from(answered.status.is_none());
            limited += u32::from(answered.status == Some(429));
            last = Some(answered);
        }
        if let Some(last) = last {
            let found = differing(&step.expect, allowed, limited, &last);
            differences.extend(found.into_iter().map(|words| at_line(step, &words, &last)));
        }
    }
    Outcome { name: case.name.clone(), differences }
}

fn at_line(step: &Step, words: &str, last: &Answered) -> String {
    let why = if last.why.is_empty() { String::new() } else { format!(" ({})", last.why) };
    format!("line {}: {words}{why}", step.place.line)
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

/// What came of one request, as its client would see it.
#[derive(Debug)]
struct Answered {
    route: Option<String>,
    status: Option<u16>,
    reason: Option<&'static str>,
    limit: Option<String>,
    client_ip: String,
    headers: HeaderMap,
    /// The deciding limit in words.
    why: String,
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

    /// Lets time pass, with the housekeeping that a process would do meanwhile.
    fn go_to(&self, wanted: Nanos) {
        let mut left = wanted.saturating_sub(self.clock.now().wall);
        if left > BUSY {
            self.clock.advance(left.saturating_sub(BUSY));
            left = BUSY;
        }
        while left > Nanos::ZERO {
            let step = left.min(TICK);
            self.clock.advance(step);
            self.engine.tick(&self.generation);
            left = left.saturating_sub(step);
        }
    }

    fn send(&self, send: &Request) -> Answered {
        let hosted = send.headers.contains_key(http::header::HOST);
        let head = Head {
            method: &send.method,
            target: send.target.as_bytes(),
            authority: None,
            // A URL without a host stands for a request without one, which only HTTP/1.0 allows.
            version: if hosted { Version::HTTP_11 } else { Version::HTTP_10 },
            headers: &send.headers,
        };
        let client_ip = client::resolve(send.ip, &send.headers, &self.clients);
        let mut answered = Answered {
            route: None,
            status: None,
            reason: None,
            limit: None,
            client_ip: client_ip.to_string(),
            headers: HeaderMap::new(),
            why: String::new(),
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
            method: send.method.as_str(),
            host: &clean.host,
            path: &clean.path,
            readings: &clean.readings,
            query: clean.query,
            headers: &send.headers,
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
        if let Some(one) = decision.deciding() {
            let (limit, verdict) = (policy.limit(one.limit), one.verdict);
            let spent = verdict.limit.saturating_sub(verdict.remaining);
            let next = match verdict.retry_after {
                Some(wait) if !verdict.allowed => {
                    format!(
                        ", next at {:?}",
                        (decision.at.wall.saturating_sub(EPOCH)).saturating_add(wait)
                    )
                }
                _ => String::new(),
            };
            answered.why = format!(
                "limit {}, key {}, {spent} of {} spent{next}",
                limit.name, limit.key, verdict.limit
            );
            answered.limit = Some(limit.name.to_string());
        }
        let responses = decision.route.and_then(|route| self.responses.get(route.0));
        let responses = responses.unwrap_or(&self.default_responses);
        match proxy::refusal(decision, policy, responses) {
            Ok(Some(refusal)) => {
                answered.status = Some(refusal.head.status.as_u16());
                answered.headers = refusal.head.headers.clone();
                let body: serde_json::Value =
                    serde_json::from_slice(&refusal.body).unwrap_or_default();
                let names = Reason::ALL.map(Reason::name);
                answered.reason = names.into_iter().find(|name| body["reason"] == *name);
            }
            Ok(None) => {
                let fields = proxy::fields_beside(decision, policy, responses);
                answered.headers = fields.unwrap_or_default();
            }
            // Numbers and names always make an answer.
            Err(error) => answered.why = error.to_string(),
        }
    }
}

/// Everything that is not as expected, in words.
fn differing(expect: &Expect, allowed: u32, limited: u32, last: &Answered) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, expected: Option<String>, seen: String| {
        if let Some(expected) = expected.filter(|expected| *expected != seen) {
            found.push(format!("{what}: expected {expected}, found {seen}"));
        }
    };
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    compare("allowed", number(expect.allowed), allowed.to_string());
    compare("limited", number(expect.limited), limited.to_string());
    compare("route", expect.route.clone(), text(&last.route));
    compare("limit", expect.limit.clone(), text(&last.limit));
    compare("client_ip", expect.client_ip.clone(), last.client_ip.clone());
    let status = expect.status.map(|status| status.to_string());
    compare("status", status, last.status.unwrap_or(200).to_string());
    compare("reason", expect.reason.clone(), last.reason.unwrap_or("none").to_owned());
    for (name, expected) in &expect.headers {
        let seen = last.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let seen = seen.map_or_else(|| "absent".to_owned(), std::borrow::Cow::into_owned);
        compare(name, Some(expected.clone()), seen);
    }
    found
}

type Suite = (String, Vec<Outcome>);

/// A line for each case that failed, and one for all; how many failed.
fn told(suites: &[Suite]) -> (String, usize) {
    let (mut text, mut failed, mut all) = (String::new(), 0, 0);
    for (file, outcomes) in suites {
        for outcome in outcomes {
            all += 1;
            if outcome.differences.is_empty() {
                continue;
            }
            failed += 1;
            // A String takes every line.
            let _ = writeln!(text, "{file}: FAILED {}", outcome.name);
            for difference in &outcome.differences {
                let _ = writeln!(text, "  {difference}");
            }
        }
    }
    let _ = writeln!(text, "{} of {all} cases pass", all - failed);
    (text, failed)
}

/// The results as JUnit's XML, which CI servers read.
fn junit(suites: &[Suite]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (file, outcomes) in suites {
        let failed = outcomes.iter().filter(|one| !one.differences.is_empty()).count();
        let (file, all) = (escaped(file), outcomes.len());
        let _ =
            writeln!(text, "  <testsuite name=\"{file}\" tests=\"{all}\" failures=\"{failed}\">");
        for outcome in outcomes {
            let name = escaped(&outcome.name);
            let _ = write!(text, "    <testcase classname=\"{file}\" name=\"{name}\"");
            if outcome.differences.is_empty() {
                text.push_str("/>\n");
                continue;
            }
            let why = escaped(&outcome.differences.join("\n"));
            let _ =
                writeln!(text, "><failure message=\"not as expected\">{why}</failure></testcase>");
        }
        text.push_str("  </testsuite>\n");
    }
    text.push_str("</testsuites>\n");
    text
}

/// Text of XML 1.0: what it cannot hold becomes `?`.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(character),
            c if c.is_control() => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}
