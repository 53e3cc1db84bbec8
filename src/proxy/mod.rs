//! The decision in front of an origin: Pingora's `ProxyHttp`, one phase per file.
//!
//! `request` judges (and answers what is refused), `upstream` chooses a server and says who asks,
//! `response` tells the client where it stands, `finish` records the outcome.

mod delay;
mod early_rejection;
mod failure_log;
mod finish;
mod http10;
mod live;
mod origin;
mod origin_slots;
mod request;
mod respond;
mod response;
mod tunnel;
mod upstream;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora::Result;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::prelude::HttpPeer;
use pingora::upstreams::peer::Peer;
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use crate::clock::{Nanos, Now};
use crate::edge::{ConnectionState, ExpectedResponse, MemoryBudget, RequestMemory, ShedReason};
use crate::engine::{Decision, Engine, FinalResponse, PendingSettlement};
use crate::http::{RateLimitFields, RejectReason, UncommonFields};
use crate::policy::client::RequestClient;
use origin_slots::OriginSlot;

pub use early_rejection::EarlyRejection;
pub use finish::{AccessRecord, AccessSink};
pub use live::{Fixed, Live, RequestOutcome, RouteTally, TrafficCounters};
pub use origin::{OriginGroup, OriginTally};
pub use origin_slots::{AllOriginSlots, OriginSlots};
pub use tunnel::TunnelEnd;

/// Servers of its origin that one request tries to connect to.
const MAX_TRIES: usize = 3;

/// The proxy. Shared by all connections.
pub struct Tollgate {
    /// What decides.
    pub engine: Arc<Engine>,
    /// What is loaded; swapped whole.
    pub live: Arc<ArcSwap<Live>>,
    /// What is counted.
    pub counters: Arc<TrafficCounters>,
    /// Where a line per request goes.
    pub access: Arc<dyn AccessSink>,
    /// Exchanges with all origins.
    pub origin_slots: Arc<AllOriginSlots>,
    /// Memory that clients make the process use.
    pub memory: Arc<MemoryBudget>,
    /// Whether connections are to be closed after their answer: the process is about to end.
    pub leaving: Arc<std::sync::atomic::AtomicBool>,
}

/// What is known of one request.
pub struct Context {
    live: Arc<Live>,
    began: Now,
    /// The date then.
    date: Nanos,
    client: Option<RequestClient>,
    host: Arc<str>,
    /// Whether the head may have fields of which an origin is not told all.
    rare: UncommonFields,
    /// The canonical path with the query, where it is not what the client wrote.
    rewritten: Option<Box<str>>,
    request_id: Option<upstream::RequestId>,
    decision: Option<Decision>,
    /// Places in flight, and charges that the answer may change.
    pending: PendingSettlement,
    rejected: Option<RejectReason>,
    outcome: Option<RequestOutcome>,
    /// Servers that could not be connected to.
    tried: Vec<SocketAddr>,
    /// Whether it was sent a second time.
    sent_again: bool,
    asked: Option<SocketAddr>,
    /// Held from the choice of a server to the end of the exchange.
    origin_slot: Option<OriginSlot>,
    /// What there was no room for.
    shed: Option<ShedReason>,
    /// Whether it is certain that no origin was asked, and none will be.
    is_unforwarded: bool,
    /// What the request holds, from when it waits for something to its end.
    held: Option<RequestMemory>,
    /// The answer in progress.
    expected: Option<ExpectedResponse>,
    origin: Option<Arc<OriginGroup>>,
    origin_asked: Option<Nanos>,
    origin_status: Option<u16>,
    /// The status of an answer that did not go through the framework.
    answered: Option<u16>,
    /// How the tunnel ended that the connection became, if it did.
    tunnel: Option<tunnel::TunnelEnd>,
    body_read: u64,
}

impl Context {
    /// The client. Before the request was read: an unspecified address that no peer vouches for.
    fn client(&self) -> RequestClient {
        self.client.unwrap_or(RequestClient {
            ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            ipv6_prefix: self.live.ipv6_prefix(),
            peer_trusted: false,
        })
    }

    /// Whether the peer is a trusted proxy.
    fn peer_trusted(&self) -> bool {
        self.client.is_some_and(|client| client.peer_trusted)
    }

    /// Where the client stands, as the route's operator wants it told.
    fn standing(&self) -> Option<RateLimitFields<'_>> {
        let decision = self.decision.as_ref()?;
        let responses = self.live.responses(decision.route);
        let (policy, members) = (self.live.generation.policy(), Some(&self.live.members));
        Some(RateLimitFields { decision, policy, responses, members })
    }
}

