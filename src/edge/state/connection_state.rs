//! The state that a connection's stream shares with the requests on it.
//!
//! The stream reads what it may read and write and for how long; requests set it. Over HTTP/1 one request is served
//! at a time, so the state of the current request is kept here as well; over HTTP/2 only what concerns the connection
//! is used. It does not know the framework's phases. What must always hold: [`ConnectionState::begin_request`] resets
//! everything that concerns one request.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use pingora::http::ResponseHeader;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora_proxy::Session;

use super::errors::StreamCut;
use super::expected_response::ExpectedBytes;
use super::pending_output::PendingOutput;
use crate::clock::Nanos;
use crate::edge::tls::{ServedCertificate, TrustedClient};
use crate::http::{RejectReason, ScannedHead};
use crate::policy::ConnectionFacts;

/// Shared by a connection's stream and the requests on it. Request and stream are polled by one task at a time over
/// HTTP/1, so relaxed order is enough for the atomics of a request.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    facts: ConnectionFacts,
    /// The certificate that the connection was served, if its listener has others.
    certificate: Option<ServedCertificate>,
    /// What the client's certificate was checked against, if its listener asks for one.
    trusted: Option<TrustedClient>,
    /// The connection's address as a header value; written once for all requests.
    peer_text: OnceLock<HeaderValue>,
    /// Why the stream was cut.
    cut: OnceLock<RejectReason>,
    /// Whether the connection has left HTTP for another protocol.
    is_switched: AtomicBool,
    pub(super) expected: ExpectedBytes,

    /// The scan of the current request's head.
    scanned: Mutex<Option<ScannedHead>>,
    head_bytes: AtomicUsize,
    /// An [`OriginProgress`].
    progress: AtomicU8,
    /// Nanoseconds for which the origin may be silent within its response.
    response_patience: AtomicU64,
    /// Nanoseconds for which the origin may be silent before its response; 0 if the framework watches that.
    origin_timeout: AtomicU64,
    /// Whether the request was refused, so that no origin knows of it.
    is_refused: AtomicBool,
    /// The largest number of bytes of the body that are read from the client.
    max_body: AtomicUsize,
    output: PendingOutput,
}

/// How far the origin's response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum OriginProgress {
    NotBegun,
    Begun,
    Ended,
}

/// What an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::edge) enum Awaited {
    /// The client's body.
    Body,
    /// The rest of the origin's response; the origin may be silent for this long. Meanwhile the client may take its
    /// time with the rest of its body.
    Origin(Nanos),
    /// Nothing: the response is complete, and the rest of the body is of no use.
    Nothing,
}

impl ConnectionState {
    /// The state of a new connection. `certificate`: what it was served, if its listener has other certificates.
    pub(in crate::edge) fn new(
        facts: ConnectionFacts,
        certificate: Option<ServedCertificate>,
        trusted: Option<TrustedClient>,
    ) -> Self {
        Self {
            facts,
            certificate,
            trusted,
            peer_text: OnceLock::new(),
            cut: OnceLock::new(),
            is_switched: AtomicBool::new(false),
            expected: ExpectedBytes::default(),
            scanned: Mutex::default(),
            head_bytes: AtomicUsize::new(0),
            progress: AtomicU8::new(OriginProgress::NotBegun as u8),
            response_patience: AtomicU64::new(0),
            origin_timeout: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            max_body: AtomicUsize::new(usize::MAX),
            output: PendingOutput::default(),
        }
    }

    /// The state of the connection that a session is served on, if it came through our stream.
    pub(crate) fn of(session: &Session) -> Option<&Arc<Self>> {
        let digest = session.digest()?.proxy_digest.as_ref()?;
        digest.user_data.as_ref()?.downcast_ref()
    }

    /// The facts of the connection that a session is served on.
    pub(crate) fn facts_of(session: &Session) -> &ConnectionFacts {
        Self::of(session).map_or(&ConnectionFacts::NONE, |connection| &connection.facts)
    }

    /// The digest through which [`Self::of`] finds the state.
    pub(in crate::edge) fn to_digest(self: &Arc<Self>) -> pingora::Result<ProxyDigest> {
        // The framework provides this digest for CONNECT proxies; it also carries arbitrary user data.
        let unused = Box::new(ResponseHeader::build(200, Some(0))?);
        Ok(ProxyDigest::new(unused, Some(Box::new(Arc::clone(self)))))
    }
}

/// What concerns the connection.
impl ConnectionState {
    /// Whether a request for a host came over the wrong connection.
    pub(crate) fn is_misdirected(&self, host: &str) -> bool {
        self.certificate.as_ref().is_some_and(|served| served.is_misdirected(host))
    }

    /// Whether the client's certificate was checked against authorities that a reload has replaced since.
    pub(crate) fn is_trust_outdated(&self) -> bool {
        self.trusted.as_ref().is_some_and(TrustedClient::is_outdated)
    }

    /// The connection's address as a header value; `write` is called for the first request only.
    pub(crate) fn peer_text(
        &self,
        write: impl FnOnce() -> pingora::Result<HeaderValue>,
    ) -> pingora::Result<HeaderValue> {
        if let Some(text) = self.peer_text.get() {
            return Ok(text.clone());
        }
        write().map(|text| self.peer_text.get_or_init(|| text).clone())
    }

