//! Reading the body of an HTTP/1 request, and what is watched after it.
//!
//! It passes on the bytes of the body, and cuts a client that sends them too slowly, or an origin that is silent for
//! too long where the framework does not watch that. The framing of the body is in `http`. What must always hold:
//! bytes that follow the body stay in the buffer.

use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::ReadBuf;

use super::client_stream::{BODY_CREDIT, ClientStream, StreamPhase};
use crate::edge::state::{Awaited, OriginSilent, StreamCut};
use crate::http::{Framing, RejectReason};

/// Bytes of later requests that are buffered.
const MAX_PIPELINED: usize = 16 * 1024;

impl ClientStream {
    /// The request has been passed on: what comes now belongs to the next one and is buffered. Ready when the client
    /// has closed its side.
    pub(super) fn poll_next_request(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.read_ahead.len() < MAX_PIPELINED {
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// The request is completely with the origin. Ready when the origin has been silent for too long.
    pub(super) fn poll_origin_silent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(timeout) = self.context.state.origin_timeout() else {
            return Poll::Pending;
        };
        let now = self.context.now();
        self.read_wait.poll_expired(now, Some(timeout), cx).map(|()| Err(OriginSilent.into()))
    }

    /// Passes on bytes of the body.
    pub(super) fn poll_body(
        &mut self,
        mut framing: Framing,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let awaited = self.context.state.awaited();
        if awaited == Awaited::Nothing && self.body_read_at_response_end.is_none() {
            self.body_read_at_response_end = Some(self.body_read);
            self.read_wait.pace.reset();
        }
        let read = match self.max_body().saturating_sub(self.body_read) {
            0 => Poll::Pending,
            left => self.poll_pass_up_to(left, cx, buf)?,
        };
        let Poll::Ready(read) = read else {
            return self.poll_body_stalled(awaited, cx).map(Err);
        };
        if self.body_read_at_response_end.is_none() {
            let now = self.context.now();
            self.read_wait.pace.record_progress(read as u64, now);
        }
        let taken = framing.take(&buf.filled()[before..]).map_err(StreamCut)?;
        self.body_read += taken;
        if taken < read {
            // The rest belongs to the next request.
            let mut rest = BytesMut::from(&buf.filled()[before + taken..]);
            rest.extend_from_slice(&self.read_ahead);
            self.read_ahead = rest;
            buf.set_filled(before + taken);
        }
        self.phase = StreamPhase::Body(framing);
        Poll::Ready(Ok(()))
    }

    /// The largest number of bytes of the body that are read.
    fn max_body(&self) -> usize {
        let max = self.context.state.max_body();
        let rest = self.context.bounds.discard_bytes;
        self.body_read_at_response_end.map_or(max, |read| max.min(read.saturating_add(rest)))
    }

    /// No byte of the body comes. Ready when that has lasted for too long.
    fn poll_body_stalled(&mut self, awaited: Awaited, cx: &mut Context<'_>) -> Poll<io::Error> {
        let now = self.context.now();
        let max = match awaited {
            // The reader of a refused body's rest has a deadline of its own.
            Awaited::Body if self.context.state.max_body() <= self.body_read => {
                return Poll::Pending;
            }
            Awaited::Body => {
                ready!(self.read_wait.poll_expired(now, None, cx));
                return Poll::Ready(StreamCut(RejectReason::BodyRate).into());
            }
            // A response that pauses for longer has failed, or is complete, and only the end of the origin's stream has
            // marked its end.
            Awaited::Origin(patience) => Duration::from(patience) + BODY_CREDIT,
            Awaited::Nothing => self.context.bounds.discard_time,
        };
        ready!(self.read_wait.poll_expired(now, Some(max), cx));
        Poll::Ready(io::ErrorKind::ConnectionAborted.into())
    }
}
