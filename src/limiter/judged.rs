//! One judged request, until its answer has been sent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::action::Action;
#[cfg(feature = "pingora")]
use super::discard::DiscardBounds;
use super::judge::LimiterState;
use super::loaded::LoadedPolicy;
use crate::engine::{Decision, FinalResponse, PendingSettlement};
use crate::http::{AnswerPreferences, InvalidField, Refusal, RejectReason, render};

/// A judged request. Keep it until the answer has been sent; it keeps the policy that judged it.
///
/// Dropping it frees the request's slots in flight. Charges that depend on the answer, and were not settled, stay.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tollgate::Judged;
///
/// /// What a proxy does with the answer of an origin, or without one.
/// fn answer(mut judged: Judged, answer: Option<(StatusCode, &mut HeaderMap)>) {
///     match answer {
///         Some((status, headers)) => judged.answered(status, headers),
///         None => judged.failed(StatusCode::BAD_GATEWAY),
///     }
/// }
/// ```
#[must_use = "call action; dropping it ends the request"]
pub struct Judged {
    shared: Arc<LimiterState>,
    loaded: Arc<LoadedPolicy>,
    decision: Result<Decision, RejectReason>,
    pending: PendingSettlement,
    refusal: Option<Refusal>,
}

impl Judged {
    pub(super) fn new(
        shared: Arc<LimiterState>,
        loaded: Arc<LoadedPolicy>,
        decision: Result<Decision, RejectReason>,
        pending: PendingSettlement,
        headers: &HeaderMap,
    ) -> Self {
        let refusal = refusal(&loaded, &decision, headers);
        Self { shared, loaded, decision, pending, refusal }
    }

    /// What to do with the request.
    pub fn action(&self) -> Action {
        match &self.refusal {
            Some(refusal) => Action::Refuse(refusal.clone()),
            None => Action::Forward { delay: self.delay() },
        }
    }

    /// Waits for the request's delay, and ends it. Needs a Tokio runtime if the delay is not zero.
    pub async fn wait(&mut self) {
        let delay = self.delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.end_delay();
    }

    /// Records that the request has waited for its delay. Until then it counts as a waiting one, of which there are at
    /// most 10,000. [`Judged::wait`] does this.
    pub fn end_delay(&mut self) {
        self.pending.end_delay();
    }

    /// Settles the request by the origin's answer, and adds `RateLimit`, `RateLimit-Policy` and what else the policy's
    /// `responses` ask for. Fields that the origin set are kept. An interim answer (1xx) settles nothing, except 101.
    ///
    /// Only the first final answer settles; of a refused request there is nothing to settle.
    pub fn answered(&mut self, status: StatusCode, headers: &mut HeaderMap) {
        if !is_final(status) {
            return;
        }
        self.settle(status, headers);
        if let Some(Err(error)) = self.write_fields(headers) {
            log::error!("a rate limit field is left out: {error}");
        }
    }

    /// Settles a request that no origin answered; `status` is what the client was told instead. Refunds that a policy
    /// grants for this status (`refund`, `count`) are made.
    pub fn failed(&mut self, status: StatusCode) {
        let headers = HeaderMap::new();
        self.finish(&FinalResponse {
            status: status.as_u16(),
            headers: &headers,
            by_origin: false,
        });
    }

    /// The name of the route, if one matched.
    pub fn route(&self) -> Option<&str> {
        let index = self.decision.as_ref().ok()?.route?;
        Some(&*self.loaded.generation.policy().route(index).name)
    }

    /// The name of the limit that decided: the first that refuses, otherwise the one with the least left.
    pub fn limit(&self) -> Option<&str> {
        let deciding = self.decision.as_ref().ok()?.deciding()?;
        Some(&*self.loaded.generation.policy().limit(deciding.limit).name)
    }

    /// Why the request is refused if no limit refuses it, as in the body of the refusal: `path`, `no_route` and so on.
    pub fn reason(&self) -> Option<&'static str> {
        match &self.decision {
            Ok(decision) => render::reason(decision).map(|(reason, _)| reason.name()),
            Err(reason) => Some(reason.name()),
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    pub(super) fn settle(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.finish(&FinalResponse { status: status.as_u16(), headers, by_origin: true });
    }

    /// How much of the body is read if the request is refused.
    #[cfg(feature = "pingora")]
    pub(super) fn discard_bounds(&self) -> DiscardBounds {
        self.loaded.discard
    }

    /// Whether the request is not valid: its framing, and what follows it on its connection, may be in doubt.
    #[cfg(feature = "pingora")]
    pub(super) fn is_invalid(&self) -> bool {
        self.decision.is_err()
    }

    /// Settles a request that the program answered itself, without an origin: by its own status and fields.
    #[cfg(feature = "pingora")]
    pub(super) fn answered_locally(&mut self, status: StatusCode, headers: &HeaderMap) {
        if let Ok(decision) = &mut self.decision {
            let (engine, generation) = (&self.shared.engine, &self.loaded.generation);
            engine.finish_local(generation, decision, &mut self.pending, status.as_u16(), headers);
        }
    }

    fn finish(&mut self, response: &FinalResponse<'_>) {
        if let Ok(decision) = &mut self.decision {
            let generation = &self.loaded.generation;
            self.shared.engine.finish(generation, decision, &mut self.pending, response);
        }
    }

    /// `None`: the request was not valid, and has no fields.
    fn write_fields(&self, headers: &mut HeaderMap) -> Option<Result<(), InvalidField>> {
        Some(self.loaded.fields(self.decision.as_ref().ok()?).add_to(headers))
    }

    /// The same for Pingora, which keeps the case of names.
    #[cfg(feature = "pingora")]
    pub(super) fn write_fields_to_head(
        &self,
        head: &mut pingora::http::ResponseHeader,
    ) -> pingora::Result<()> {
        match &self.decision {
            Ok(decision) => self.loaded.fields(decision).add_to_head(head),
            Err(_) => Ok(()),
        }
    }

    fn delay(&self) -> Duration {
        self.decision.as_ref().map(|decision| decision.wait().into()).unwrap_or_default()
    }
}

/// Whether no other answer follows. After 101 the connection speaks another protocol.
pub(super) fn is_final(status: StatusCode) -> bool {
    !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS
}

/// The answer to a refused request.
fn refusal(
    loaded: &LoadedPolicy,
    decision: &Result<Decision, RejectReason>,
    headers: &HeaderMap,
) -> Option<Refusal> {
    // The server around this limiter has identifiers of its own.
    let preferences = AnswerPreferences { headers, chance: fastrand::f64(), request_id: "" };
    let reply = match decision {
        Err(reason) => {
            let responses = loaded.default_responses();
            render::rejected(*reason, reason.status(), responses, preferences)
        }
        Ok(decision) => render::reply(loaded.fields(decision), preferences)?,
    };
    let status = reply.status;
    Some(reply.into_refusal().unwrap_or_else(|error| {
        log::error!("a refusal is sent without fields: {error}");
        Refusal::bare(status)
    }))
}

impl fmt::Debug for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judged")
            .field("route", &self.route())
            .field("limit", &self.limit())
            .field("action", &self.action())
            .finish_non_exhaustive()
    }
}