    /// Records why the stream is cut, and returns the error. The first reason is kept.
    pub(in crate::edge) fn cut_for(&self, reason: RejectReason) -> StreamCut {
        StreamCut(*self.cut.get_or_init(|| reason))
    }

    /// Why the stream was cut, if it was.
    pub(in crate::edge) fn cut_reason(&self) -> Option<RejectReason> {
        self.cut.get().copied()
    }

    /// Whether the origin has agreed to another protocol: from then on the bytes are not HTTP.
    pub(in crate::edge) fn is_switched(&self) -> bool {
        self.is_switched.load(Ordering::Acquire)
    }

    /// The largest number of bytes that all responses in progress can have on their way to the client.
    pub(in crate::edge) fn expected_response_bytes(&self) -> usize {
        self.expected.get()
    }
}

/// What concerns the current request of HTTP/1.
impl ConnectionState {
    /// A new request begins. `scanned`: the scan of its head; `head_bytes`: the size of the head.
    pub(in crate::edge) fn begin_request(&self, scanned: Option<ScannedHead>, head_bytes: usize) {
        *self.scanned.lock() = scanned;
        self.head_bytes.store(head_bytes, Ordering::Relaxed);
        self.set_progress(OriginProgress::NotBegun);
        self.is_refused.store(false, Ordering::Relaxed);
        self.max_body.store(usize::MAX, Ordering::Relaxed);
        self.output.clear();
        self.origin_timeout.store(0, Ordering::Relaxed);
    }

    /// Takes the scan of the request's head; `None` after the first call.
    pub(crate) fn take_scanned(&self) -> Option<ScannedHead> {
        self.scanned.lock().take()
    }

    /// Bytes of the request's head; 0 over HTTP/2.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// Asks the stream to fail with [`OriginSilent`](super::OriginSilent) if the origin is silent for longer.
    pub(crate) fn set_origin_timeout(&self, timeout: Duration) {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.origin_timeout.store(nanos, Ordering::Relaxed);
    }

    /// For how long the origin may be silent, if the stream is to watch that.
    pub(in crate::edge) fn origin_timeout(&self) -> Option<Duration> {
        let nanos = self.origin_timeout.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// The origin's response begins. `is_switch`: with status 101; `patience`: for how long the origin may be silent.
    pub(crate) fn begin_response(&self, is_switch: bool, patience: Nanos) {
        self.response_patience.store(patience.get(), Ordering::Relaxed);
        self.set_progress(OriginProgress::Begun);
        if is_switch {
            self.origin_timeout.store(0, Ordering::Relaxed);
            self.is_switched.store(true, Ordering::Release);
        }
    }

    /// The origin's response is complete.
    pub(crate) fn end_response(&self) {
        self.set_progress(OriginProgress::Ended);
    }

    fn set_progress(&self, progress: OriginProgress) {
        self.progress.store(progress as u8, Ordering::Relaxed);
    }

    /// What the exchange waits for while nothing comes from its client.
    pub(in crate::edge) fn awaited(&self) -> Awaited {
        const NOT_BEGUN: u8 = OriginProgress::NotBegun as u8;
        const BEGUN: u8 = OriginProgress::Begun as u8;
        match self.progress.load(Ordering::Relaxed) {
            NOT_BEGUN => Awaited::Body,
            BEGUN => Awaited::Origin(Nanos::new(self.response_patience.load(Ordering::Relaxed))),
            _ => Awaited::Nothing,
        }
    }

    /// Refuses the request: at most `max_body` bytes of its body are read, including those that came with its head.
    pub(crate) fn refuse(&self, max_body: usize) {
        self.max_body.store(max_body, Ordering::Relaxed);
        self.is_refused.store(true, Ordering::Relaxed);
        // Lines for an origin's response go into ours instead.
        self.output.clear();
    }

    /// Whether the request is refused.
    pub(in crate::edge) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// The largest number of bytes of the body that are read from the client.
    pub(in crate::edge) fn max_body(&self) -> usize {
        self.max_body.load(Ordering::Relaxed)
    }

    /// Queues lines that the stream writes into the head of the final response, after the framework's.
    pub(crate) fn queue_head_lines(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.output.queue_head_lines(write);
    }

    /// Queues a complete response that the stream writes when it is next flushed.
    pub(crate) fn queue_response(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.output.queue_response(write);
    }

    /// Writes a head with the queued lines; see [`PendingOutput::write_head`].
    pub(in crate::edge) fn write_head(&self, head: &[u8], out: &mut Vec<u8>) -> bool {
        self.output.write_head(head, out)
    }

    /// Writes the queued response, if there is one.
    pub(in crate::edge) fn write_response(&self, out: &mut Vec<u8>) {
        self.output.write_response(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_request_or_a_refusal_drops_queued_output() {
        let state = ConnectionState::new(ConnectionFacts::NONE, None, None);
        let mut out = Vec::new();
        state.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        state.begin_request(None, 0);
        assert!(!state.write_head(b"HTTP/1.1 200 OK\r\n\r\n", &mut out));
        state.queue_response(|out| out.extend_from_slice(b"x"));
        state.refuse(0);
        state.write_response(&mut out);
        assert!(out.is_empty());
    }
}
