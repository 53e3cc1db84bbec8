//! One request of a log, as it waits to be judged.
//!
//! An entry is made from a line on the thread that reads, and judged on another one. Its times are those of the beginning and
//! of the end of the request, with how much later the beginning may have been: a log has one time, and a duration if it is a
//! good one.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::access_lines::{AccessLine, Moment};
use crate::clock::{Nanos, Now};
use crate::engine::RequestTrace;

/// The longest path that tollgate's own log has; a longer one was cut.
const MAX_LOGGED_PATH: usize = 1_024;

/// The longest time that a request is assumed to have taken, where a log does not say how long it took and may have its end
/// only.
pub(super) const ASSUMED_DURATION: Nanos = Nanos::SECOND;

/// Bytes that a member `replay` takes when it is read, roughly.
const TRACE_BYTES: usize = 2_048;

/// One request of a log.
#[derive(Debug)]
pub struct LogEntry {
    /// When it was judged: to the nanosecond, or by the time of the line.
    pub at: Now,
    /// The earliest time at which it may have begun.
    pub earliest: Nanos,
    /// The latest.
    pub latest: Nanos,
    /// How long it took; `None`: the log does not say.
    pub duration: Option<Nanos>,
    /// The client, or the peer that sent the request for it.
    pub client: Option<IpAddr>,
    /// The method; `None` if it is no name of one.
    pub method: Option<Method>,
    /// The host as the line has it; empty if it has none.
    pub host: Box<str>,
    /// The path with the query.
    pub target: Box<str>,
    /// The status of the answer.
    pub status: Option<u16>,
    /// Header fields that the line has.
    pub headers: HeaderMap,
    /// Whether the client spoke TLS.
    pub is_tls: bool,
    /// The user of `Authorization: Basic`.
    pub user: Option<Box<str>>,
    /// Whether its line came after a later request had been judged.
    pub lateness: Lateness,
    /// Which values a line of this log has.
    pub source: SourceIndex,
    /// What tollgate wrote for a replay.
    pub trace: Option<Box<RequestTrace>>,
}

/// The position of a log among those of one replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceIndex(pub u32);

/// Whether a line came in time to be judged in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lateness {
    /// It did.
    InTime,
    /// It began before requests that have been judged, and ended with them: a long request, whose line is written at its end. It is
    /// judged at the time of the last one.
    Long,
    /// It ended before them. Lines of an earlier time are not judged at a later one.
    OutOfOrder,
}

/// Why a line's request is not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unjudged {
    /// The line has no request: the client sent none that could be read.
    #[error("no request: the client sent nothing that could be read")]
    NoRequest,
    /// tollgate refused it before it asked a limit.
    #[error("refused before any limit was asked")]
    RefusedBefore,
    /// The path was cut.
    #[error("the log has only the beginning of the path")]
    CutPath,
    /// It has no client.
    #[error("no client address")]
    NoClient,
    /// Its peer is a trusted proxy, and the client behind it is unknown.
    #[error("the address of the client behind a trusted proxy is not in the log")]
    HiddenClient,
    /// Its line came after many later ones.
    #[error("its line came too late")]
    Late,
    /// What tollgate wrote for a replay cannot be read.
    #[error("the member \"replay\" cannot be read")]
    BadTrace,
}

impl Unjudged {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRequest => "no_request",
            Self::RefusedBefore => "refused_before",
            Self::CutPath => "cut_path",
            Self::NoClient => "no_client",
            Self::HiddenClient => "hidden_client",
            Self::Late => "late",
            Self::BadTrace => "bad_trace",
        }
    }
}

impl LogEntry {
    /// The request of a line. `unread`: what is left out of `User-Agent` and `Referer`, since no policy reads it.
    ///
    /// # Errors
    /// Why it cannot be judged.
    pub fn of(
        line: &AccessLine<'_>,
        source: SourceIndex,
        unread: &[HeaderName],
    ) -> Result<Self, Unjudged> {
        let (Some(method), Some(target)) = (&line.method, &line.target) else {
            return Err(Unjudged::NoRequest);
        };
        let trace = match line.own {
            None => None,
            Some(member) => {
                let trace: RequestTrace =
                    serde_json::from_str(member.get()).map_err(|_| Unjudged::BadTrace)?;
                Some(Box::new(trace))
            }
        };
        if line.is_own {
            if trace.as_ref().map_or(line.is_refused_early, |trace| trace.is_ambiguous) {
                return Err(Unjudged::RefusedBefore);
            }
            if target.len() >= MAX_LOGGED_PATH {
                return Err(Unjudged::CutPath);
            }
        }
        let BeginTimes { earliest, judged, latest } = match &trace {
            Some(trace) => {
                let at = trace.at.wall;
                BeginTimes { earliest: at, judged: at, latest: at }
            }
            None => BeginTimes::of(line),
        };
        Ok(Self {
            at: trace.as_ref().map_or(Now { mono: judged, wall: judged }, |trace| trace.at),
            earliest,
            latest,
            duration: line.duration.map(Nanos::new),
            client: line.client,
            method: Method::from_bytes(method.as_bytes()).ok(),
            host: line.host.as_deref().map(Box::from).unwrap_or_default(),
            target: Box::from(&**target),
            status: line.status,
            headers: headers(line, unread, trace.as_deref()),
            is_tls: line.is_tls.unwrap_or(false),
            user: line.user.as_deref().map(Box::from),
            lateness: Lateness::InTime,
            source,
            trace,
        })
    }

