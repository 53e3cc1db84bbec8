//! A [`Limiter`] in the phases of a Pingora proxy.
//!
//! Keep a [`RequestLimit`] in the context of each request, call it in three phases, and add [`Limiter::background`] to the
//! server. [`RequestLimit`] shows the calls; `examples/embed.rs` is a whole program.
//!
//! The phases judge and settle. They change nothing of what is forwarded: what the proxy itself does to a request
//! (`method_override: strip`, `underscores: drop`, decoding of escapes in the path) is left to your own
//! `upstream_request_filter`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use async_trait::async_trait;
use http::{StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::server::ShutdownWatch;
use pingora::services::background::{BackgroundService, GenBackgroundService};
use pingora::{Error, ErrorSource, ErrorType, Result};
use pingora_proxy::Session;

use super::action::Action;
use super::delay;
use super::discard::{expects_continue, linger};
use super::judge::Limiter;
use super::judged::{Judged, is_final};
use crate::http::{Head, Refusal};

/// The limits of one request: what a Pingora proxy keeps in its `CTX` (or in its `CTX`'s extensions).
///
/// ```
/// use async_trait::async_trait;
/// use pingora::http::ResponseHeader;
/// use pingora::prelude::*;
/// use pingora_proxy::{ProxyHttp, Session};
/// use tollgate::Limiter;
/// use tollgate::plugin::RequestLimit;
///
/// struct MyProxy(Limiter);
///
/// #[async_trait]
/// impl ProxyHttp for MyProxy {
///     type CTX = RequestLimit;
///     fn new_ctx(&self) -> RequestLimit {
///         RequestLimit::default()
///     }
///     async fn request_filter(&self, session: &mut Session, ctx: &mut RequestLimit) -> Result<bool> {
///         ctx.request_filter(&self.0, session).await
///     }
///     async fn response_filter(
///         &self,
///         _: &mut Session,
///         response: &mut ResponseHeader,
///         ctx: &mut RequestLimit,
///     ) -> Result<()> {
///         ctx.response_filter(response)
///     }
///     async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut RequestLimit) {
///         ctx.logging(session, error);
///     }
///     async fn upstream_peer(&self, _: &mut Session, _: &mut RequestLimit) -> Result<Box<HttpPeer>> {
///         Ok(Box::new(HttpPeer::new("127.0.0.1:9000", false, String::new())))
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct RequestLimit {
    judged: Option<Judged>,
    /// Whether an origin gave a final answer.
    is_answered: bool,
}

impl RequestLimit {
    /// Judges the request. Waits for its delay, if it has one. Answers it if it is refused, and returns true: Pingora then
    /// forwards nothing.
    ///
    /// A subrequest of Pingora's cache is not judged: the server makes it itself, with the head of a request that was.
    ///
    /// # Errors
    ///
    /// The refusal cannot be written, or the client left while the request waited. Return the error from your
    /// `request_filter`: Pingora then forwards nothing.
    pub async fn request_filter(
        &mut self,
        limiter: &Limiter,
        session: &mut Session,
    ) -> Result<bool> {
        if session.subrequest_ctx.is_some() {
            return Ok(false);
        }
        let peer = session.client_addr().and_then(|address| address.as_inet());
        // Only a socket without an address (a Unix socket) has no peer.
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        let judged = limiter.judge_header(session.req_header(), peer).await;
        let action = judged.action();
        let judged = self.judged.insert(judged);
        match action {
            Action::Forward { delay } => {
                let waited = match delay.is_zero() {
                    true => Ok(()),
                    false => delay::wait(session, delay).await,
                };
                judged.end_delay();
                waited.map(|()| false)
            }
            Action::Refuse(refusal) => {
                refuse(session, judged, refusal).await?;
                Ok(true)
            }
        }
    }

    /// Settles the request by the origin's answer, and adds the rate limit fields.
    ///
    /// # Errors
    ///
    /// A field cannot be written.
    pub fn response_filter(&mut self, response: &mut ResponseHeader) -> Result<()> {
        let Some(judged) = self.judged.as_mut().filter(|_| is_final(response.status)) else {
            return Ok(());
        };
        self.is_answered = true;
        judged.settle(response.status, &response.headers);
        judged.write_fields_to_head(response)
    }

    /// Settles a request that has no answer of an origin, and frees its slots in flight.
    ///
    /// Where you answered it yourself (or returned an error with a status of your own, `ErrorType::HTTPStatus`), `count`,
    /// `refund` and costs read your answer. Where the origin failed, `refund` reads the status that the client was told;
    /// if nothing was written, that is 502. A client that left before an answer gets nothing back.
    pub fn logging(&mut self, session: &Session, error: Option<&Error>) {
        let Some(mut judged) = self.judged.take() else {
            return;
        };
        if self.is_answered || judged.is_refused() {
            return;
        }
        let written = session.response_written().filter(|response| is_final(response.status));
        match (written, error) {
            (_, Some(error)) if *error.esource() == ErrorSource::Downstream => {}
            (Some(own), None) => judged.answered_locally(own.status, &own.headers),
            // The origin may have been asked, so its reserve stays.
            (Some(own), Some(error)) if is_own_answer(error) => {
                judged.settle(own.status, &own.headers);
            }
            (Some(failure), Some(_)) => judged.failed(failure.status),
            (None, _) => judged.failed(StatusCode::BAD_GATEWAY),
        }
    }

    /// The judged request, between `request_filter` and `logging`.
    pub fn judged(&self) -> Option<&Judged> {
        self.judged.as_ref()
    }
}

impl Limiter {
    /// [`Limiter::judge`] for Pingora's type, which keeps bytes of a target that a URI cannot hold.
    pub async fn judge_header(&self, request: &RequestHeader, peer: IpAddr) -> Judged {
        self.judge_head(Head::of(request), peer).await
    }

    /// The background work as a service: `server.add_service(limiter.background())`.
    pub fn background(&self) -> GenBackgroundService<Background> {
        let task = Background { limiter: self.clone() };
        GenBackgroundService::new("tollgate".to_owned(), Arc::new(task))
    }
}

/// The background work of a limiter as a Pingora service: see [`Limiter::background`].
///
/// ```
/// use pingora::services::background::GenBackgroundService;
/// use tollgate::plugin::Background;
/// use tollgate::{Limiter, LimiterError};
///
/// let limiter = Limiter::builder().policy_text("version: 1\nroutes: [{ name: site }]").build()?;
/// let service: GenBackgroundService<Background> = limiter.background();
/// // server.add_service(service);
/// # drop(service);
/// # Ok::<(), LimiterError>(())
/// ```
#[derive(Debug)]
pub struct Background {
    limiter: Limiter,
}

#[async_trait]
impl BackgroundService for Background {
    /// Goes on until the process ends: after the signal, which comes when shutdown begins, requests still continue.
    async fn start(&self, _: ShutdownWatch) {
        self.limiter.run_background().await;
    }
}

/// Whether the program chose the status of an error itself.
fn is_own_answer(error: &Error) -> bool {
    matches!(error.etype(), ErrorType::HTTPStatus(_)) && *error.esource() != ErrorSource::Upstream
}

/// Answers a refused request. An HTTP/1 connection closes if the request is not valid or its body is not read; then a
/// bounded part of the body is read, so that the client sees the answer rather than a reset.
async fn refuse(session: &mut Session, judged: &Judged, refusal: Refusal) -> Result<()> {
    let version = session.req_header().version;
    let mut head = match version {
        Version::HTTP_2 => ResponseHeader::build_no_case(refusal.status, None)?,
        _ => ResponseHeader::build(refusal.status, None)?,
    };
    for (name, value) in &refusal.headers {
        head.append_header(name, value)?;
    }
    let is_unread = version != Version::HTTP_2 && !session.is_body_done();
    if is_unread || judged.is_invalid() {
        session.set_keepalive(None);
    }
    // Over HTTP/2 the framework would send the body of an answer to HEAD, which clients take for an error.
    let without_body = session.req_header().method == http::Method::HEAD;
    session.write_response_header(Box::new(head), without_body).await?;
    if !without_body {
        session.write_response_body(Some(refusal.body), true).await?;
    }
    if is_unread && !expects_continue(session) {
        // The answer must be on its way before the rest is read.
        session.finish_body().await?;
        linger(session, judged.discard_bounds()).await;
    }
    Ok(())
}
