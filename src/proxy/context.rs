//! What the phases share: the proxy's state, and the context of one request.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use pingora_proxy::Session;

use super::access_record::AccessSink;
use super::failure_reason::FailureReason;
use super::live::Live;
use super::origins::{AllOriginSlots, InFlight, OriginGroup, OriginSlot};
use super::request_id::{RequestId, RequestIds};
use super::traffic::{RequestOutcome, TrafficCounters};
use super::tunnel::TunnelEnd;
use crate::clock::{Nanos, Now};
use crate::config::{Responses, RouteEdits};
use crate::edge::{Cutoff, ExpectedResponse, MemoryBudget, RequestMemory, ShedReason};
use crate::engine::{Decision, Engine, FinalResponse, PendingSettlement};
use crate::http::{AnswerPreferences, RateLimitFields, RejectReason, UncommonFields};
use crate::policy::Route;
use crate::policy::client::RequestClient;

/// The proxy: what all requests share.
pub struct Tollgate {
    /// Decides and charges.
    pub engine: Arc<Engine>,
    /// The configuration in force.
    pub live: Arc<ArcSwap<Live>>,
    /// Counters of routes, refusals and shed load.
    pub counters: Arc<TrafficCounters>,
    /// Receives the access record of each request.
    pub access: Arc<dyn AccessSink>,
    /// Makes identifiers of requests.
    pub request_ids: Arc<RequestIds>,
    /// Slots of exchanges with all origins together.
    pub origin_slots: Arc<AllOriginSlots>,
    /// The memory that clients make the process use.
    pub memory: Arc<MemoryBudget>,
    /// Set when the process is about to end: connections close after their response.
    pub leaving: Arc<AtomicBool>,
    /// Cuts the connections of clients when the process ends.
    pub(crate) cutoff: Arc<Cutoff>,
}

/// Everything that is known about one request. Dropping it frees its slots and leaves unsettled charges spent.
pub struct Context {
    pub(super) live: Arc<Live>,
    pub(super) began: Now,
    /// The date when it began, since the Unix epoch.
    pub(super) date: Nanos,
    pub(super) client: Option<RequestClient>,
    pub(super) host: Arc<str>,
    /// Fields of the head that need a second look before they are forwarded.
    pub(super) uncommon: UncommonFields,
    /// The canonical path with the query, where it differs from what the client wrote.
    pub(super) rewritten: Option<Box<str>>,
    /// The URL that the request is redirected to.
    pub(super) location: Option<Box<str>>,
    pub(super) request_id: Option<RequestId>,
    pub(super) decision: Option<Decision>,
    /// Slots in flight, and charges that the response may change.
    pub(super) pending: PendingSettlement,
    pub(super) rejected: Option<RejectReason>,
    pub(super) outcome: Option<RequestOutcome>,
    /// Servers that could not be connected to.
    pub(super) tried: Vec<SocketAddr>,
    /// Whether the request was sent a second time.
    pub(super) sent_again: bool,
    /// The server that was chosen last, unless connecting to it failed.
    pub(super) asked: Option<SocketAddr>,
    /// How often a server was chosen.
    pub(super) attempts: u32,
    /// Counts the request for its server, where the choice of servers depends on that.
    pub(super) in_flight: Option<InFlight>,
    /// Held from the choice of a server to the end of the exchange.
    pub(super) origin_slot: Option<OriginSlot>,
    /// What was short, if the request was refused for that.
    pub(super) shed: Option<ShedReason>,
    /// Whether it is certain that no origin was asked, and none will be.
    pub(super) is_unforwarded: bool,
    /// Memory that the request holds, from its first wait to its end.
    pub(super) held: Option<RequestMemory>,
    /// The response in progress.
    pub(super) expected: Option<ExpectedResponse>,
    pub(super) origin: Option<Arc<OriginGroup>>,
    pub(super) origin_asked: Option<Nanos>,
    pub(super) origin_status: Option<u16>,
    /// When the head of its response came.
    pub(super) origin_answered: Option<Nanos>,
    /// The status of a response that did not go through the framework.
    pub(super) answered: Option<u16>,
    /// Bytes of the body of that response.
    pub(super) answered_bytes: u64,
    /// Why the request failed, or its answer did not come to its end.
    pub(super) failure: Option<FailureReason>,
    /// How the tunnel ended, where the connection became one.
    pub(super) tunnel: Option<TunnelEnd>,
    pub(super) body_read: u64,
    /// When the last piece of the body came; 0 before the first one.
    pub(super) body_at: Nanos,
}

