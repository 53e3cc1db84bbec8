//! The admin API: health, readiness, metrics, status and the page for operators.
//!
//! | path | answer | token |
//! |---|---|---|
//! | `/` | the page ([`page`]), which fetches everything that it shows from the other paths | no |
//! | `/healthz` | 200 while the process lives | no |
//! | `/ready` | 200 while new connections are accepted (`degraded` while the store is away), else 503 | no |
//! | `/metrics` | Prometheus text | if one is configured |
//! | `POST /keys` | JSON: what one key has spent under one limit ([`keys`]) | if one is configured |
//! | `/status` | JSON: version, generation and sum of the files, limits, origins, sets of keys, reloads ([`status_json`]) | if one is configured |
//! | `/routes` | JSON: the routes and how their requests ended, a page at a time ([`routes`]) | if one is configured |
//!
//! A request for another host is answered 421, except at `/healthz` and `/ready`. A request of a page of another web
//! origin is answered 403 ([`access`]).
//! A body is bounded and must come within a deadline, a request is served within one (`AdminServer` in `edge`).

mod access;
mod answer_queue;
mod keys;
mod page;
mod routes;
mod status_json;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::{Method, Response, StatusCode, Uri, Version, header};
use pingora::apps::http_app::ServeHttp;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use prometheus::process_collector::ProcessCollector;
use serde_json::json;

use super::status::Status;
use super::{MetricSources, render_metrics};
use crate::edge::{CertificateStore, MemoryBudget};
use crate::engine::Engine;
use crate::proxy::{Live, TrafficCounters};

pub use access::AdminAccess;
pub use answer_queue::AnswerQueue;

use access::Foreign;
use keys::Unanswered;
use routes::RouteQuery;

/// The longest body of a request. The longest keys of a limit fit, escaped.
const MAX_BODY_BYTES: usize = 64 << 10;

/// The time in which a body has to come. Whoever takes longer must not hold a connection of operators.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers requests of operators.
pub struct AdminApi {
    /// Its clock, its store and its counters.
    pub engine: Arc<Engine>,
    /// The configuration in force.
    pub live: Arc<ArcSwap<Live>>,
    /// Counters of requests, refusals and origins.
    pub counters: Arc<TrafficCounters>,
    /// Readiness and the last reload.
    pub status: Arc<Status>,
    /// The number of clients' connections.
    pub connections: Arc<AtomicUsize>,
    /// Memory that clients make the process use.
    pub memory: Arc<MemoryBudget>,
    /// The certificates of the listeners.
    pub certificates: Arc<CertificateStore>,
    /// What the system says of this process. Made when the process starts, while descriptors are free.
    pub process: ProcessCollector,
    /// The bearer token for `/metrics` and `/status`. `None`: they need no token.
    pub token: Option<String>,
    /// When metrics and status may be written.
    pub answers: AnswerQueue,
    /// The hosts and web origins that are answered.
    pub access: AdminAccess,
}

#[async_trait]
impl ServeHttp for AdminApi {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        if session.req_header().version == Version::HTTP_10 {
            // The framework would keep the connection open, while an HTTP/1.0 client may wait for its end.
            session.set_keepalive(None);
        }
        let head = session.req_header();
        if let Err(foreign) = self.check_access(head) {
            return refused(foreign);
        }
        let token = head.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        if head.uri.path() == "/keys" {
            if head.method != Method::POST {
                return not_allowed("POST");
            }
            if !self.accepts_token(token) {
                return unauthorized();
            }
            return self.answer_question(session).await;
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return not_allowed("GET, HEAD");
        }
        let now = || self.engine.now().mono;
        let mut answer = match head.uri.path() {
            "/metrics" | "/status" | "/routes" if self.accepts_token(token) => {
                self.answers.write(now, || self.answer(&head.uri, token)).await
            }
            _ => self.answer(&head.uri, token),
        };
        if head.method == Method::HEAD {
            answer.body_mut().clear();
        }
        answer
    }
}

impl AdminApi {
    /// Checks `Origin`, and `Host` except for health: probes send all kinds of names as `Host`, and health is not secret.
    fn check_access(&self, head: &RequestHeader) -> Result<(), Foreign> {
        self.access.check_origin(&head.headers)?;
        if matches!(head.uri.path(), "/healthz" | "/ready") {
            return Ok(());
        }
        self.access.check_host(&head.headers, &head.uri)
    }

