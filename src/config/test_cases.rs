//! Files of policy tests: requests, and what is expected of each. The files have the same syntax and
//! the same errors as a configuration. This module does not run the tests.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::error::{ConfigErrors, Location};
use super::files::read_text_file;
use super::reader::{ErrorList, Located, NamedValue, SourceFile};
use super::scalars::{boolean, client_name, duration, integer};
use super::source::{self, MAX_BYTES};
use super::test_keys::{TestKeySet, test_keys};
use super::test_nodes::NodeNames;
use crate::policy::ConnectionFacts;

/// Largest number of requests of one step.
const MAX_TIMES: u64 = 10_000_000;

/// The peer of a request that names none: an address for documentation (RFC 5737).
const DEFAULT_PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

/// One case. It begins with empty counters, at the beginning of a window of any length.
#[derive(Debug)]
pub struct TestCase {
    /// Name of the case.
    pub name: String,
    /// Whether the case needs the embedded store (`only: embedded`).
    pub only_embedded: bool,
    /// The keys that stand for those at a URL.
    pub key_sets: Vec<TestKeySet>,
    /// The names of the nodes, in the order in which the steps name them.
    pub nodes: Vec<String>,
    /// What is sent, in this order.
    pub steps: Vec<TestStep>,
}

/// One request, sent once or several times, and what is expected.
#[derive(Debug)]
pub struct TestStep {
    /// Time since the beginning of the case; `None` if no time passes.
    pub at: Option<Duration>,
    /// The node that gets it, as an index of [`TestCase::nodes`].
    pub node: usize,
    /// How often it is sent; at least 1.
    pub times: u32,
    /// The request.
    pub send: TestRequest,
    /// What is expected.
    pub expect: Expectation,
    /// Where the step is defined.
    pub location: Location,
}

/// A request as it would be transmitted.
#[derive(Debug)]
pub struct TestRequest {
    /// The method.
    pub method: Method,
    /// The target, as typed.
    pub target: String,
    /// The header fields, including `Host` if the URL has a host.
    pub headers: HeaderMap,
    /// Address of the peer.
    pub ip: IpAddr,
    /// The connection that the URL asks for.
    pub connection: ConnectionFacts,
    /// What the origin would answer.
    pub answer: OriginAnswer,
}

/// What happens to a request that is allowed.
#[derive(Clone, Debug)]
pub struct OriginAnswer {
    /// How the request ends.
    pub ending: AnswerEnding,
    /// The header fields of the response.
    pub headers: HeaderMap,
    /// The body of the response.
    pub body: String,
    /// The fields after the body.
    pub trailers: HeaderMap,
    /// Whether the response ends before its end: the origin breaks off, or the client leaves.
    pub is_cut: bool,
    /// How long the request is in flight.
    pub after: Duration,
}

/// How a request that is allowed ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnding {
    /// The origin answers with this status.
    Status(u16),
    /// The origin fails, and this proxy answers with 502.
    Failed,
    /// The client disconnects before a response.
    NoResponse,
}

impl Default for OriginAnswer {
    fn default() -> Self {
        Self {
            ending: AnswerEnding::Status(200),
            headers: HeaderMap::new(),
            body: String::new(),
            trailers: HeaderMap::new(),
            is_cut: false,
            after: Duration::ZERO,
        }
    }
}

/// What is expected of a step. Of several requests, `allowed` and `limited` concern all of them, and
/// everything else the last one. `None` expects nothing.
#[derive(Debug, Default)]
pub struct Expectation {
    /// How many requests are allowed.
    pub allowed: Option<u32>,
    /// How many requests are answered with 429.
    pub limited: Option<u32>,
    /// Name of the route, or `none`.
    pub route: Option<String>,
    /// Name of the limit that decides, or `none`.
    pub limit: Option<String>,
    /// Status of the response; 200 if the request is forwarded.
    pub status: Option<u16>,
    /// Why the request is refused without a limit, or `none`.
    pub reason: Option<String>,
    /// How long the request is delayed.
    pub waited: Option<Duration>,
    /// Verdict of the candidate of a limit: `agrees`, `would_deny`, `would_allow`, or `none`.
    pub candidate: Option<String>,
    /// Whether a ban refuses the request.
    pub banned: Option<bool>,
    /// The units in the access log's field `charged`.
    pub charged: Option<u32>,
    /// The address that is taken for the client.
    pub client_ip: Option<String>,
    /// Header fields of the response by name; `absent` expects no such field.
    pub headers: Vec<ExpectedField>,
    /// A text in the body of this proxy's own answer.
    pub body: Option<String>,
    /// The request that the origin would receive.
    pub forwarded: Option<ExpectedRequest>,
}

/// What an origin must receive.
#[derive(Debug)]
pub struct ExpectedRequest {
    /// Path and query.
    pub target: Option<String>,
    /// Header fields by name; `absent` expects no such field.
    pub headers: Vec<ExpectedField>,
}

/// A header field that a response must have.
#[derive(Debug)]
pub struct ExpectedField {
    /// Name in lower case.
    pub name: String,
    /// Value, or `absent`.
    pub value: String,
}

