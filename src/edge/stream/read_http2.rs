//! Reading an HTTP/2 connection: passes on its bytes, injects resets, and ends it when it is idle or must make room.
//!
//! Which exchange is aborted is decided by [`FrameWatch`](crate::edge::http2::FrameWatch). What must always hold: a
//! client that does not finish a frame or a header block is cut at its deadline.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;

use super::client_stream::{ClientStream, StreamPhase};
use crate::clock::Nanos;
use crate::edge::http2::goaway;
use crate::http::RejectReason;

impl ClientStream {
    /// Passes on frames of the client, or resets to inject.
    pub(super) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let now = self.context.now();
        if self.poll_deadlines(now, cx, buf)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let max = match &self.phase {
            StreamPhase::Http2(watch) => watch.max_read(),
            _ => usize::MAX,
        };
        let read = self.poll_pass_up_to(max, cx, buf)?;
        let StreamPhase::Http2(watch) = &mut self.phase else {
            return Poll::Ready(Ok(()));
        };
        let Poll::Ready(read) = read else {
            if !watch.is_inside_frame() {
                self.read_wait.pace.cancel_wait();
                return Poll::Pending;
            }
            let reason = watch.stalled_frame_reason();
            let max = (!watch.is_inside_body()).then_some(self.context.bounds.header_timeout);
            ready!(self.read_wait.poll_expired(now, max, cx));
            return Poll::Ready(Err(self.context.state.cut_for(reason).into()));
        };
        let was_inside_frame = watch.is_inside_frame();
        let was_inside_head = was_inside_frame && !watch.is_inside_body();
        let has_ended = watch.observe_inbound(&buf.filled()[before..], now);
        let is_forwarding = self.context.state.expected_response_bytes() > 0;
        watch.report_activity(self.context.mark.as_deref(), is_forwarding, now);
        match (was_inside_frame, was_inside_head) {
            (false, _) => self.read_wait.pace.cancel_wait(),
            // Bytes of a head do not extend its deadline; only its end does.
            (true, true) if !has_ended => {}
            (true, _) => self.read_wait.pace.record_progress(read as u64, now),
        }
        if watch.roll_resets(now) > self.context.max_resets {
            return Poll::Ready(Err(self.context.state.cut_for(RejectReason::H2Resets).into()));
        }
        self.count_streams();
        Poll::Ready(Ok(()))
    }

    /// Aborts expired exchanges, and ends the connection when it has been idle for long or must make room. Ready: the
    /// bytes to pass on are in `buf`; without bytes, the connection ends.
    fn poll_deadlines(
        &mut self,
        now: Nanos,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.context.memory.poll_is_cut(cx.waker()) {
            if self.write_wait.pace.is_waiting() {
                // The socket is full, so the client cannot be told of single streams.
                return Poll::Ready(Err(self.context.state.cut_for(RejectReason::Memory).into()));
            }
            self.abort_blocked(now);
        }
        if self.poll_shed_http2(now, cx).is_ready() {
            // The connection ends even if the client does not take the GOAWAY.
            let _ = self.poll_goaway(cx);
            return Poll::Ready(Ok(()));
        }
        let StreamPhase::Http2(watch) = &mut self.phase else {
            return Poll::Pending;
        };
        while watch.poll_timer(now, cx).is_ready() {
            watch.abort_expired(now);
            if watch.is_injection_late(now) {
                let reason = watch.stalled_frame_reason();
                return Poll::Ready(Err(self.context.state.cut_for(reason).into()));
            }
            if watch.can_inject() {
                break;
            }
            if !watch.exchanges.is_idle_expired(now) {
                continue;
            }
            let tcp = self.socket_digest.tcp_info();
            if let Some(since) = tcp.and_then(|tcp| watch.sending_ended_at(&tcp, now)) {
                watch.exchanges.postpone_idle_start(since);
                if !watch.exchanges.is_idle_expired(now) {
                    continue;
                }
            }
            return self.poll_goaway(cx);
        }
        if !watch.can_inject() {
            return Poll::Pending;
        }
        buf.put_slice(&watch.take_injected(buf.remaining()));
        self.count_streams();
        Poll::Ready(Ok(()))
    }

    /// Sets the timer of what was just written: it may be the end of the last response, after which the connection is
    /// idle. If its client sends nothing any more, no read follows that would set it.
    pub(super) fn watch_deadlines(&mut self, cx: &mut Context<'_>) {
        let now = self.context.now();
        if let StreamPhase::Http2(watch) = &mut self.phase
            && watch.poll_timer(now, cx).is_ready()
        {
            // The next read ends what is over.
            cx.waker().wake_by_ref();
        }
    }

    /// Ready when the connection, which was told to make room, may close: what its client has not acknowledged would be
    /// lost, so that is waited for a while.
    pub(super) fn poll_shed_http2(&mut self, now: Nanos, cx: &mut Context<'_>) -> Poll<()> {
        let StreamPhase::Http2(watch) = &mut self.phase else {
            return Poll::Pending;
        };
        let mark = self.context.mark.as_deref();
        if mark.is_none_or(|mark| mark.poll_shed(cx).is_pending()) {
            return Poll::Pending;
        }
        let is_written =
            self.write_buffer.is_empty() && !self.needs_flush && watch.exchanges.is_empty();
        watch.poll_may_close(is_written, || self.socket_digest.tcp_info(), now, cx)
    }

    /// Tells the client that no further request is served.
    fn poll_goaway(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Inside a frame, the end of the connection must do.
        if let StreamPhase::Http2(watch) = &self.phase
            && watch.is_between_written_frames()
        {
            self.write_buffer.extend_from_slice(&goaway(watch.exchanges.last_stream()));
        }
        self.poll_write_buffer(cx)
    }

    /// Aborts the exchanges whose responses wait for window, to free their memory.
    fn abort_blocked(&mut self, now: Nanos) {
        if let StreamPhase::Http2(watch) = &mut self.phase {
            watch.abort_blocked(now);
        }
        self.count_streams();
        self.context.memory.clear_cut();
    }

    /// Counts the current HTTP/2 streams and what waits in them.
    pub(super) fn count_streams(&mut self) {
        if let StreamPhase::Http2(watch) = &self.phase {
            self.context.memory.set_streams(watch.exchanges.counts());
            self.count_waiting();
        }
    }
}
