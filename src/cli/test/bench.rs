//! A policy with its engine, on a clock that is turned by hand.

use std::sync::Arc;

use http::{HeaderMap, Version};

use super::{CaseResult, TestStore};
use crate::clock::{Clock, ManualClock, Nanos};
use crate::config::{
    AnswerEnding, Config, Expectation, ExpectedField, OriginAnswer, Responses, TestCase,
    TestRequest, TestStep,
};
use crate::engine::{
    CandidateComparison, CandidateVerdict, Decision, Engine, FinalResponse, Generation,
    PendingSettlement,
};
use crate::http::{
    AnswerPreferences, FieldRules, Head, HeadBounds, RejectReason, fields_beside, refusal, validate,
};
use crate::policy::KeySecret;
use crate::policy::client::ClientRules;

/// A day's begin, so that windows of every length begin with each case.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

/// Between two rounds of the housekeeping while time passes; beyond [`BUSY`] it is skipped.
const TICK: Nanos = Nanos::SECOND;

/// As much of a pause is lived through second by second; what is idle for longer only ages.
const BUSY: Nanos = Nanos::from_secs(600);

/// Runs one case under a configuration.
pub fn run(config: Config, case: &TestCase, store: &dyn TestStore) -> CaseResult {
    let mut bench = Bench::new(config, store);
    let mut differences = Vec::new();
    for step in &case.steps {
        if let Some(at) = step.at {
            bench.go_to(EPOCH.saturating_add(Nanos::from(at)));
        }
        let (mut allowed, mut limited, mut last) = (0, 0, None);
        for _ in 0..step.times {
            let answered = bench.send(&step.send);
            allowed += u32::from(answered.is_allowed());
            limited += u32::from(answered.limited);
            last = Some(answered);
        }
        if let Some(last) = last {
            let found = differing(&step.expect, allowed, limited, &last);
            differences.extend(found.into_iter().map(|words| at_line(step, &words, &last)));
        }
    }
    CaseResult { name: case.name.clone(), differences }
}

fn at_line(step: &TestStep, words: &str, last: &ObservedResponse) -> String {
    let why = if last.why.is_empty() { String::new() } else { format!(" ({})", last.why) };
    format!("line {}: {words}{why}", step.location.line)
}

/// One policy with its engine.
struct Bench<'s> {
    clock: Arc<ManualClock>,
    store: &'s dyn TestStore,
    engine: Engine,
    generation: Generation,
    clients: ClientRules,
    bounds: HeadBounds,
    rules: FieldRules,
    responses: Vec<Arc<Responses>>,
    default_responses: Arc<Responses>,
    /// Requests whose origin takes its time.
    in_flight: Vec<UnansweredRequest>,
}

/// A request that has no answer yet.
struct UnansweredRequest {
    until: Nanos,
    decision: Decision,
    pending: PendingSettlement,
    answer: OriginAnswer,
}

/// What came of one request, as its client would see it.
#[derive(Debug, Default)]
struct ObservedResponse {
    route: Option<String>,
    /// Of this proxy's answer.
    status: Option<u16>,
    limited: bool,
    reason: Option<&'static str>,
    limit: Option<String>,
    client_ip: String,
    headers: HeaderMap,
    waited: Nanos,
    banned: bool,
    candidate: FirstCandidate,
    /// The deciding limit in words.
    why: String,
}

/// What the first candidate of a request says, once it is known.
#[derive(Debug, Default)]
struct FirstCandidate(Option<CandidateVerdict>);

impl FirstCandidate {
    fn get(&self) -> Option<CandidateComparison> {
        self.0.as_ref().and_then(CandidateVerdict::kind)
    }
}

impl ObservedResponse {
    const fn is_allowed(&self) -> bool {
        self.status.is_none()
    }
}

impl<'s> Bench<'s> {
    fn new(config: Config, store: &'s dyn TestStore) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let engine = store.engine(Arc::clone(&clock), KeySecret::new([3; 16]));
        let rules = FieldRules::of(&config);
        let (generation, _) = engine.generation(config.policy, None);
        Self {
            rules,
            clock,
            store,
            engine,
            generation,
            clients: config.clients,
            bounds: HeadBounds {
                header_size: config.bounds.header_size,
                header_fields: config.bounds.header_fields,
                body_size: config.bounds.body_size,
            },
            responses: config.responses,
            default_responses: config.default_responses,
            in_flight: Vec::new(),
        }
    }

    /// Lets time pass, with the answers that come and the housekeeping that a process would do
    /// meanwhile.
    fn go_to(&mut self, wanted: Nanos) {
        loop {
            let next = self.in_flight.iter().map(|one| one.until).filter(|until| *until <= wanted);
            let Some(next) = next.min() else {
                return self.pass_time(wanted);
            };
            self.pass_time(next);
            let (done, rest) =
                std::mem::take(&mut self.in_flight).into_iter().partition(|one| one.until <= next);
            self.in_flight = rest;
            let done: Vec<UnansweredRequest> = done;
            for mut one in done {
                self.answer(&mut one.decision, one.pending, &one.answer);
            }
        }
    }

