//! One HTTP/2 exchange: what is open, what its client must do next, and until when (RFC 9113, sections 5.2 and 8.1).
//!
//! - A client must send the body while there is window for it and no response has begun.
//! - A client must open the window while a response is in progress and there is none.
//! - After the complete response a client may send the rest of its body for a short time only.
//! - Otherwise the origin is waited for, and the origin's own timeouts end that.
//!
//! Time is an argument; nothing here waits. It does not know streams or frames. What must always hold: an exchange
//! has a deadline exactly while it waits for its client.

use crate::clock::Nanos;
use crate::edge::pace::Pace;
use crate::http::RejectReason;

/// How long each phase of an exchange may take.
#[derive(Clone, Copy, Debug)]
pub(in crate::edge) struct ExchangeTimeouts {
    /// The client sends a body.
    pub(in crate::edge) body: Pace,
    /// The client reads a response.
    pub(in crate::edge) response: Pace,
    /// The client sends the rest of a body after the response.
    pub(in crate::edge) rest: Nanos,
    /// A connection has no exchange.
    pub(in crate::edge) idle: Nanos,
}

/// Why an exchange is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortReason {
    /// The client sends its body too slowly.
    SlowBody,
    /// The client reads the response too slowly.
    SlowReader,
    /// The response is complete, and the client has not ended its request in the time after it.
    UnfinishedRequest,
    /// The client does not read the response, and its memory is needed.
    Memory,
}

impl AbortReason {
    /// Why the request fails; `None` if it has its response.
    pub(super) const fn reject_reason(self) -> Option<RejectReason> {
        match self {
            Self::SlowBody | Self::SlowReader => Some(RejectReason::BodyRate),
            Self::Memory => Some(RejectReason::Memory),
            Self::UnfinishedRequest => None,
        }
    }

    /// The error code for the client (RFC 9113, section 7): NO_ERROR if the request need not go on because the response
    /// is complete (section 8.1), CANCEL if the stream is no longer needed, ENHANCE_YOUR_CALM if it takes too much.
    pub(super) const fn error_code(self) -> u32 {
        const NO_ERROR: u32 = 0x0;
        const CANCEL: u32 = 0x8;
        const ENHANCE_YOUR_CALM: u32 = 0xb;
        match self {
            Self::UnfinishedRequest => NO_ERROR,
            Self::SlowBody | Self::SlowReader => CANCEL,
            Self::Memory => ENHANCE_YOUR_CALM,
        }
    }
}

/// When an exchange is aborted if nothing moves until then, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExchangeDeadline {
    pub(super) at: Nanos,
    pub(super) reason: AbortReason,
}

/// Flow-control windows, of a stream or of a connection. They may become negative (RFC 9113, section 6.9.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowWindows {
    /// Bytes that the client may send.
    pub(super) inbound: i64,
    /// Bytes that we may send.
    pub(super) outbound: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseProgress {
    NotBegun,
    Begun,
    /// At this time.
    Ended(Nanos),
}

/// One exchange.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) windows: FlowWindows,
    /// Whether the client may still send body or trailers.
    is_request_open: bool,
    response: ResponseProgress,
    body_pace: Pace,
    read_pace: Pace,
}

impl Exchange {
    /// An exchange whose request head begins.
    pub(super) const fn new(windows: FlowWindows, timeouts: &ExchangeTimeouts) -> Self {
        Self {
            windows,
            is_request_open: true,
            response: ResponseProgress::NotBegun,
            body_pace: timeouts.body,
            read_pace: timeouts.response,
        }
    }

    /// Whether its response has begun and not ended.
    pub(super) fn is_answering(&self) -> bool {
        self.response == ResponseProgress::Begun
    }

    /// Whether its response waits for window.
    pub(super) const fn is_blocked(&self) -> bool {
        self.read_pace.is_waiting()
    }

    /// Whether request and response have both ended.
    pub(super) const fn is_complete(&self) -> bool {
        !self.is_request_open && matches!(self.response, ResponseProgress::Ended(_))
    }

    /// The request has ended if `ends`.
    pub(super) const fn end_request_if(&mut self, ends: bool) {
        self.is_request_open &= !ends;
    }

    /// The client sent bytes of its body.
    pub(super) fn receive_body(&mut self, bytes: u32, ends: bool, now: Nanos) {
        self.windows.inbound -= i64::from(bytes);
        self.end_request_if(ends);
        self.body_pace.record_progress(u64::from(bytes), now);
    }

    /// Bytes of the response's body were sent.
    pub(super) fn send_body(&mut self, bytes: u32, ends: bool, now: Nanos) {
        self.windows.outbound -= i64::from(bytes);
        self.read_pace.record_progress(u64::from(bytes), now);
        self.advance_response(ends, now);
    }

    /// The response has begun, and has ended if `ends`.
    pub(super) const fn advance_response(&mut self, ends: bool, now: Nanos) {
        self.response = match (self.response, ends) {
            (ResponseProgress::Ended(at), _) => ResponseProgress::Ended(at),
            (_, true) => ResponseProgress::Ended(now),
            (_, false) => ResponseProgress::Begun,
        };
    }

    /// Begins or ends the waits for the client, given the windows of the connection.
    pub(super) fn update_waits(&mut self, connection: FlowWindows, now: Nanos) {
        let may_send = self.windows.inbound > 0 && connection.inbound > 0;
        let may_answer = self.windows.outbound > 0 && connection.outbound > 0;
        let awaits_body = self.is_request_open && self.response == ResponseProgress::NotBegun;
        if awaits_body && may_send {
            self.body_pace.begin_wait(now);
        } else {
            self.body_pace.cancel_wait();
        }
        if self.is_answering() && !may_answer {
            self.read_pace.begin_wait(now);
        } else {
            self.read_pace.cancel_wait();
        }
    }

    /// When the exchange is aborted if nothing moves. `None` while the exchange does not wait for its client. `rest`:
    /// how long the client may go on sending after the response.
    pub(super) fn deadline(&self, rest: Nanos) -> Option<ExchangeDeadline> {
        if let ResponseProgress::Ended(ended) = self.response {
            let at = ended.saturating_add(rest);
            let reason = AbortReason::UnfinishedRequest;
            return self.is_request_open.then_some(ExchangeDeadline { at, reason });
        }
        let deadline =
            |pace: &Pace, reason| Some(ExchangeDeadline { at: pace.deadline()?, reason });
        deadline(&self.body_pace, AbortReason::SlowBody)
            .or_else(|| deadline(&self.read_pace, AbortReason::SlowReader))
    }
}