impl Context {
    /// The context of a request that has not been read yet.
    pub(super) fn new(live: Arc<Live>) -> Self {
        Self {
            live,
            began: Now { mono: Nanos::ZERO, wall: Nanos::ZERO },
            date: Nanos::ZERO,
            client: None,
            host: Arc::default(),
            uncommon: UncommonFields::NONE,
            rewritten: None,
            location: None,
            request_id: None,
            decision: None,
            pending: PendingSettlement::default(),
            rejected: None,
            outcome: None,
            tried: Vec::new(),
            sent_again: false,
            asked: None,
            attempts: 0,
            in_flight: None,
            origin_slot: None,
            shed: None,
            is_unforwarded: false,
            held: None,
            expected: None,
            origin: None,
            origin_asked: None,
            origin_status: None,
            origin_answered: None,
            answered: None,
            answered_bytes: 0,
            failure: None,
            tunnel: None,
            body_read: 0,
            body_at: Nanos::ZERO,
        }
    }

    /// The client. Before the request was read: the unspecified address, from an untrusted peer.
    pub(super) fn client(&self) -> RequestClient {
        self.client.unwrap_or(RequestClient {
            ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            ipv6_prefix: self.live.ipv6_prefix(),
            peer_trusted: false,
        })
    }

    /// Whether the peer is a trusted proxy.
    pub(super) fn peer_trusted(&self) -> bool {
        self.client.is_some_and(|client| client.peer_trusted)
    }

    /// The server that was asked last, whether or not it answered. `None` if no server was chosen.
    pub(super) fn server(&self) -> Option<SocketAddr> {
        self.asked.or_else(|| self.tried.last().copied())
    }

    /// How often the request was sent, or a connection for it tried, beyond the first time.
    pub(super) fn retries(&self) -> u32 {
        self.attempts.saturating_sub(1)
    }

    /// The route, if one matched.
    pub(super) fn route(&self) -> Option<&Route> {
        let route = self.decision.as_ref()?.route?;
        Some(self.live.generation.policy().route(route))
    }

    /// The identifier of the request; empty before it has one.
    pub(super) fn request_id(&self) -> &str {
        self.request_id.as_ref().map_or("", RequestId::as_str)
    }

    /// What is changed in the header fields of the request and of its answer.
    pub(super) fn edits(&self) -> Option<&RouteEdits> {
        self.live.edits(self.decision.as_ref()?.route?)
    }

    /// How our own answers to the request look.
    pub(super) fn responses(&self) -> &Responses {
        self.live.responses(self.decision.as_ref().and_then(|decision| decision.route))
    }

    /// What the client prefers in our own answer.
    pub(super) fn preferences<'r>(&'r self, session: &'r Session) -> AnswerPreferences<'r> {
        AnswerPreferences {
            headers: &session.req_header().headers,
            chance: fastrand::f64(),
            request_id: self.request_id(),
        }
    }

    /// The rate limit fields for the client, as its route is configured. `None` before the decision.
    pub(super) fn rate_limit_fields(&self) -> Option<RateLimitFields<'_>> {
        let decision = self.decision.as_ref()?;
        let responses = self.live.responses(decision.route);
        let (policy, members) = (self.live.generation.policy(), Some(&self.live.members));
        Some(RateLimitFields { members, ..RateLimitFields::new(decision, policy, responses) })
    }
}

impl Tollgate {
    /// Settles the charges of a request that has its response.
    pub(super) fn finish(&self, ctx: &mut Context, response: &FinalResponse<'_>) {
        if let Some(decision) = ctx.decision.as_mut().filter(|_| ctx.pending.awaits_response()) {
            self.engine.finish(&ctx.live.generation, decision, &mut ctx.pending, response);
        }
    }

    /// Settles the charges of a request for which no origin was asked.
    pub(super) fn finish_unforwarded(&self, ctx: &mut Context, status: u16) {
        if let Some(decision) = ctx.decision.as_mut().filter(|_| ctx.pending.awaits_response()) {
            let (engine, generation) = (&self.engine, &ctx.live.generation);
            engine.finish_unforwarded(generation, decision, &mut ctx.pending, status);
        }
    }
}
