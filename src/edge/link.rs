//! What a connection and the requests on it tell each other.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use pingora::Error;
use pingora::http::ResponseHeader;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora_proxy::Session;

use super::certificates::ServedCertificate;
use super::memory_budget::MAX_RESPONSE_BYTES;
use crate::clock::Nanos;
use crate::http::{RejectReason, ScannedHead};

/// Shared by a connection's stream and the request that is served on it.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// What the connection was served, where its listener has others too.
    certificate: Option<ServedCertificate>,
    /// How far the origin's answer is.
    answer: AtomicU8,
    /// How long the origin may be silent, in nanoseconds.
    patience: AtomicU64,
    switched: AtomicBool,
    /// Whether the request was refused, so that no origin knows of it.
    refused: AtomicBool,
    most_body: AtomicUsize,
    cut: OnceLock<RejectReason>,
    /// What `words` are.
    saying: AtomicU8,
    words: Mutex<Vec<u8>>,
    peer_text: OnceLock<HeaderValue>,
    /// Nanoseconds for which the origin may be silent; none where the framework watches that.
    origin_timeout: AtomicU64,
    scanned: Mutex<Option<ScannedHead>>,
    /// Bytes of the present request's head.
    head_bytes: AtomicUsize,
    /// Most bytes that the answers in progress can have on their way to the client.
    expected: AtomicUsize,
}

/// The origin has not begun its answer.
const NOT_BEGUN: u8 = 0;
/// It has begun.
const BEGUN: u8 = 1;
/// It is whole.
const ENDED: u8 = 2;

/// No words.
const NOTHING: u8 = 0;
/// Lines that go into the head of the origin's answer.
const LINES: u8 = 1;
/// A whole answer.
const ANSWER: u8 = 2;

impl Default for ConnectionState {
    fn default() -> Self {
        Self {
            certificate: None,
            answer: AtomicU8::new(NOT_BEGUN),
            patience: AtomicU64::new(0),
            switched: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            most_body: AtomicUsize::new(usize::MAX),
            cut: OnceLock::new(),
            saying: AtomicU8::new(NOTHING),
            words: Mutex::default(),
            peer_text: OnceLock::new(),
            origin_timeout: AtomicU64::new(0),
            scanned: Mutex::default(),
            head_bytes: AtomicUsize::new(0),
            expected: AtomicUsize::new(0),
        }
    }
}

/// What an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The client's body.
    Body,
    /// The rest of the origin's answer, which may be silent for so long. Meanwhile the client may take
    /// its time with what is left of its body.
    Origin(Nanos),
    /// Nothing: the answer is whole, and what is left of the body is of no use.
    Nothing,
}

impl ConnectionState {
    /// The link of a connection that was served a certificate.
    pub(crate) fn over(certificate: Option<ServedCertificate>) -> Self {
        Self { certificate, ..Self::default() }
    }

    /// Whether a request for a host came over the wrong connection.
    pub(crate) fn is_misdirected(&self, host: &str) -> bool {
        self.certificate.as_ref().is_some_and(|served| served.is_misdirected(host))
    }

    /// A new request of HTTP/1 begins, whose head has so many bytes, and in which this was found.
    pub(crate) fn begin(&self, scanned: Option<ScannedHead>, head_bytes: usize) {
        *self.scanned.lock() = scanned;
        self.head_bytes.store(head_bytes, Ordering::Relaxed);
        self.answer.store(NOT_BEGUN, Ordering::Relaxed);
        self.refused.store(false, Ordering::Relaxed);
        self.most_body.store(usize::MAX, Ordering::Relaxed);
        self.saying.store(NOTHING, Ordering::Relaxed);
        self.origin_timeout.store(0, Ordering::Relaxed);
    }

    /// Asks the stream to watch that the origin is not silent for longer.
    pub(crate) fn set_origin_timeout(&self, patience: Duration) {
        let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.origin_timeout.store(nanos, Ordering::Relaxed);
    }

    /// For how long the origin may be silent, if the stream is to watch that.
    pub(crate) fn origin_timeout(&self) -> Option<Duration> {
        let nanos = self.origin_timeout.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// What was found in the request's head, for who asks first.
    pub(crate) fn take_scanned(&self) -> Option<ScannedHead> {
        self.scanned.lock().take()
    }

    /// Bytes of the present request's head; 0 over HTTP/2.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes.load(Ordering::Relaxed)
    }

    /// Most bytes that all answers in progress on this connection can have on their way to the client.
    pub(crate) fn expected_answers(&self) -> usize {
        self.expected.load(Ordering::Relaxed)
    }

    /// Lines that the stream is to write into the head of the final answer, beside the framework's.
    pub(crate) fn queue_head_lines(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.say(LINES, write);
    }

    /// A whole answer, which the stream is to write when it is next flushed.
    pub(crate) fn queue_response(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.say(ANSWER, write);
    }

