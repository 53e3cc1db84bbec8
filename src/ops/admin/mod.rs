//! The admin API: what operators see of the process, and what they change while it runs.
//!
//! | path | answer | token |
//! |---|---|---|
//! | `/` | the page for operators ([`page`]) | no |
//! | `/healthz` | 200 while the process lives | no |
//! | `/ready` | 200 while new connections are accepted (`degraded` while the store is away), else 503 | no |
//! | `/metrics` | Prometheus text | if one is configured |
//! | `/status` | JSON: version, generation and sum of the files, limits, origins, sets of keys, reloads ([`status_json`]) | if one is configured |
//! | `/routes` | JSON: the routes and how their requests ended, a page at a time ([`routes`]) | if one is configured |
//! | `/refusals`, `/refusals/{request_id}`, `/top`, `/history` | JSON: whom limits refused, why and when ([`traffic`]) | if one is configured |
//! | `/log` | the last lines of the access log, a page at a time ([`log_pages`]) | if one is configured |
//! | `/overrides`, `/audit` | JSON: what operators have changed ([`changes`]) | if one is configured |
//! | `/openapi.json` | the description of this API for programs | if one is configured |
//! | `POST /keys` | JSON: what one key has spent under one limit ([`keys`]) | if one is configured |
//! | `POST /keys/..`, `POST /reload` | JSON: changes ([`changes`]) | always |
//!
//! A request for another host is answered 421, except at `/healthz` and `/ready`. A request of a page of another web
//! origin is answered 403 ([`access`]). A client that asks too often is answered 429 ([`request_buckets`]).
//! A body is bounded and must come within a deadline, a request is served within one (`AdminServer` in `edge`).

mod access;
mod answer_queue;
mod changes;
mod endpoints;
mod history;
mod keys;
mod log_pages;
mod made_change;
mod page;
mod query;
mod refusals;
mod replies;
mod request_buckets;
mod routes;
mod status_json;
mod top;
mod traffic;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::{HeaderName, Method, Response, StatusCode, Uri, Version, header};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use prometheus::process_collector::ProcessCollector;
use serde_json::{Value, json};

use super::access_log::AccessLogSink;
use super::audit::AuditLog;
use super::key_changes::KeyChanges;
use super::reload::Reloader;
use super::status::Status;
use super::{MetricSources, render_metrics};
use crate::edge::{CertificateStore, MemoryBudget};
use crate::engine::Engine;
use crate::history::TrafficHistory;
use crate::policy::client::unmapped;
use crate::proxy::{Live, TrafficCounters};
use crate::signals::OperatorRequests;

pub use access::AdminAccess;
pub use answer_queue::AnswerQueue;
pub use log_pages::{LOG_DROPPED, LOG_KEPT_SINCE, LOG_LAST, LOG_NEXT};
pub use replies::ADMIN_API;
pub use request_buckets::RequestBuckets;

use access::Foreign;
use endpoints::Endpoint;
use keys::Unanswered;
use made_change::Operator;
use query::Parameters;
use replies::{json_answer, not_allowed, plain, problem, reload_answer, too_many, unauthorized};
use routes::RouteQuery;

/// The description of the API.
const OPENAPI: &str = include_str!("openapi.json");

/// The longest body of a request. The longest keys of a limit fit, escaped.
const MAX_BODY_BYTES: usize = 64 << 10;

/// The time in which a body has to come. Whoever takes longer must not hold a connection of operators.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest name of an operator in the header that says who changes something.
const MAX_OPERATOR_NAME: usize = 200;

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
    /// The header that says who changes something.
    pub by_header: Option<HeaderName>,
    /// Makes changes of keys.
    pub changes: Arc<KeyChanges>,
    /// Records changes.
    pub audit: Arc<AuditLog>,
    /// Reloads the configuration.
    pub reloader: Arc<Reloader>,
    /// Where a reload is asked for.
    pub requests: Arc<OperatorRequests>,
    /// Bounds how often a client asks.
    pub request_buckets: RequestBuckets,
    /// When metrics and status may be written.
    pub answers: AnswerQueue,
    /// The hosts and web origins that are answered.
    pub access: AdminAccess,
    /// What happened in the last minutes.
    pub history: Arc<TrafficHistory>,
    /// Whether answers show addresses of clients.
    pub show_addresses: bool,
    /// The last lines of the access log.
    pub access_log: Arc<AccessLogSink>,
}