    fn pass_time(&self, wanted: Nanos) {
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

    fn send(&mut self, send: &TestRequest) -> ObservedResponse {
        let hosted = send.headers.contains_key(http::header::HOST);
        let head = Head {
            method: &send.method,
            target: send.target.as_bytes(),
            authority: None,
            // A URL without a host stands for a request without one, which only HTTP/1.0 allows.
            version: if hosted { Version::HTTP_11 } else { Version::HTTP_10 },
            headers: &send.headers,
        };
        let client = self.clients.client(send.ip, &send.headers);
        let mut answered =
            ObservedResponse { client_ip: client.ip.to_string(), ..ObservedResponse::default() };
        let checked = validate(head, self.bounds).and_then(|clean| {
            self.rules.check(clean.rare, &send.method, &send.headers).map(|()| clean)
        });
        let clean = match checked {
            Ok(clean) => clean,
            Err(reason) => {
                answered.status = Some(reason.status());
                answered.reason = Some(reason.name());
                return answered;
            }
        };
        let facts =
            clean.facts(client, self.clock.date(self.clock.now()), &send.method, &send.headers);
        let (mut decision, pending) = self.store.decide(&self.engine, &self.generation, &facts);
        answered.waited = decision.wait();
        let latency = answered.waited.saturating_add(Nanos::from(send.answer.after));
        let refused = self.refusal(&decision, &send.headers, &mut answered);
        let aside = pending.awaits_response() || !decision.candidates.is_empty();
        if refused || latency == Nanos::ZERO {
            self.answer(&mut decision, pending, &send.answer);
        } else {
            let until = self.clock.now().wall.saturating_add(latency);
            let (answer, decision) = (send.answer.clone(), decision.clone());
            self.in_flight.push(UnansweredRequest { until, decision, pending, answer });
        }
        if aside {
            self.store.settled(&self.engine);
        }
        self.tell(&decision, refused, &mut answered);
        answered
    }

    /// The origin has answered, or the request has ended without an answer.
    fn answer(
        &self,
        decision: &mut Decision,
        mut pending: PendingSettlement,
        answer: &OriginAnswer,
    ) {
        let response = match answer.ending {
            AnswerEnding::Status(status) => Some((status, true)),
            AnswerEnding::Failed => Some((502, false)),
            AnswerEnding::NoResponse => None,
        };
        if pending.awaits_response()
            && let Some((status, by_origin)) = response
        {
            let response = FinalResponse { status, headers: &answer.headers, by_origin };
            self.engine.finish(&self.generation, decision, &mut pending, &response);
        }
        drop(pending);
        self.store.settled(&self.engine);
    }

    fn responses(&self, decision: &Decision) -> &Responses {
        let responses = decision.route.and_then(|route| self.responses.get(route.0));
        responses.unwrap_or(&self.default_responses)
    }

    /// The proxy's own answer, if the request is refused.
    fn refusal(
        &self,
        decision: &Decision,
        asked: &HeaderMap,
        answered: &mut ObservedResponse,
    ) -> bool {
        let policy = self.generation.policy();
        let asking = AnswerPreferences { headers: asked, chance: 0.0 };
        match refusal(decision, policy, self.responses(decision), asking) {
            Ok(Some(refusal)) => {
                answered.status = Some(refusal.status.as_u16());
                answered.limited = decision.outcome == crate::engine::Outcome::Limited;
                answered.headers = refusal.headers;
                let body: serde_json::Value =
                    serde_json::from_slice(&refusal.body).unwrap_or_default();
                let names = RejectReason::ALL.map(RejectReason::name);
                answered.reason = names.into_iter().find(|name| body["reason"] == *name);
                true
            }
            Ok(None) => false,
            // Numbers and names always make an answer.
            Err(error) => {
                answered.why = error.to_string();
                false
            }
        }
    }

    /// What the client would see of a decision, once it is settled.
    fn tell(&self, decision: &Decision, refused: bool, answered: &mut ObservedResponse) {
        let policy = self.generation.policy();
        answered.route = decision.route.map(|route| policy.route(route).name.to_string());
        answered.banned = decision.is_banned();
        answered.candidate = FirstCandidate(decision.candidates.first().cloned());
        if let Some(one) = decision.deciding() {
            let (limit, verdict) = (policy.limit(one.limit), one.verdict);
            let spent = verdict.limit.saturating_sub(verdict.remaining);
            let next = match verdict.retry_after {
                Some(wait) if !verdict.allowed => {
                    let at = decision.at.wall.saturating_sub(EPOCH).saturating_add(wait);
                    format!(", next at {at:?}")
                }
                _ => String::new(),
            };
            let banned = if one.banned { ", banned" } else { "" };
            answered.why = format!(
                "limit {}, key {}, {spent} of {} spent{banned}{next}",
                limit.name, limit.key, verdict.limit
            );
            answered.limit = Some(limit.name.to_string());
        }
        if !refused {
            let fields = fields_beside(decision, policy, self.responses(decision));
            answered.headers = fields.unwrap_or_default();
        }
    }
}

/// Everything that is not as expected, in words.
fn differing(
    expect: &Expectation,
    allowed: u32,
    limited: u32,
    last: &ObservedResponse,
) -> Vec<String> {
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
    let waited = |span: Nanos| format!("{span:?}");
    compare("waited", expect.waited.map(|span| waited(span.into())), waited(last.waited));
    let candidate = last.candidate.get().map_or("none", CandidateComparison::name);
    compare("candidate", expect.candidate.clone(), candidate.to_owned());
    compare("banned", expect.banned.map(|yes| yes.to_string()), last.banned.to_string());
    for ExpectedField { name, value: expected } in &expect.headers {
        let seen = last.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let seen = seen.map_or_else(|| "absent".to_owned(), std::borrow::Cow::into_owned);
        compare(name, Some(expected.clone()), seen);
    }
    found
}