    fn say(&self, what: u8, write: impl FnOnce(&mut Vec<u8>)) {
        let mut words = self.words.lock();
        words.clear();
        write(&mut words);
        // Request and stream are polled by one task at a time, so nothing is published here.
        self.saying.store(what, Ordering::Relaxed);
    }

    /// Writes the head of an answer as it goes out: with the lines that were told. `false`: there
    /// are none, or the bytes are no head that they belong to.
    pub(crate) fn write_head(&self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let told = self.saying.load(Ordering::Relaxed) == LINES;
        let Some(head) = bytes.strip_suffix(b"\r\n").filter(|_| told && is_final_head(bytes))
        else {
            return false;
        };
        out.extend_from_slice(head);
        out.extend_from_slice(&self.words.lock());
        out.extend_from_slice(b"\r\n");
        self.saying.store(NOTHING, Ordering::Relaxed);
        true
    }

    /// Writes the answer that is due, if there is one.
    pub(crate) fn write_reply(&self, out: &mut Vec<u8>) {
        if self.saying.load(Ordering::Relaxed) == ANSWER {
            out.extend_from_slice(&self.words.lock());
            self.saying.store(NOTHING, Ordering::Relaxed);
        }
    }

    /// The peer's address as a text; written once for all requests.
    pub(crate) fn peer_text(
        &self,
        write: impl FnOnce() -> pingora::Result<HeaderValue>,
    ) -> pingora::Result<HeaderValue> {
        if let Some(text) = self.peer_text.get() {
            return Ok(text.clone());
        }
        write().map(|text| self.peer_text.get_or_init(|| text).clone())
    }

    /// Most bytes of the request's body that are read from its client.
    pub(crate) fn most_body(&self) -> usize {
        self.most_body.load(Ordering::Relaxed)
    }

    /// The request is refused: no more than so many bytes of its body are read, those included
    /// that came with its head.
    pub(crate) fn refuse(&self, most_body: usize) {
        self.most_body.store(most_body, Ordering::Relaxed);
        self.refused.store(true, Ordering::Relaxed);
        // What was to stand in an origin's answer stands in ours.
        self.saying.store(NOTHING, Ordering::Relaxed);
    }

    /// Whether the present request of HTTP/1 is refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// What an exchange over HTTP/1 waits for while nothing comes from its client.
    pub(crate) fn awaits(&self) -> Awaited {
        match self.answer.load(Ordering::Relaxed) {
            NOT_BEGUN => Awaited::Body,
            BEGUN => {
                let patience = Nanos::new(self.patience.load(Ordering::Relaxed));
                Awaited::Origin(patience)
            }
            _ => Awaited::Nothing,
        }
    }

    /// Whether the origin has agreed to another protocol: from then on bytes are not HTTP.
    pub(crate) fn is_switched(&self) -> bool {
        self.switched.load(Ordering::Acquire)
    }

    /// The stream is cut.
    pub(crate) fn cut_for(&self, reason: RejectReason) -> StreamCut {
        StreamCut(*self.cut.get_or_init(|| reason))
    }

    /// Why the stream was cut, if it was.
    pub(crate) fn cut(&self) -> Option<RejectReason> {
        self.cut.get().copied()
    }

    /// The origin, which may be silent for up to `patience`, answers; with a 101, if it `switches`.
    pub(crate) fn begin_response(&self, switches: bool, patience: Nanos) {
        self.patience.store(patience.get(), Ordering::Relaxed);
        self.answer.store(BEGUN, Ordering::Relaxed);
        if switches {
            self.origin_timeout.store(0, Ordering::Relaxed);
            self.switched.store(true, Ordering::Release);
        }
    }

    /// The origin's answer is whole.
    pub(crate) fn end_response(&self) {
        self.answer.store(ENDED, Ordering::Relaxed);
    }

    /// The form in which a stream hands a link to the sessions on it.
    pub(crate) fn digest(self: &Arc<Self>) -> pingora::Result<ProxyDigest> {
        // The framework's place for the answer of a CONNECT proxy carries what a stream likes.
        let unused = Box::new(ResponseHeader::build(200, Some(0))?);
        Ok(ProxyDigest::new(unused, Some(Box::new(Arc::clone(self)))))
    }

    /// The link of the connection that a session is served on, if it came through ours.
    pub(crate) fn of(session: &Session) -> Option<&Arc<Self>> {
        let digest = session.digest()?.proxy_digest.as_ref()?;
        digest.user_data.as_ref()?.downcast_ref()
    }
}

/// An answer in progress, for as long as this exists.
#[derive(Debug)]
pub(crate) struct ExpectedResponse {
    link: Arc<ConnectionState>,
    bytes: usize,
}

