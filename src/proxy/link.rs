//! What a connection and the requests on it tell each other.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use pingora::Error;
use pingora::http::ResponseHeader;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora_proxy::Session;

use super::gate::Reason;

/// Shared by a connection's stream and the request that is served on it.
#[derive(Debug)]
pub struct Link {
    answered: AtomicBool,
    switched: AtomicBool,
    most_body: AtomicUsize,
    cut: OnceLock<Reason>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            answered: AtomicBool::new(false),
            switched: AtomicBool::new(false),
            most_body: AtomicUsize::new(usize::MAX),
            cut: OnceLock::new(),
        }
    }
}

impl Link {
    /// A new request begins.
    pub fn begin(&self) {
        self.answered.store(false, Ordering::Relaxed);
        self.most_body.store(usize::MAX, Ordering::Relaxed);
    }

    /// Most bytes of the request's body that are read from its client.
    pub fn most_body(&self) -> usize {
        self.most_body.load(Ordering::Relaxed)
    }

    /// The request is refused: no more than so many bytes of its body are read, those included
    /// that came with its head.
    pub(super) fn refuse(&self, most_body: usize) {
        self.most_body.store(most_body, Ordering::Relaxed);
    }

    /// Whether the origin has begun its answer: from then on the client may take its time with
    /// what is left of its body.
    pub fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether the origin has agreed to another protocol: from then on bytes are not HTTP.
    pub fn is_switched(&self) -> bool {
        self.switched.load(Ordering::Acquire)
    }

    /// The stream is cut.
    pub fn cut_for(&self, reason: Reason) -> Cut {
        Cut(*self.cut.get_or_init(|| reason))
    }

    /// Why the stream was cut, if it was.
    pub fn cut(&self) -> Option<Reason> {
        self.cut.get().copied()
    }

    /// The origin answers; with a 101, if it `switches`.
    pub(super) fn answer(&self, switches: bool) {
        self.answered.store(true, Ordering::Relaxed);
        if switches {
            self.switched.store(true, Ordering::Release);
        }
    }

    /// The form in which a stream hands a link to the sessions on it.
    pub fn digest(self: &Arc<Self>) -> pingora::Result<ProxyDigest> {
        // The framework's place for the answer of a CONNECT proxy carries what a stream likes.
        let unused = Box::new(ResponseHeader::build(200, Some(0))?);
        Ok(ProxyDigest::new(unused, Some(Box::new(Arc::clone(self)))))
    }

    /// The link of the connection that a session is served on, if it came through ours.
    pub(super) fn of(session: &Session) -> Option<&Arc<Self>> {
        let digest = session.digest()?.proxy_digest.as_ref()?;
        digest.user_data.as_ref()?.downcast_ref()
    }
}

/// A stream is not read or written any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut(pub Reason);

impl Cut {
    /// Why a stream was cut, if that is what an error comes from.
    pub(super) fn of(error: &Error) -> Option<Reason> {
        let error = error.root_cause().downcast_ref::<std::io::Error>()?;
        error.get_ref()?.downcast_ref::<Self>().map(|cut| cut.0)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut: {}", self.0.name())
    }
}

impl std::error::Error for Cut {}

impl From<Cut> for std::io::Error {
    fn from(cut: Cut) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, cut)
    }
}