/// Loads a file of cases.
pub fn load_cases(file: &Path) -> Result<Vec<TestCase>, ConfigErrors> {
    let name = file.display().to_string();
    match read_text_file(file, MAX_BYTES as u64) {
        Ok((text, _)) => read_cases(&text, &name, file.parent().unwrap_or(Path::new(""))),
        Err(error) => Err(ConfigErrors { file: name, errors: vec![error] }),
    }
}

/// Reads cases from a text. `name` appears in errors; relative names of other files start at `folder`.
pub fn read_cases(text: &str, name: &str, folder: &Path) -> Result<Vec<TestCase>, ConfigErrors> {
    let refused = |errors| ConfigErrors { file: name.to_owned(), errors };
    let tree =
        source::parse(text, 0, "begin with cases: [{ name: .., steps: [..] }]").map_err(refused)?;
    let files = [SourceFile::main(Path::new(name))];
    let errors = ErrorList::new(&files);
    let cases = cases(&Located::root(&tree, &errors), folder);
    let errors = errors.into_sorted();
    match cases {
        Some(cases) if errors.is_empty() => Ok(cases),
        _ => Err(refused(errors)),
    }
}

fn cases(root: &Located<'_>, folder: &Path) -> Option<Vec<TestCase>> {
    let mut map = root.mapping()?;
    if let Some(at) = map.get("version") {
        let cure = "name it behind --config; a file of cases begins with cases:";
        at.error_with("this is a configuration, and no file of cases", cure);
        return None;
    }
    let key_sets = test_keys(&mut map, &[], folder);
    let cases = map.require("cases", "write cases: [{ name: .., steps: [..] }]");
    map.finish();
    let cases = cases?;
    let items = cases.list();
    if cases.is_empty_list() {
        let cure = "write cases: [{ name: .., steps: [..] }]";
        cases.error_with("no case: nothing would be tested", cure);
    }
    Some(items.iter().filter_map(|at| case(at, &key_sets, folder)).collect())
}

fn case(at: &Located<'_>, key_sets: &[TestKeySet], folder: &Path) -> Option<TestCase> {
    let mut map = at.mapping()?;
    let key_sets = test_keys(&mut map, key_sets, folder);
    let name = map.require("name", "write name: what the case shows").and_then(|at| at.text());
    let only = map.get("only").map(|at| at.choice(&[("embedded", true)]));
    let steps = map.require("steps", "write steps: [{ send: .., expect: .. }]");
    map.finish();
    let items = steps?.list();
    let mut nodes = NodeNames::default();
    let steps: Vec<TestStep> = items.iter().filter_map(|at| step(at, &mut nodes)).collect();
    for (earlier, (later, item)) in steps.iter().zip(steps.iter().zip(&items).skip(1)) {
        if later.at.is_some() && later.at < earlier.at {
            item.error_with(
                "this step is before the previous one",
                "write the steps in the order of at",
            );
        }
    }
    let only_embedded = only.unwrap_or(Some(false))?;
    let NodeNames(nodes) = nodes;
    Some(TestCase { name: name?.to_owned(), only_embedded, key_sets, nodes, steps })
}

fn step(at: &Located<'_>, nodes: &mut NodeNames) -> Option<TestStep> {
    let mut map = at.mapping()?;
    let when = map.get("at").map(|at| at.parse(duration));
    let node = nodes.index(at, map.get("node").as_ref());
    let times = map.get("times").map(|at| at.parse(integer(1, MAX_TIMES)));
    let send = map.require("send", "write send: { url: \"http://example.com/\" }");
    let expect = map.require("expect", "write expect: { allowed: 1 }");
    map.finish();
    let (send, expect) = (send.and_then(|at| request(&at)), expect.and_then(|at| expectation(&at)));
    Some(TestStep {
        at: match when {
            None => None,
            Some(when) => Some(when?),
        },
        node: node?,
        times: u32::try_from(times.unwrap_or(Some(1))?).ok()?,
        send: send?,
        expect: expect?,
        location: at.location,
    })
}

fn request(at: &Located<'_>) -> Option<TestRequest> {
    let mut map = at.mapping()?;
    let method = map.get("method").map(|at| at.parse(method));
    let url = map.require("url", "write url: \"http://example.com/\"").and_then(|at| at.text());
    let fields = map.get("headers");
    let ip = map.get("ip").map(|at| at.parse(ip));
    let listener = map.get("listener").map(|at| at.text());
    let client_name_at = map.get("tls_client");
    let client_name = client_name_at.as_ref().map(|at| at.parse(client_name));
    let answer = map.get("answer").map(|at| answer(&at));
    map.finish();
    let url = url?;
    let (scheme, (authority, target)) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme, rest.split_at(rest.find('/').unwrap_or(rest.len()))),
        None => ("", ("", url)),
    };
    let mut headers = header_fields(fields.as_ref());
    if !authority.is_empty() && !headers.contains_key(http::header::HOST) {
        let host = field_value(authority).map_err(|message| at.error(message)).ok()?;
        headers.insert(http::header::HOST, host);
    }
    let connection = ConnectionFacts::for_url(scheme, authority);
    if let Some(at) = client_name_at.filter(|_| !connection.is_tls) {
        at.error_with("a client shows a certificate over TLS only", "write an https URL");
    }
    Some(TestRequest {
        method: method.unwrap_or(Some(Method::GET))?,
        target: if target.is_empty() { "/" } else { target }.to_owned(),
        headers,
        ip: ip.unwrap_or(Some(DEFAULT_PEER))?,
        connection: connection
            .with_client_name(client_name.map_or(Some(None), |name| name.map(Some))?)
            .with_listener(listener.unwrap_or_default().map(Arc::from)),
        answer: answer.unwrap_or(Some(OriginAnswer::default()))?,
    })
}