    fn answer(&self, uri: &Uri, token: Option<&[u8]>) -> Response<Vec<u8>> {
        match uri.path() {
            "/" => page::page(),
            "/healthz" => plain(StatusCode::OK, "ok\n"),
            "/ready" if self.status.is_ready() => {
                // All nodes share the store, so a load balancer that removed nodes for its outage would remove all of
                // them.
                let degraded = self.engine.remote().is_some_and(|remote| !remote.is_up());
                plain(StatusCode::OK, if degraded { "degraded\n" } else { "ready\n" })
            }
            "/ready" => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            "/metrics" | "/status" | "/routes" if !self.accepts_token(token) => unauthorized(),
            "/metrics" => {
                let text = render_metrics(MetricSources {
                    engine: &self.engine,
                    live: &self.live.load(),
                    counters: &self.counters,
                    status: &self.status,
                    connections: &self.connections,
                    memory: &self.memory,
                    certificates: &self.certificates,
                    process: &self.process,
                });
                body(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
            }
            "/status" => {
                let text = format!("{:#}\n", self.status_of(&self.live.load()));
                body(StatusCode::OK, "application/json", text)
            }
            "/routes" => match RouteQuery::parse(uri.query().unwrap_or_default()) {
                Ok(query) => {
                    let live = self.live.load();
                    let routes = &live.generation.policy().routes;
                    let text = format!("{:#}\n", routes::listing(routes, &self.counters, &query));
                    body(StatusCode::OK, "application/json", text)
                }
                Err(detail) => problem(StatusCode::BAD_REQUEST, detail),
            },
            _ => plain(StatusCode::NOT_FOUND, "/ /healthz /ready /metrics /status /routes /keys\n"),
        }
    }

    /// Answers `POST /keys`.
    async fn answer_question(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let answer = match tokio::time::timeout(BODY_TIMEOUT, read_body(session)).await {
            Ok(Ok(question)) => self.key_state(&question).await,
            Ok(Err(unanswered)) => Err(unanswered),
            Err(_) => Err(Unanswered {
                status: StatusCode::REQUEST_TIMEOUT,
                detail: format!("the body did not come within {BODY_TIMEOUT:?}"),
            }),
        };
        match answer {
            Ok(state) => body(StatusCode::OK, "application/json", format!("{state:#}\n")),
            Err(Unanswered { status, detail }) => {
                if matches!(status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
                    // The rest of the body is not read.
                    session.set_keepalive(None);
                }
                problem(status, &detail)
            }
        }
    }

    /// Whether the token is the configured one. The comparison takes a time that depends on the length only.
    fn accepts_token(&self, given: Option<&[u8]>) -> bool {
        let Some(wanted) = &self.token else {
            return true;
        };
        let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or(b"");
        let differences = wanted.bytes().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
        given.len() == wanted.len() && differences == 0
    }
}

/// Reads the body of a request, up to [`MAX_BODY_BYTES`].
async fn read_body(session: &mut ServerSession) -> Result<Vec<u8>, Unanswered> {
    let mut question = Vec::new();
    loop {
        let next = session.read_request_body().await;
        let next = next.map_err(|_| Unanswered {
            status: StatusCode::BAD_REQUEST,
            detail: "the body broke off".to_owned(),
        })?;
        let Some(bytes) = next else {
            return Ok(question);
        };
        if question.len() + bytes.len() > MAX_BODY_BYTES {
            return Err(Unanswered {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                detail: format!("the body has more than {MAX_BODY_BYTES} bytes"),
            });
        }
        question.extend_from_slice(&bytes);
    }
}

fn refused(foreign: Foreign) -> Response<Vec<u8>> {
    problem(foreign.status(), foreign.cure())
}

/// A problem document (RFC 9457).
fn problem(status: StatusCode, detail: &str) -> Response<Vec<u8>> {
    let title = status.canonical_reason();
    let problem = json!({
        "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
    });
    body(status, "application/problem+json", format!("{problem}\n"))
}

fn not_allowed(allowed: &'static str) -> Response<Vec<u8>> {
    let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, &format!("{allowed} only\n"));
    // RFC 9110, section 15.5.6.
    answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
    answer
}

fn unauthorized() -> Response<Vec<u8>> {
    let mut answer = plain(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
    // RFC 9110, section 11.6.1.
    let challenge = header::HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    answer
}

fn plain(status: StatusCode, text: &str) -> Response<Vec<u8>> {
    body(status, "text/plain; charset=utf-8", text.to_owned())
}

fn body(status: StatusCode, media_type: &str, text: String) -> Response<Vec<u8>> {
    let mut answer = Response::new(text.into_bytes());
    *answer.status_mut() = status;
    let length = answer.body().len();
    let headers = answer.headers_mut();
    if let Ok(media_type) = media_type.parse() {
        headers.insert(header::CONTENT_TYPE, media_type);
    }
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    answer
}
