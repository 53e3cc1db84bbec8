//! Policy tests: cases of requests and of what is expected of them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::config::error::{ConfigError, ConfigErrors, Location};
use crate::config::load::read_bounded;
use crate::config::reader::{ErrorList, Located};
use crate::config::scalars::{boolean, duration, whole};
use crate::config::source;

/// Most requests of one step.
const MAX_TIMES: u64 = 10_000_000;

/// The client of a request that names none: an address of documentation.
const SOMEBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

/// One case: it begins with nothing spent, at the begin of a window of any length.
#[derive(Debug)]
pub struct TestCase {
    /// Its name.
    pub name: String,
    /// It is of what only the embedded store has (`only: embedded`).
    pub only_embedded: bool,
    /// What is sent, in order.
    pub steps: Vec<TestStep>,
}

/// One request, perhaps many times, and what is expected.
#[derive(Debug)]
pub struct TestStep {
    /// When, counted from the case's begin; `None`: no time passes.
    pub at: Option<Duration>,
    /// How often.
    pub times: u32,
    /// The request.
    pub send: TestRequest,
    /// What is expected.
    pub expect: Expectation,
    /// Where it stands in the file.
    pub location: Location,
}

/// A request as it would stand on the wire.
#[derive(Debug)]
pub struct TestRequest {
    /// The method.
    pub method: Method,
    /// The target as it was typed.
    pub target: String,
    /// The fields, `Host` among them if the URL has a host.
    pub headers: HeaderMap,
    /// The peer.
    pub ip: IpAddr,
    /// What the origin would answer.
    pub answer: OriginAnswer,
}

/// What becomes of a request that is let through.
#[derive(Clone, Debug)]
pub struct OriginAnswer {
    /// The answer's status and whether it is the origin's; `None`: the client leaves before any.
    pub status: Option<(u16, bool)>,
    /// Its fields.
    pub headers: HeaderMap,
    /// How long the request is in flight.
    pub after: Duration,
}

impl Default for OriginAnswer {
    fn default() -> Self {
        Self { status: Some((200, true)), headers: HeaderMap::new(), after: Duration::ZERO }
    }
}

/// What is expected of a step; of many requests, the numbers are of all and the rest of the last.
#[derive(Debug, Default)]
pub struct Expectation {
    /// How many are let through.
    pub allowed: Option<u32>,
    /// How many are answered 429.
    pub limited: Option<u32>,
    /// The name of the route; `none`.
    pub route: Option<String>,
    /// The name of the limit that decides; `none`.
    pub limit: Option<String>,
    /// The status; 200 stands for the origin's own.
    pub status: Option<u16>,
    /// Why it is refused before or without a limit; `none`.
    pub reason: Option<String>,
    /// How long the last one waits for its turn.
    pub waited: Option<Duration>,
    /// What the candidate of a limit says: `agrees`, `would_deny`, `would_allow`; `none`.
    pub candidate: Option<String>,
    /// Whether a ban refuses it.
    pub banned: Option<bool>,
    /// Who the client is taken for.
    pub client_ip: Option<String>,
    /// Fields of the answer; `absent` is not there.
    pub headers: Vec<(String, String)>,
}

/// Reads a file of cases.
pub fn load_cases(file: &Path) -> Result<Vec<TestCase>, ConfigErrors> {
    let name = file.display().to_string();
    let text = read_bounded(file).map_err(|message| ConfigErrors {
        file: name.clone(),
        errors: vec![ConfigError { location: None, path: String::new(), message, cure: None }],
    })?;
    read_cases(&text, &name)
}

/// Reads the text of a file of cases. `name` stands in errors.
pub fn read_cases(text: &str, name: &str) -> Result<Vec<TestCase>, ConfigErrors> {
    let refused = |errors| ConfigErrors { file: name.to_owned(), errors };
    let tree = source::parse(text).map_err(refused)?;
    let errors = ErrorList::default();
    let cases = cases(&Located::root(&tree, &errors));
    let errors = errors.into_sorted();
    match cases {
        Some(cases) if errors.is_empty() => Ok(cases),
        _ => Err(refused(errors)),
    }
}

fn cases(root: &Located<'_>) -> Option<Vec<TestCase>> {
    let mut map = root.map()?;
    let cases = map.require("cases", "write cases: [{ name: .., steps: [..] }]");
    map.finish();
    let cases = cases?;
    let items = cases.list();
    if items.is_empty() {
        cases.error("no case: nothing would be tested");
    }
    Some(items.iter().filter_map(case).collect())
}

fn case(at: &Located<'_>) -> Option<TestCase> {
    let mut map = at.map()?;
    let name = map.require("name", "say what it shows").and_then(|at| at.text());
    let only = map.get("only").map(|at| at.choice(&[("embedded", true)]));
    let steps = map.require("steps", "write steps: [{ send: .., expect: .. }]");
    map.finish();
    let items = steps?.list();
    let steps: Vec<TestStep> = items.iter().filter_map(step).collect();
    for (before, (after, item)) in steps.iter().zip(steps.iter().zip(&items).skip(1)) {
        if after.at.is_some() && after.at < before.at {
            item.error("time runs forwards: this step is before the last one");
        }
    }
    Some(TestCase { name: name?.to_owned(), only_embedded: only.unwrap_or(Some(false))?, steps })
}

