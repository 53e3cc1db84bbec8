//! The errors that a stream raises and the request phases recognize after they passed through the framework.
//!
//! It does not decide when they are raised. What must always hold: an error that is raised here is found again by
//! [`StreamCut::reason_of`] or [`OriginSilent::is_cause_of`].

use std::fmt;
use std::io;

use pingora::Error;

use crate::http::RejectReason;

/// The stream is cut: it is not read or written any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamCut(pub(in crate::edge) RejectReason);

impl StreamCut {
    /// The code of the RST_STREAM that tells the h2 crate that an exchange is aborted. It never leaves the process. (If
    /// a client sends this code, its own request is counted as aborted for that reason.)
    pub(in crate::edge) const fn stream_code(reason: Option<RejectReason>) -> u32 {
        /// RFC 9113, section 11.4, assigns only lower codes.
        const FIRST_UNASSIGNED: u32 = 0xf000_0000;
        match reason {
            None => FIRST_UNASSIGNED,
            Some(RejectReason::Memory) => FIRST_UNASSIGNED + 2,
            Some(_) => FIRST_UNASSIGNED + 1,
        }
    }

    /// Why a stream was cut, if that caused the error.
    pub(crate) fn reason_of(error: &Error) -> Option<RejectReason> {
        let cause = error.root_cause();
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let code = error.reason().map(u32::from);
            let is_cut_for = |reason: &RejectReason| code == Some(Self::stream_code(Some(*reason)));
            return [RejectReason::BodyRate, RejectReason::Memory].into_iter().find(is_cut_for);
        }
        cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<Self>().map(|cut| cut.0)
    }
}

impl fmt::Display for StreamCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut: {}", self.0.name())
    }
}

impl std::error::Error for StreamCut {}

impl From<StreamCut> for io::Error {
    fn from(cut: StreamCut) -> Self {
        Self::new(io::ErrorKind::TimedOut, cut)
    }
}

/// The origin is silent for longer than [`ConnectionState::set_origin_timeout`] allows.
///
/// [`ConnectionState::set_origin_timeout`]: super::ConnectionState::set_origin_timeout
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the origin is silent")]
pub(crate) struct OriginSilent;

impl OriginSilent {
    /// Whether this caused the error.
    pub(crate) fn is_cause_of(error: &Error) -> bool {
        let error = error.root_cause().downcast_ref::<io::Error>();
        error.and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<OriginSilent> for io::Error {
    fn from(silent: OriginSilent) -> Self {
        Self::new(io::ErrorKind::TimedOut, silent)
    }
}
