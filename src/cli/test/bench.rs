//! Runs the requests of one case through a policy with its engine, on a clock that the test sets.

use std::sync::Arc;

use http::{HeaderMap, Version};

use super::nodes::{CaseNode, CaseNodes};
use super::observed::{FirstCandidate, ObservedResponse, ObservedStep};
use super::{CaseResult, TestStore};
use crate::cli::key_sets;
use crate::clock::{Clock, ManualClock, Nanos};
use crate::config::{
    AnswerEnding, Config, OriginAnswer, Responses, RouteEdits, TestCase, TestRequest,
};
use crate::engine::{Decision, FinalResponse, PendingSettlement};
use crate::http::render::reply;
use crate::http::{
    AnswerPreferences, FieldRules, Head, HeadBounds, RateLimitFields, RejectReason, ServedHosts,
    added_fields, edit, edit_own, https_location, redirect, validate,
};
use crate::policy::client::ClientRules;
use crate::policy::{ConditionResults, Facts, PerRoute};

/// The beginning of each case, as the time since the Unix epoch: midnight, so that windows of every
/// length begin then.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

/// The identifier of every request.
const REQUEST_ID: &str = "00000000000000000000000000000000";

/// Runs one case under a configuration.
pub fn run(config: Config, case: &TestCase, store: &dyn TestStore) -> CaseResult {
    let listeners: Vec<(Option<Arc<str>>, Option<u16>)> =
        config.listeners.iter().map(|at| (at.name.clone(), at.https_port)).collect();
    let mut differences = key_sets::install(&config.policy.key_sets, &case.key_sets);
    let mut bench = Bench::new(config, case.nodes.len(), store);
    for step in &case.steps {
        let listener = &step.send.connection.listener;
        let found = listeners.iter().find(|(name, _)| listener.is_some() && name == listener);
        if listener.is_some() && found.is_none() {
            let (line, name) = (step.location.line, listener.as_deref().unwrap_or_default());
            differences.push(format!("line {line}: no listener has the name {name:?}"));
        }
        if let Some(at) = step.at {
            bench.go_to(EPOCH.saturating_add(Nanos::from(at)));
        }
        let (mut allowed, mut limited, mut last) = (0, 0, None);
        for _ in 0..step.times {
            let response =
                bench.send(step.node, &step.send, found.and_then(|(_, https_port)| *https_port));
            allowed += u32::from(response.is_allowed());
            limited += u32::from(response.limited);
            last = Some(response);
        }
        if let Some(last) = last {
            let seen = ObservedStep { allowed, limited, last };
            // The name of the only node says nothing.
            let node = case.nodes.get(step.node).filter(|_| case.nodes.len() > 1);
            differences.extend(seen.differences(step, node.map(String::as_str)));
        }
    }
    CaseResult { name: case.name.clone(), differences }
}

/// One policy on the nodes of a case.
struct Bench<'s> {
    clock: Arc<ManualClock>,
    store: &'s dyn TestStore,
    nodes: CaseNodes,
    clients: ClientRules,
    bounds: HeadBounds,
    rules: FieldRules,
    responses: PerRoute<Arc<Responses>>,
    default_responses: Arc<Responses>,
    edits: PerRoute<Arc<RouteEdits>>,
    served_hosts: ServedHosts,
    /// Requests whose origin has not answered yet.
    in_flight: Vec<UnansweredRequest>,
}

/// A request that has no response yet.
struct UnansweredRequest {
    /// The node that it is sent to.
    node: usize,
    until: Nanos,
    decision: Decision,
    pending: PendingSettlement,
    answer: OriginAnswer,
}

impl<'s> Bench<'s> {
    fn new(config: Config, nodes: usize, store: &'s dyn TestStore) -> Self {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let rules = FieldRules::of(&config);
        let served_hosts = ServedHosts::of(&config.policy);
        let nodes =
            CaseNodes::start(config.policy, nodes, &config.store, store, Arc::clone(&clock));
        Self {
            rules,
            clock,
            store,
            nodes,
            clients: config.clients,
            bounds: HeadBounds {
                header_size: config.bounds.header_size,
                header_fields: config.bounds.header_fields,
                body_size: config.bounds.body_size,
            },
            responses: config.responses,
            default_responses: config.default_responses,
            edits: config.edits,
            served_hosts,
            in_flight: Vec::new(),
        }
    }