fn step(at: &Located<'_>) -> Option<TestStep> {
    let mut map = at.map()?;
    let when = map.get("at").map(|at| at.parse(duration));
    let times = map.get("times").map(|at| at.parse(whole(1, MAX_TIMES)));
    let send = map.require("send", "write send: { url: \"http://example.com/\" }");
    let expect = map.require("expect", "write expect: { allowed: 1 }");
    map.finish();
    let (send, expect) = (send.and_then(|at| request(&at)), expect.and_then(|at| expected(&at)));
    Some(TestStep {
        at: match when {
            None => None,
            Some(when) => Some(when?),
        },
        times: u32::try_from(times.unwrap_or(Some(1))?).ok()?,
        send: send?,
        expect: expect?,
        location: at.location,
    })
}

fn request(at: &Located<'_>) -> Option<TestRequest> {
    let mut map = at.map()?;
    let method = map.get("method").map(|at| at.parse(method));
    let url = map.require("url", "write url: \"http://example.com/\"").and_then(|at| at.text());
    let fields = map.get("headers");
    let ip = map.get("ip").map(|at| at.parse(ip));
    let answer = map.get("answer").map(|at| answer(&at));
    map.finish();
    let url = url?;
    let (authority, target) = match url.split_once("://") {
        Some((_, rest)) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", url),
    };
    let mut headers = fields_of(fields.as_ref());
    if !authority.is_empty() && !headers.contains_key(http::header::HOST) {
        let host = field(authority).map_err(|message| at.error(message)).ok()?;
        headers.insert(http::header::HOST, host);
    }
    Some(TestRequest {
        method: method.unwrap_or(Some(Method::GET))?,
        target: if target.is_empty() { "/" } else { target }.to_owned(),
        headers,
        ip: ip.unwrap_or(Some(SOMEBODY))?,
        answer: answer.unwrap_or(Some(OriginAnswer::default()))?,
    })
}

/// `{ status, headers, after }`; `failed`: the origin gives none and this proxy answers 502;
/// `none`: the client leaves first.
fn answer(at: &Located<'_>) -> Option<OriginAnswer> {
    if !at.is_map() {
        let words = [("none", None), ("failed", Some((502, false)))];
        return at.choice(&words).map(|status| OriginAnswer { status, ..OriginAnswer::default() });
    }
    let mut map = at.map()?;
    let status = map.get("status").map(|at| at.parse(whole(100, 599)));
    let fields = map.get("headers");
    let after = map.get("after").map(|at| at.parse(duration));
    map.finish();
    Some(OriginAnswer {
        status: Some((u16::try_from(status.unwrap_or(Some(200))?).ok()?, true)),
        headers: fields_of(fields.as_ref()),
        after: after.unwrap_or(Some(Duration::ZERO))?,
    })
}

fn fields_of(fields: Option<&Located<'_>>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, at) in fields.into_iter().flat_map(Located::named) {
        let Ok(name) = HeaderName::try_from(name) else {
            at.error(format!("{name:?} is not the name of a header"));
            continue;
        };
        for line in at.one_or_more() {
            if let Some(value) = line.parse(field) {
                headers.append(name.clone(), value);
            }
        }
    }
    headers
}

fn method(text: &str) -> Result<Method, String> {
    text.parse().map_err(|_| format!("{text:?} is not a method"))
}

fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address"))
}

fn field(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::try_from(text).map_err(|_| format!("{text:?} is not the value of a header"))
}

fn expected(at: &Located<'_>) -> Option<Expectation> {
    let mut map = at.map()?;
    let count = |at: Located<'_>| at.parse(whole(0, MAX_TIMES)).and_then(|n| u32::try_from(n).ok());
    let text = |at: Located<'_>| at.text().map(str::to_owned);
    let expect = Expectation {
        allowed: map.get("allowed").and_then(count),
        limited: map.get("limited").and_then(count),
        route: map.get("route").and_then(text),
        limit: map.get("limit").and_then(text),
        status: map
            .get("status")
            .and_then(|at| at.parse(whole(100, 599)))
            .and_then(|status| u16::try_from(status).ok()),
        reason: map.get("reason").and_then(text),
        waited: map.get("waited").and_then(|at| at.parse(duration)),
        candidate: map.get("candidate").and_then(text),
        banned: map.get("banned").and_then(|at| at.parse(boolean)),
        client_ip: map.get("client_ip").and_then(text),
        headers: map
            .get("headers")
            .iter()
            .flat_map(Located::named)
            .filter_map(|(name, at)| Some((name.to_ascii_lowercase(), at.text()?.to_owned())))
            .collect(),
    };
    map.finish();
    Some(expect)
}
