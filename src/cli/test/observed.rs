//! What a client would see of the requests of a step, and how it differs from what is expected.

use http::HeaderMap;

use crate::clock::Nanos;
use crate::config::{Expectation, ExpectedField, TestStep};
use crate::engine::{CandidateComparison, CandidateVerdict};
use crate::http::Reply;

/// What the client of one request would see.
#[derive(Debug, Default)]
pub(super) struct ObservedResponse {
    pub(super) route: Option<String>,
    /// Status of the response of this proxy; `None` if the request is forwarded.
    pub(super) status: Option<u16>,
    /// Whether the request was forwarded to an origin that fails, so that this proxy answers 502.
    pub(super) origin_failed: bool,
    pub(super) limited: bool,
    pub(super) reason: Option<&'static str>,
    pub(super) limit: Option<String>,
    pub(super) client_ip: String,
    pub(super) headers: HeaderMap,
    /// The body of this proxy's own answer.
    pub(super) body: String,
    /// Path and query, and the fields, that the origin would receive.
    pub(super) forwarded: Option<(String, HeaderMap)>,
    pub(super) waited: Nanos,
    pub(super) banned: bool,
    /// The most units that a limit has charged in the end.
    pub(super) charged: u32,
    pub(super) candidate: FirstCandidate,
    /// The deciding limit, in words.
    pub(super) why: String,
}

/// The verdict of the first candidate of a request, once it is known.
#[derive(Debug, Default)]
pub(super) struct FirstCandidate(pub(super) Option<CandidateVerdict>);

impl FirstCandidate {
    fn get(&self) -> Option<CandidateComparison> {
        self.0.as_ref().and_then(CandidateVerdict::comparison)
    }
}

impl ObservedResponse {
    /// The answer to a request that its listener sends to https.
    pub(super) fn redirected(mut self, reply: Reply) -> Self {
        self.status = Some(reply.status.as_u16());
        self.headers = reply.into_refusal().map(|refusal| refusal.headers).unwrap_or_default();
        self
    }

    pub(super) const fn is_allowed(&self) -> bool {
        self.status.is_none()
    }
}

/// What was seen of all requests of a step.
pub(super) struct ObservedStep {
    pub(super) allowed: u32,
    pub(super) limited: u32,
    pub(super) last: ObservedResponse,
}

impl ObservedStep {
    /// Everything that differs from the expectation, in words with the line of the step, and its node if the case has several.
    pub(super) fn differences(&self, step: &TestStep, node: Option<&str>) -> Vec<String> {
        let line = step.location.line;
        let node = node.map(|node| format!(", node {node}")).unwrap_or_default();
        let why = match self.last.why.as_str() {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        let differences = differences(&step.expect, self).into_iter();
        differences.map(|words| format!("line {line}{node}: {words}{why}")).collect()
    }
}

fn differences(expect: &Expectation, seen: &ObservedStep) -> Vec<String> {
    let ObservedStep { allowed, limited, last } = seen;
    let mut differences = Vec::new();
    let mut compare = |what: &str, expected: Option<String>, seen: String| {
        if let Some(expected) = expected.filter(|expected| *expected != seen) {
            differences.push(format!("{what}: expected {expected}, found {seen}"));
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
    compare(
        "status",
        status,
        last.status.unwrap_or(if last.origin_failed { 502 } else { 200 }).to_string(),
    );
    compare("reason", expect.reason.clone(), last.reason.unwrap_or("none").to_owned());
    let waited = |span: Nanos| format!("{span:?}");
    compare("waited", expect.waited.map(|span| waited(span.into())), waited(last.waited));
    let candidate = last.candidate.get().map_or("none", CandidateComparison::name);
    compare("candidate", expect.candidate.clone(), candidate.to_owned());
    compare("banned", expect.banned.map(|yes| yes.to_string()), last.banned.to_string());
    compare("charged", number(expect.charged), last.charged.to_string());
    let body = expect.body.as_ref().filter(|text| !last.body.contains(text.as_str()));
    compare("body", body.cloned(), last.body.clone());
    for ExpectedField { name, value: expected } in &expect.headers {
        compare(name, Some(expected.clone()), field(&last.headers, name));
    }
    if let Some(expected) = &expect.forwarded {
        let nothing = (String::from("nothing"), HeaderMap::new());
        let (target, headers) = last.forwarded.as_ref().unwrap_or(&nothing);
        // Without a target, that it was forwarded at all.
        let is_nothing = expected.target.is_none() && last.forwarded.is_none();
        let wanted = if is_nothing { Some("a request") } else { expected.target.as_deref() };
        compare("forwarded", wanted.map(str::to_owned), target.clone());
        for ExpectedField { name, value } in &expected.headers {
            let what = format!("forwarded {name}");
            compare(&what, Some(value.clone()), field(headers, name));
        }
    }
    differences
}

fn field(headers: &HeaderMap, name: &str) -> String {
    let seen = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    seen.map_or_else(|| "absent".to_owned(), std::borrow::Cow::into_owned)
}
