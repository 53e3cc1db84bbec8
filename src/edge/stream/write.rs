//! Writing to the client: small writes are gathered, and a client that reads too slowly is cut.
//!
//! What the client's kernel has acknowledged counts as read, not what fits into the socket's buffer. It does not know
//! responses, except for the bytes that a request has queued
//! ([`ConnectionState`](crate::edge::state::ConnectionState)). What must always hold: a write that waits for the
//! client ends by its deadline, or when memory or room is needed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::client_stream::{ClientStream, StreamPhase};
use crate::edge::memory::MAX_RESPONSE_BYTES;
use crate::edge::state::{Awaited, StreamCut};
use crate::http::RejectReason;

/// Bytes of a response that are gathered before they are written. A flush writes them at once.
const WRITE_BUFFER: usize = 4 * 1024;

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.context.cutoff.check()?;
        if this.context.state.origin_timeout().is_some() {
            // What is written comes from the origin, so it is not silent.
            this.read_wait.pace.cancel_wait();
        }
        if this.write_buffer.len() + buf.len() > WRITE_BUFFER {
            ready!(this.poll_write_buffer(cx))?;
        }
        if this.context.state.write_head(buf, &mut this.write_buffer) {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = if buf.len() < WRITE_BUFFER {
            this.write_buffer.extend_from_slice(buf);
            buf.len()
        } else {
            match Pin::new(&mut this.transport).poll_write(cx, buf)? {
                Poll::Ready(written) => {
                    this.record_write(written);
                    written
                }
                Poll::Pending => return this.poll_write_stalled(cx).map(Err),
            }
        };
        if let StreamPhase::Http2(watch) = &mut this.phase {
            let now = this.context.now();
            watch.observe_outbound(&buf[..written], now);
            let is_forwarding = this.context.state.expected_response_bytes() > 0;
            watch.report_activity(this.context.mark.as_deref(), is_forwarding, now);
            this.count_streams();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.context.cutoff.check()?;
        this.context.state.write_response(&mut this.write_buffer);
        if let StreamPhase::Http2(watch) = &mut this.phase {
            watch.write_resets(&mut this.write_buffer);
        }
        if this.write_buffer.is_empty() && !this.needs_flush {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_write_buffer(cx))?;
        match Pin::new(&mut this.transport).poll_flush(cx) {
            Poll::Ready(result) => {
                if result.is_ok() {
                    this.record_write(0);
                    this.needs_flush = false;
                    this.watch_deadlines(cx);
                }
                Poll::Ready(result)
            }
            Poll::Pending => this.poll_write_stalled(cx).map(Err),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.context.cutoff.check()?;
        ready!(this.poll_write_buffer(cx))?;
        Pin::new(&mut this.transport).poll_shutdown(cx)
    }
}

impl ClientStream {
    /// Writes the gathered bytes.
    pub(super) fn poll_write_buffer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.write_buffer.len() {
            let bytes = &self.write_buffer[self.written..];
            match Pin::new(&mut self.transport).poll_write(cx, bytes) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    self.record_write(written);
                    self.written += written;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_write_stalled(cx).map(Err),
            }
        }
        self.write_buffer.clear();
        // Frees a buffer that one large head has grown; the connection may stay idle for long.
        self.write_buffer.shrink_to(2 * WRITE_BUFFER);
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// The transport has taken bytes, or was flushed: a wait for the client, if there was one, is over.
    fn record_write(&mut self, bytes: usize) {
        self.needs_flush = true;
        self.context.memory.add_written(bytes);
        if self.body_read_at_response_end.is_none() && self.read_wait.pace.is_waiting() {
            // Once the response is in progress, each piece of it restarts the wait for the body.
            if matches!(self.context.state.awaited(), Awaited::Origin(_)) {
                self.read_wait.pace.cancel_wait();
            }
        }
        if self.write_wait.pace.is_waiting() {
            let now = self.context.now();
            self.write_wait.pace.record_progress(0, now);
            self.count_waiting();
        }
    }

    /// The socket is full. Ready when the connection ends: its client reads too slowly, or memory or room is needed.
    fn poll_write_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let expired = self.poll_read_too_slow(cx);
        self.count_waiting();
        if self.poll_makes_room(cx).is_ready() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        if self.context.memory.poll_is_cut(cx.waker()) {
            return Poll::Ready(match self.phase {
                StreamPhase::Http2(_) => self.context.state.cut_for(RejectReason::Memory).into(),
                _ => StreamCut(RejectReason::Memory).into(),
            });
        }
        expired
    }

    /// Ready when the client has acknowledged too little for too long.
    fn poll_read_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let now = self.context.now();
        loop {
            ready!(self.write_wait.poll_expired(now, None, cx));
            let tcp = self.socket_digest.tcp_info();
            let acknowledged = tcp.map_or(self.acknowledged, |tcp| tcp.tcpi_bytes_acked);
            let progress = acknowledged.saturating_sub(self.acknowledged);
            if progress == 0 {
                return Poll::Ready(StreamCut(RejectReason::BodyRate).into());
            }
            self.acknowledged = acknowledged;
            self.write_wait.pace.record_progress(progress, now);
        }
    }

    /// Ready when the connection is to make room for another one while its client reads nothing.
    fn poll_makes_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.context.now();
        if matches!(self.phase, StreamPhase::Http2(_)) {
            return self.poll_shed_http2(now, cx);
        }
        let Some(mark) = self.context.mark.as_deref() else {
            return Poll::Pending;
        };
        // A refusal can be requested again, because no origin has acted on the request. (A tunnel is no refusal.)
        if !matches!(self.phase, StreamPhase::Switched) && self.context.state.is_refused() {
            if !self.has_reported_refusal {
                mark.set_unfinished(now);
                self.has_reported_refusal = true;
            }
            return mark.poll_shed(cx);
        }
        Poll::Pending
    }

    /// The request has ended, so the next one is not refused yet.
    pub(super) fn clear_reported_refusal(&mut self) {
        if std::mem::take(&mut self.has_reported_refusal)
            && let Some(mark) = &self.context.mark
        {
            mark.set_busy();
        }
    }

    /// Counts the responses that wait for the client: those without window, or all while its socket is full.
    pub(super) fn count_waiting(&mut self) {
        let is_full = self.write_wait.pace.is_waiting();
        let (waiting, blocked) = match &self.phase {
            StreamPhase::Http2(watch) => {
                let counts = watch.exchanges.counts();
                let waiting = if is_full { counts.answering } else { counts.blocked };
                (waiting, waiting)
            }
            _ => (usize::from(is_full), 0),
        };
        let expected = self.context.state.expected_response_bytes();
        self.context.memory.set_waiting(expected.min(waiting * MAX_RESPONSE_BYTES), blocked);
    }
}