/// `{ status, headers, body, trailers, cut, after }`, `failed`, or `none`.
fn answer(at: &Located<'_>) -> Option<OriginAnswer> {
    if !at.is_mapping() {
        let words = [("none", AnswerEnding::NoResponse), ("failed", AnswerEnding::Failed)];
        let ending = at.choice(&words)?;
        return Some(OriginAnswer { ending, ..OriginAnswer::default() });
    }
    let mut map = at.mapping()?;
    let status = map.get("status").map(|at| at.parse(integer(100, 599)));
    let (fields, trailers) = (map.get("headers"), map.get("trailers"));
    let body = map.get("body").map(|at| at.text());
    let is_cut = map.get("cut").map(|at| at.parse(boolean));
    let after = map.get("after").map(|at| at.parse(duration));
    map.finish();
    let status = u16::try_from(status.unwrap_or(Some(200))?).ok()?;
    Some(OriginAnswer {
        ending: AnswerEnding::Status(status),
        headers: header_fields(fields.as_ref()),
        body: body.unwrap_or(Some(""))?.to_owned(),
        trailers: header_fields(trailers.as_ref()),
        is_cut: is_cut.unwrap_or(Some(false))?,
        after: after.unwrap_or(Some(Duration::ZERO))?,
    })
}

fn header_fields(fields: Option<&Located<'_>>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for NamedValue { name, at } in fields.into_iter().flat_map(Located::named_values) {
        let Ok(name) = HeaderName::try_from(name) else {
            let message = format!("{name:?} is not the name of a header");
            at.error_with(message, "write it as x-api-key: TEXT");
            continue;
        };
        for line in at.list_or_single() {
            if let Some(value) = line.parse(field_value) {
                headers.append(name.clone(), value);
            }
        }
    }
    headers
}

fn method(text: &str) -> Result<Method, String> {
    text.parse().map_err(|_| format!("{text:?} is not a method; write for example GET"))
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address; write for example 192.0.2.7"))
}

fn field_value(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::try_from(text)
        .map_err(|_| format!("{text:?} is not the value of a header; leave out control characters"))
}

fn expectation(at: &Located<'_>) -> Option<Expectation> {
    if at.is_empty_mapping() {
        at.error_with(
            "a step that expects nothing never fails",
            "write for example { allowed: 1 }",
        );
        return None;
    }
    let mut map = at.mapping()?;
    let count =
        |at: Located<'_>| at.parse(integer(0, MAX_TIMES)).and_then(|n| u32::try_from(n).ok());
    let text = |at: Located<'_>| at.text().map(str::to_owned);
    let expect = Expectation {
        allowed: map.get("allowed").and_then(count),
        limited: map.get("limited").and_then(count),
        route: map.get("route").and_then(text),
        limit: map.get("limit").and_then(text),
        status: map
            .get("status")
            .and_then(|at| at.parse(integer(100, 599)))
            .and_then(|status| u16::try_from(status).ok()),
        reason: map.get("reason").and_then(text),
        waited: map.get("waited").and_then(|at| at.parse(duration)),
        candidate: map.get("candidate").and_then(text),
        banned: map.get("banned").and_then(|at| at.parse(boolean)),
        charged: map
            .get("charged")
            .and_then(|at| at.parse(integer(0, u64::from(u32::MAX))))
            .and_then(|units| u32::try_from(units).ok()),
        client_ip: map.get("client_ip").and_then(text),
        headers: expected_fields(map.get("headers")),
        body: map.get("body").and_then(text),
        forwarded: map.get("forwarded").and_then(|at| expected_request(&at)),
    };
    map.finish();
    Some(expect)
}

fn expected_request(at: &Located<'_>) -> Option<ExpectedRequest> {
    let mut map = at.mapping()?;
    let target = map.get("target").and_then(|at| at.text().map(str::to_owned));
    let headers = expected_fields(map.get("headers"));
    map.finish();
    Some(ExpectedRequest { target, headers })
}

fn expected_fields(at: Option<Located<'_>>) -> Vec<ExpectedField> {
    at.iter().flat_map(Located::named_values).filter_map(expected_field).collect()
}

fn expected_field(field: NamedValue<'_>) -> Option<ExpectedField> {
    let value = field.at.text()?.to_owned();
    Some(ExpectedField { name: field.name.to_ascii_lowercase(), value })
}