#[async_trait]
impl ServeHttp for AdminApi {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        if session.req_header().version == Version::HTTP_10 {
            // The framework would keep the connection open, while an HTTP/1.0 client may wait for its end.
            session.set_keepalive(None);
        }
        let endpoint = match self.admit(session) {
            Ok(endpoint) => endpoint,
            Err(refusal) => return *refusal,
        };
        if endpoint.is_posted() {
            return self.answer_post(endpoint, session).await;
        }
        let head = session.req_header();
        let mut answer = match endpoint.is_open() {
            true => self.answer(endpoint, &head.uri),
            false => {
                let now = || self.engine.now().mono;
                self.answers.write(now, || self.answer(endpoint, &head.uri)).await
            }
        };
        if head.method == Method::HEAD {
            answer.body_mut().clear();
        }
        answer
    }
}

impl AdminApi {
    /// Checks who asks, before anything else is done for a request: where from, whether too often, and with which token.
    fn admit(&self, session: &ServerSession) -> Result<Endpoint, Box<Response<Vec<u8>>>> {
        let head = session.req_header();
        let endpoint = Endpoint::of_path(head.uri.path());
        let foreign = |foreign: Foreign| Box::new(problem(foreign.status(), foreign.cure()));
        self.access.check_origin(&head.headers).map_err(foreign)?;
        if !endpoint.as_ref().is_ok_and(|endpoint| endpoint.takes_any_host()) {
            self.access.check_host(&head.headers, &head.uri).map_err(foreign)?;
        }
        let token = session.req_header().headers.get(header::AUTHORIZATION);
        let token = token.map(|value| value.as_bytes());
        let is_admitted = self.accepts_token(token);
        // Whoever has the token is not held up by others at the same address; a guess of the token counts on every path.
        let has_token = is_admitted && self.live.load().admin_token.is_some();
        let is_guess = !is_admitted && endpoint.as_ref().is_ok_and(|endpoint| !endpoint.is_open());
        if is_guess || endpoint.as_ref().map_or(true, |endpoint| endpoint.is_counted()) {
            let client = client_address(session).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            let admitted = self.request_buckets.admit(client, has_token, self.engine.now().mono);
            admitted.map_err(|wait| Box::new(too_many(wait)))?;
        }
        let unknown = |Unanswered { status, detail }| Box::new(problem(status, &detail));
        let endpoint = endpoint.map_err(unknown)?;
        if !endpoint.takes(&head.method) {
            return Err(Box::new(not_allowed(endpoint.methods())));
        }
        if is_guess {
            return Err(Box::new(unauthorized(token.is_some())));
        }
        if endpoint.is_change() && self.live.load().admin_token.is_none() {
            let cure = "changes need admin.token_file in the configuration";
            return Err(Box::new(problem(StatusCode::FORBIDDEN, cure)));
        }
        Ok(endpoint)
    }