impl ExpectedResponse {
    /// An answer of at most so many bytes has begun; any number, if the origin does not say.
    pub(crate) fn begin(link: &Arc<ConnectionState>, length: Option<u64>) -> Self {
        let length = length.and_then(|length| usize::try_from(length).ok());
        let bytes = length.unwrap_or(usize::MAX).min(MAX_RESPONSE_BYTES);
        link.expected.fetch_add(bytes, Ordering::Relaxed);
        Self { link: Arc::clone(link), bytes }
    }
}

impl Drop for ExpectedResponse {
    fn drop(&mut self) {
        self.link.expected.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether these bytes are a whole head of HTTP/1, and not one that others follow: `100` and its
/// kin tell nothing, `101` is the last.
fn is_final_head(bytes: &[u8]) -> bool {
    let status = bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    let last = status.is_some_and(|status| status == b"101" || status[0] != b'1');
    last && bytes.ends_with(b"\r\n\r\n")
}

/// A stream is not read or written any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCut(pub RejectReason);

impl StreamCut {
    /// The code of RST_STREAM by which our stream tells the implementation of HTTP/2 above it that an
    /// exchange is cut. It never goes out. (A client that sends it has its own request counted so.)
    pub const fn stream_code(reason: Option<RejectReason>) -> u32 {
        /// The first of the codes that are nobody's (RFC 9113, section 11.4, gives out the lower ones).
        const FIRST: u32 = 0xf000_0000;
        match reason {
            None => FIRST,
            Some(RejectReason::Memory) => FIRST + 2,
            Some(_) => FIRST + 1,
        }
    }

    /// Why a stream was cut, if that is what an error comes from.
    pub(crate) fn of(error: &Error) -> Option<RejectReason> {
        let cause = error.root_cause();
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let code = error.reason().map(u32::from);
            let is_cut_for = |reason: &RejectReason| code == Some(Self::stream_code(Some(*reason)));
            return [RejectReason::BodyRate, RejectReason::Memory].into_iter().find(is_cut_for);
        }
        cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<Self>().map(|cut| cut.0)
    }
}

impl fmt::Display for StreamCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut: {}", self.0.name())
    }
}

impl std::error::Error for StreamCut {}

impl From<StreamCut> for std::io::Error {
    fn from(cut: StreamCut) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, cut)
    }
}

/// The origin is silent for longer than it may be ([`ConnectionState::origin_timeout`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the origin is silent")]
pub struct OriginSilent;

impl OriginSilent {
    /// Whether an error comes from that.
    pub(crate) fn is_cause_of(error: &Error) -> bool {
        let error = error.root_cause().downcast_ref::<std::io::Error>();
        error.and_then(std::io::Error::get_ref).is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<OriginSilent> for std::io::Error {
    fn from(silent: OriginSilent) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_into_the_head_they_belong_to() {
        let link = ConnectionState::default();
        let written = |bytes: &[u8]| {
            let mut out = Vec::new();
            link.write_head(bytes, &mut out).then(|| String::from_utf8(out).unwrap())
        };
        assert_eq!(written(b"HTTP/1.1 200 OK\r\n\r\n"), None, "nothing was told");
        link.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        assert_eq!(written(b"HTTP/1.1 103 Early Hints\r\n\r\n"), None);
        assert_eq!(written(b"HTTP/1.1 200 OK\r\nC: d\r\n"), None, "half a head");
        let whole = written(b"HTTP/1.1 200 OK\r\nC: d\r\n\r\n");
        assert_eq!(whole.as_deref(), Some("HTTP/1.1 200 OK\r\nC: d\r\nA: b\r\n\r\n"));
        assert_eq!(written(b"HTTP/1.1 200 OK\r\n\r\n"), None, "told once");
        link.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        let switching = written(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
        assert!(switching.is_some_and(|head| head.contains("A: b")));
        link.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        link.begin(None, 0);
        assert_eq!(written(b"HTTP/1.1 200 OK\r\n\r\n"), None, "of the request before");
    }

    #[test]
    fn an_answer_is_written_once_and_is_no_line() {
        let link = ConnectionState::default();
        let due = || {
            let mut out = Vec::new();
            link.write_reply(&mut out);
            String::from_utf8(out).unwrap()
        };
        link.queue_head_lines(|out| out.extend_from_slice(b"A: b\r\n"));
        assert_eq!(due(), "", "lines wait for their head");
        link.queue_response(|out| out.extend_from_slice(b"HTTP/1.1 429 Too Many Requests\r\n\r\n"));
        let mut out = Vec::new();
        assert!(!link.write_head(b"HTTP/1.1 200 OK\r\n\r\n", &mut out) && out.is_empty());
        assert_eq!(due(), "HTTP/1.1 429 Too Many Requests\r\n\r\n");
        assert_eq!(due(), "");
        link.queue_response(|out| out.extend_from_slice(b"x"));
        link.refuse(0);
        assert_eq!(due(), "", "another answer has taken its place");
    }
}