    /// Lets time pass until `wanted`, with the responses and the periodic work that are scheduled until then.
    fn go_to(&mut self, wanted: Nanos) {
        loop {
            let next =
                self.in_flight.iter().map(|request| request.until).filter(|until| *until <= wanted);
            let Some(next) = next.min() else {
                return self.nodes.pass_time(wanted);
            };
            self.nodes.pass_time(next);
            let (done, rest) = std::mem::take(&mut self.in_flight)
                .into_iter()
                .partition(|request| request.until <= next);
            self.in_flight = rest;
            let done: Vec<UnansweredRequest> = done;
            for UnansweredRequest { node, mut decision, mut pending, answer, .. } in done {
                let node = self.nodes.get(node);
                self.answer(node, &mut decision, &mut pending, &answer);
                self.end_answer(node, &mut decision, pending, &answer);
            }
        }
    }

    fn send(
        &mut self,
        node_index: usize,
        send: &TestRequest,
        https_port: Option<u16>,
    ) -> ObservedResponse {
        let node = self.nodes.get(node_index);
        let has_host = send.headers.contains_key(http::header::HOST);
        let head = Head {
            method: &send.method,
            target: send.target.as_bytes(),
            authority: None,
            // A URL without a host means a request without a host, which only HTTP/1.0 allows.
            version: if has_host { Version::HTTP_11 } else { Version::HTTP_10 },
            headers: &send.headers,
        };
        let client = self.clients.client(send.ip, &send.headers);
        let mut observed =
            ObservedResponse { client_ip: client.ip.to_string(), ..ObservedResponse::default() };
        let checked = validate(head, self.bounds).and_then(|clean| {
            self.rules.check(clean.uncommon, &send.method, &send.headers).map(|()| clean)
        });
        let clean = match checked {
            Ok(clean) => clean,
            Err(reason) => {
                observed.status = Some(reason.status());
                observed.reason = Some(reason.name());
                return observed;
            }
        };
        let date = self.clock.date(self.clock.now());
        let mut connection = send.connection.clone();
        connection.https_port = https_port;
        let conditions = ConditionResults::default();
        let facts =
            clean.facts(client, &connection, date, &send.method, &send.headers, &conditions);
        let exempt = self.default_responses.exempt;
        match https_location(&clean, &facts, &self.served_hosts, exempt) {
            Ok(None) => {}
            Ok(Some(location)) => {
                return observed.redirected(redirect(&send.method, &location, REQUEST_ID));
            }
            Err(reason) => {
                observed.status = Some(reason.status());
                observed.reason = Some(reason.name());
                return observed;
            }
        }
        let (mut decision, mut pending) = self.store.decide(&node.engine, &node.generation, &facts);
        observed.waited = decision.wait();
        let latency = observed.waited.saturating_add(Nanos::from(send.answer.after));
        let refused = self.observe_refusal(node, &decision, &send.headers, &mut observed);
        let reaches_store_later = pending.awaits_response() || !decision.candidates.is_empty();
        let is_answered = refused || latency == Nanos::ZERO;
        if is_answered {
            self.answer(node, &mut decision, &mut pending, &send.answer);
        }
        if reaches_store_later {
            self.store.wait_until_settled(&node.engine);
        }
        observed.origin_failed = !refused && send.answer.ending == AnswerEnding::Failed;
        if !refused {
            observed.forwarded = self.forwarded(node, &decision, &facts);
        }
        // The client sees the head before the rest of the answer is known.
        self.observe(node, &decision, refused, &send.answer, &mut observed);
        if is_answered {
            self.end_answer(node, &mut decision, pending, &send.answer);
        } else {
            let until = self.clock.now().wall.saturating_add(latency);
            let (answer, decision) = (send.answer.clone(), decision.clone());
            let node = node_index;
            self.in_flight.push(UnansweredRequest { node, until, decision, pending, answer });
        }
        observed.charged = decision.charged(self.nodes.get(node_index).generation.policy());
        observed
    }