impl Tollgate {
    /// The request has its answer: what was charged becomes final.
    fn finish(&self, ctx: &mut Context, said: &FinalResponse<'_>) {
        if let Some(decision) = ctx.decision.as_mut().filter(|_| ctx.pending.awaits_response()) {
            self.engine.finish(&ctx.live.generation, decision, &mut ctx.pending, said);
        }
    }

    /// No origin was asked: what was charged becomes final.
    fn finish_unforwarded(&self, ctx: &mut Context, status: u16) {
        if let Some(decision) = ctx.decision.as_mut().filter(|_| ctx.pending.awaits_response()) {
            let (engine, generation) = (&self.engine, &ctx.live.generation);
            engine.finish_unforwarded(generation, decision, &mut ctx.pending, status);
        }
    }
}

#[async_trait]
impl ProxyHttp for Tollgate {
    // Boxed: the framework moves it from future to future.
    type CTX = Box<Context>;

    fn new_ctx(&self) -> Self::CTX {
        Box::new(Context {
            live: self.live.load_full(),
            began: Now { mono: Nanos::ZERO, wall: Nanos::ZERO },
            date: Nanos::ZERO,
            client: None,
            host: Arc::default(),
            rare: UncommonFields::NONE,
            rewritten: None,
            request_id: None,
            decision: None,
            pending: PendingSettlement::default(),
            rejected: None,
            outcome: None,
            tried: Vec::new(),
            sent_again: false,
            asked: None,
            origin_slot: None,
            shed: None,
            is_unforwarded: false,
            held: None,
            expected: None,
            origin: None,
            origin_asked: None,
            origin_status: None,
            answered: None,
            tunnel: None,
            body_read: 0,
        })
    }

    /// None: compression is not what this proxy is for.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    /// (By hand, as what would be made of an `async fn` whose future holds less.)
    fn request_filter<'gate, 'session, 'ctx, 'r>(
        &'gate self,
        session: &'session mut Session,
        ctx: &'ctx mut Self::CTX,
    ) -> request::Judging<'r>
    where
        'gate: 'r,
        'session: 'r,
        'ctx: 'r,
        Self: 'r,
    {
        request::judge(self, session, ctx)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<bytes::Bytes>,
        _end_of_stream: bool,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        request::bound_body(body.as_ref(), ctx)
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        ctx: &mut Self::CTX,
    ) -> Result<Box<HttpPeer>> {
        upstream::choose(self, session, ctx)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        upstream_request: &mut RequestHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        upstream::introduce(session, upstream_request, ctx)
    }

    fn fail_to_connect(
        &self,
        session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Self::CTX,
        error: Box<pingora::Error>,
    ) -> Box<pingora::Error> {
        let error = upstream::try_another(ctx, error);
        if error.retry() {
            failure_log::retried(self, session, ctx, &error);
        }
        error
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<pingora::Error>,
        ctx: &mut Self::CTX,
        client_reused: bool,
    ) -> Box<pingora::Error> {
        let error = tunnel::as_origins(error).more_context(format!("server {}", peer.address()));
        let error = upstream::send_again(session, ctx, error, client_reused);
        // A kept connection that ended meanwhile is no failure of the server.
        if error.retry() && !client_reused {
            failure_log::retried(self, session, ctx, &error);
        }
        error
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        ctx: &mut Self::CTX,
    ) -> Result<()> {
        response::tell(self, session, response, ctx)
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        _body: &mut Option<bytes::Bytes>,
        end_of_stream: bool,
        _ctx: &mut Self::CTX,
    ) -> Result<Option<std::time::Duration>> {
        if end_of_stream && let Some(connection) = ConnectionState::of(session) {
            connection.end_response();
        }
        Ok(None)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &pingora::Error,
        ctx: &mut Self::CTX,
    ) -> FailToProxy {
        let ended = respond::failure(self, session, error, ctx).await;
        failure_log::failed(self, session, ctx, error, ended.error_code);
        ended
    }

    /// Always: `fail_to_proxy` has told it, in words that hold nothing of the request.
    fn suppress_error_log(
        &self,
        _session: &Session,
        _ctx: &Self::CTX,
        _error: &pingora::Error,
    ) -> bool {
        true
    }

    /// Always: `failure_log` has told it.
    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _ctx: &Self::CTX,
        _error: &pingora::Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    /// What the framework's lines say of a request: not its target, as by default.
    fn request_summary(&self, session: &Session, ctx: &Self::CTX) -> String {
        failure_log::request(ctx, &upstream::RequestId::of(session, ctx))
    }

    async fn logging(
        &self,
        session: &mut Session,
        _error: Option<&pingora::Error>,
        ctx: &mut Self::CTX,
    ) {
        finish::book(self, session, ctx);
    }
}