    /// Whether it is taken for a CORS preflight, which no limit judges: other servers do not log what tells one.
    pub fn is_assumed_preflight(&self) -> bool {
        self.trace.is_none() && self.method == Some(Method::OPTIONS)
    }

    /// When it was answered, as a replay settles it.
    pub(super) fn answered(&self) -> Nanos {
        let answer = self.trace.as_ref().and_then(|trace| trace.answer.as_ref());
        let after = answer.map(|answer| Nanos::new(answer.after)).or(self.duration);
        self.at.wall.saturating_add(after.unwrap_or_default())
    }

    /// Bytes that it takes while it waits, roughly.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let trace = self.trace.as_ref().map_or(0, |_| TRACE_BYTES);
        size_of::<Self>() + self.host.len() + self.target.len() + headers.sum::<usize>() + trace
    }

    /// When the request ended, as far as the log says.
    pub fn end(&self) -> Nanos {
        self.at.wall.saturating_add(self.duration.unwrap_or_default())
    }
}

/// The times at which a request may have begun, and the one at which it is judged.
struct BeginTimes {
    earliest: Nanos,
    judged: Nanos,
    latest: Nanos,
}

impl BeginTimes {
    fn of(line: &AccessLine<'_>) -> Self {
        let (stamp, resolution) = (Nanos::new(line.stamp.nanos), Nanos::new(line.stamp.resolution));
        // A time that is exact to the nanosecond has a step of 1.
        let last = stamp.saturating_add(resolution.saturating_sub(Nanos::new(1)));
        let duration = line.duration.map(Nanos::new);
        // A step of 1 ns tells that the duration is exact.
        let step = Nanos::new(line.duration_step.saturating_sub(1));
        let longest = duration.map_or(ASSUMED_DURATION, |duration| duration.saturating_add(step));
        let shortest = duration.unwrap_or_default().saturating_sub(step);
        match line.stamp.moment {
            Moment::Start => Self { earliest: stamp, judged: stamp, latest: last },
            Moment::End => Self {
                earliest: stamp.saturating_sub(longest),
                judged: stamp.saturating_sub(duration.unwrap_or_default()),
                latest: last.saturating_sub(shortest),
            },
            // Without a word on which of both it is, both are possible.
            Moment::Unknown => Self {
                earliest: stamp.saturating_sub(longest),
                judged: stamp.saturating_sub(duration.unwrap_or_default()),
                latest: last,
            },
        }
    }
}

/// The fields of the head, as far as the log has them.
fn headers(
    line: &AccessLine<'_>,
    unread: &[HeaderName],
    trace: Option<&RequestTrace>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, value: &str| {
        if let (false, Ok(value)) = (headers.contains_key(&name), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    };
    if let Some(host) = line.host.as_deref().filter(|host| !host.is_empty()) {
        add(header::HOST, host);
    }
    let known = [(header::USER_AGENT, &line.user_agent), (header::REFERER, &line.referer)];
    for (name, value) in known.into_iter().filter(|(name, _)| !unread.contains(name)) {
        if let Some(value) = value {
            add(name, value);
        }
    }
    for (name, value) in &line.headers {
        match name.parse::<HeaderName>() {
            // The host of a line is the one that the server has found.
            Ok(header::HOST) | Err(_) => {}
            Ok(name) => add(name, value),
        }
    }
    match trace {
        None if line.method.as_deref() == Some("OPTIONS") => mark_preflight(&mut headers),
        None => {}
        Some(trace) => add_recorded(&mut headers, trace),
    }
    headers
}

/// Adds the fields that were recorded for a replay.
fn add_recorded(headers: &mut HeaderMap, trace: &RequestTrace) {
    for (name, lines) in &trace.values.costs {
        let Ok(name) = name.parse::<HeaderName>() else {
            continue;
        };
        headers.remove(&name);
        for line in lines.iter().filter_map(|line| HeaderValue::from_str(line).ok()) {
            headers.append(&name, line);
        }
    }
    if trace.values.preflight {
        mark_preflight(headers);
    }
}

fn mark_preflight(headers: &mut HeaderMap) {
    let marked = HeaderValue::from_static("null");
    headers.insert(header::ORIGIN, marked.clone());
    headers.insert(header::ACCESS_CONTROL_REQUEST_METHOD, marked);
}