    /// Answers a request that was admitted and has no body.
    fn answer(&self, endpoint: Endpoint, uri: &Uri) -> Response<Vec<u8>> {
        let query = uri.query();
        match endpoint {
            Endpoint::Page => page::page(),
            Endpoint::Health => plain(StatusCode::OK, "ok\n"),
            Endpoint::Readiness if self.status.is_ready() => {
                // All nodes share the store, so a load balancer that removed nodes for its outage would remove all of
                // them.
                let degraded = self.engine.remote().is_some_and(|remote| !remote.is_up());
                plain(StatusCode::OK, if degraded { "degraded\n" } else { "ready\n" })
            }
            Endpoint::Readiness => {
                let percent = self.status.state().and_then(|state| state.restoring_percent());
                let why = percent
                    .map(|percent| format!("not ready: {percent} % of the state restored\n"));
                plain(StatusCode::SERVICE_UNAVAILABLE, why.as_deref().unwrap_or("not ready\n"))
            }
            Endpoint::Metrics => replies::body(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                self.metrics(),
            ),
            Endpoint::OpenApi => {
                replies::body(StatusCode::OK, "application/json", OPENAPI.to_owned())
            }
            Endpoint::Status => json_answer(Ok(self.status_of(&self.live.load()))),
            Endpoint::Routes => json_answer(self.routes(query)),
            Endpoint::Overrides => {
                json_answer(Parameters::of(query, &[]).map(|_| self.overrides()))
            }
            Endpoint::Audit => json_answer(
                Parameters::of(query, &["count"])
                    .and_then(|parameters| parameters.count())
                    .map(|count| json!({ "changes": self.audit.latest(count) })),
            ),
            Endpoint::Refusals | Endpoint::Refusal | Endpoint::Top | Endpoint::History => {
                self.traffic(endpoint, uri)
            }
            Endpoint::Log => self.log_page(query),
            // They have bodies.
            Endpoint::Key | Endpoint::Change(_) | Endpoint::Reload => {
                not_allowed(endpoint.methods())
            }
        }
    }

    fn metrics(&self) -> String {
        render_metrics(MetricSources {
            engine: &self.engine,
            live: &self.live.load(),
            counters: &self.counters,
            status: &self.status,
            connections: &self.connections,
            memory: &self.memory,
            certificates: &self.certificates,
            audit: &self.audit,
            process: &self.process,
        })
    }

    fn routes(&self, query: Option<&str>) -> Result<Value, Unanswered> {
        let query = RouteQuery::parse(query.unwrap_or_default());
        let query = query.map_err(|detail| query::bad_request(detail.to_owned()))?;
        let live = self.live.load();
        Ok(routes::listing(&live.generation.policy().routes, &self.counters, &query))
    }

    /// Answers a question about a key, or makes a change.
    async fn answer_post(
        &self,
        endpoint: Endpoint,
        session: &mut ServerSession,
    ) -> Response<Vec<u8>> {
        let answer = match tokio::time::timeout(BODY_TIMEOUT, read_body(session)).await {
            Ok(Ok(text)) => match (endpoint, self.operator(session)) {
                (Endpoint::Change(change), operator) => {
                    self.change_key(change, &text, &operator).await
                }
                (Endpoint::Reload, operator) => match self.reload(&operator).await {
                    Ok(outcome) => return reload_answer(outcome),
                    Err(unanswered) => Err(unanswered),
                },
                _ => self.key_state(&text).await,
            },
            Ok(Err(unanswered)) => Err(unanswered),
            Err(_) => Err(Unanswered {
                status: StatusCode::REQUEST_TIMEOUT,
                detail: format!("the body did not come within {BODY_TIMEOUT:?}"),
            }),
        };
        if let Err(Unanswered {
            status: StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT,
            ..
        }) = answer
        {
            // The rest of the body is not read.
            session.set_keepalive(None);
        }
        json_answer(answer)
    }

    /// Who sent a request, for the audit log.
    fn operator(&self, session: &ServerSession) -> Operator {
        let named = self.by_header.as_ref().and_then(|name| session.req_header().headers.get(name));
        let named = named.and_then(|name| name.to_str().ok());
        let named = named.filter(|name| !name.is_empty() && name.len() <= MAX_OPERATOR_NAME);
        let address = client_address(session).map(|address| address.to_string());
        Operator { by: named.unwrap_or("token").to_owned(), from: address.unwrap_or_default() }
    }

    /// Whether the token is the configured one. The comparison takes a time that depends on the length only.
    fn accepts_token(&self, given: Option<&[u8]>) -> bool {
        let live = self.live.load();
        let Some(wanted) = &live.admin_token else {
            return true;
        };
        let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or(b"");
        let differences = wanted.bytes().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
        given.len() == wanted.len() && differences == 0
    }
}

fn client_address(session: &ServerSession) -> Option<IpAddr> {
    session.client_addr()?.as_inet().map(|address| unmapped(address.ip()))
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