    /// Settles a request when the head of the answer has come, or when it has ended without a response.
    fn answer(
        &self,
        node: &CaseNode,
        decision: &mut Decision,
        pending: &mut PendingSettlement,
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
            node.engine.finish(&node.generation, decision, pending, &response);
        }
        self.store.wait_until_settled(&node.engine);
    }

    /// Settles the rest of the request by the body and the trailers of the answer, and ends it.
    fn end_answer(
        &self,
        node: &CaseNode,
        decision: &mut Decision,
        mut pending: PendingSettlement,
        answer: &OriginAnswer,
    ) {
        let (engine, generation) = (&node.engine, &node.generation);
        engine.read_body(generation, decision, &mut pending, answer.body.as_bytes());
        if !answer.is_cut {
            engine.read_trailers(generation, decision, &mut pending, &answer.trailers);
        }
        engine.finish_rest(generation, decision, &mut pending, !answer.is_cut);
        drop(pending);
        self.store.wait_until_settled(&node.engine);
    }

    fn responses(&self, decision: &Decision) -> &Responses {
        let responses = decision.route.and_then(|route| self.responses.get(route));
        responses.unwrap_or(&self.default_responses)
    }

    fn edits(&self, decision: &Decision) -> Option<&RouteEdits> {
        self.edits.get(decision.route?).map(|edits| &**edits)
    }

    /// Path, query and fields for the origin, except for the fields that the proxy itself writes.
    fn forwarded(
        &self,
        node: &CaseNode,
        decision: &Decision,
        facts: &Facts<'_>,
    ) -> Option<(String, HeaderMap)> {
        let route = node.generation.policy().route(decision.route?);
        let path = route.rewrite.as_ref().and_then(|rewrite| rewrite.forwarded(facts.path));
        let mut target = path.unwrap_or_else(|| facts.path.to_owned());
        if let Some(query) = facts.query {
            target.push('?');
            target.push_str(query);
        }
        let mut headers = facts.headers.clone();
        for edits in self.edits(decision).into_iter().flat_map(RouteEdits::of_request) {
            edit(&mut headers, edits);
        }
        Some((target, headers))
    }

    /// Observes the refusal and returns `true`, if the request is refused.
    fn observe_refusal(
        &self,
        node: &CaseNode,
        decision: &Decision,
        asked: &HeaderMap,
        observed: &mut ObservedResponse,
    ) -> bool {
        let policy = node.generation.policy();
        let preferences = AnswerPreferences { headers: asked, chance: 0.0, request_id: REQUEST_ID };
        let fields = RateLimitFields::new(decision, policy, self.responses(decision));
        let reply = reply(fields, preferences).map(|mut reply| {
            if let Some(edits) = self.edits(decision) {
                edit_own(&mut reply.lines, &edits.route.response);
            }
            reply.into_refusal()
        });
        match reply.transpose() {
            Ok(Some(refusal)) => {
                observed.body = String::from_utf8_lossy(&refusal.body).into_owned();
                observed.status = Some(refusal.status.as_u16());
                observed.limited = decision.outcome == crate::engine::Outcome::Limited;
                observed.headers = refusal.headers;
                let body: serde_json::Value =
                    serde_json::from_slice(&refusal.body).unwrap_or_default();
                let names = RejectReason::ALL.map(RejectReason::name);
                observed.reason = names.into_iter().find(|name| body["reason"] == *name);
                true
            }
            Ok(None) => false,
            // Does not happen: numbers and names always make a valid response.
            Err(error) => {
                observed.why = error.to_string();
                false
            }
        }
    }

    /// Observes what the client would see of a decision that is settled.
    fn observe(
        &self,
        node: &CaseNode,
        decision: &Decision,
        refused: bool,
        answer: &OriginAnswer,
        observed: &mut ObservedResponse,
    ) {
        let policy = node.generation.policy();
        observed.route = decision.route.map(|route| policy.route(route).name.to_string());
        observed.banned = decision.is_banned();
        observed.candidate = FirstCandidate(decision.candidates.first().cloned());
        if let Some(deciding) = decision.deciding() {
            let (limit, verdict) = (policy.limit(deciding.limit), deciding.verdict);
            let spent = verdict.limit.saturating_sub(verdict.remaining);
            let next = match verdict.retry_after {
                Some(wait) if !verdict.allowed => {
                    let at = decision.at.wall.saturating_sub(EPOCH).saturating_add(wait);
                    format!(", next at {at:?}")
                }
                _ => String::new(),
            };
            let banned = if deciding.banned { ", banned" } else { "" };
            observed.why = format!(
                "limit {}, key {}, {spent} of {} spent{banned}{next}",
                limit.name, limit.key, verdict.limit
            );
            observed.limit = Some(limit.name.to_string());
        }
        if !refused {
            let fields = added_fields(decision, policy, self.responses(decision));
            if let AnswerEnding::Status(_) = answer.ending {
                observed.headers = answer.headers.clone();
                for edits in self.edits(decision).into_iter().flat_map(RouteEdits::of_response) {
                    edit(&mut observed.headers, edits);
                }
            }
            observed.headers.extend(fields.unwrap_or_default());
        }
    }
}
