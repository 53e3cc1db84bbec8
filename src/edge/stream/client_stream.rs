//! The stream itself: its phases, and how a request begins and ends on it.
//!
//! Reading and writing in each phase are in files of their own. What must always hold: bytes of a later request are
//! never passed on before [`ClientStream::begin_request`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pingora::protocols::SocketDigest;
use pingora::protocols::raw_connect::ProxyDigest;
use tokio::io::{AsyncRead, ReadBuf};

use super::context::StreamContext;
use super::read_ahead::READ_SIZE;
use super::transport::Transport;
use crate::clock::Nanos;
use crate::edge::http2::{ExchangeTimeouts, FrameWatch};
use crate::edge::pace::{Pace, PacedWait};
use crate::edge::state::ConnectionState;
use crate::http::{Framing, WireHead};

/// The initial credit of a body: a phone may change its network meanwhile.
pub(crate) const BODY_CREDIT: Duration = Duration::from_secs(20);

/// A connection's stream, with its deadlines and buffers.
pub(in crate::edge) struct ClientStream {
    pub(super) transport: Transport,
    pub(super) context: StreamContext,
    pub(super) proxy_digest: Arc<ProxyDigest>,
    pub(super) socket_digest: Arc<SocketDigest>,
    pub(super) phase: StreamPhase,
    /// Bytes that were received and not yet passed on.
    pub(super) read_ahead: BytesMut,
    /// Bytes to be written, and how many of them were.
    pub(super) write_buffer: Vec<u8>,
    pub(super) written: usize,
    /// Whether the transport may hold bytes that were not flushed. The framework flushes four times per request.
    pub(super) needs_flush: bool,
    /// Bytes of the request's body that were passed on.
    pub(super) body_read: usize,
    /// The value of `body_read` when the response was found complete.
    pub(super) body_read_at_response_end: Option<usize>,
    pub(super) read_wait: PacedWait,
    pub(super) write_wait: PacedWait,
    /// Bytes that the client's kernel had acknowledged when the write wait last ended.
    pub(super) acknowledged: u64,
    /// Whether it is reported that an HTTP/1 client does not read a refusal.
    pub(super) has_reported_refusal: bool,
}

/// What is passed on to the framework.
pub(super) enum StreamPhase {
    /// Nothing: no request is being served.
    Idle,
    /// The head of a request, of which `left` bytes are missing, then its body.
    Head { left: usize, framing: Framing },
    /// A body, then nothing.
    Body(Framing),
    /// Everything: the connection has left HTTP for another protocol.
    Switched,
    /// Everything, as frames of HTTP/2.
    Http2(Box<FrameWatch>),
}

impl ClientStream {
    /// Wraps a transport. `socket_digest` carries the client's address.
    pub(in crate::edge) fn new(
        transport: Transport,
        context: StreamContext,
        socket_digest: Arc<SocketDigest>,
    ) -> pingora::Result<Self> {
        let rate = context.bounds.body_min_rate;
        let write_credit = Nanos::from(context.bounds.write_timeout);
        Ok(Self {
            proxy_digest: Arc::new(context.state.to_digest()?),
            socket_digest,
            transport,
            phase: StreamPhase::Idle,
            read_ahead: BytesMut::new(),
            write_buffer: Vec::new(),
            written: 0,
            needs_flush: true,
            body_read: 0,
            body_read_at_response_end: None,
            read_wait: PacedWait::new(Pace::new(Nanos::from(BODY_CREDIT), rate)),
            write_wait: PacedWait::new(Pace::new(write_credit, rate)),
            acknowledged: 0,
            has_reported_refusal: false,
            context,
        })
    }

    /// From now on all bytes pass as frames of HTTP/2.
    pub(in crate::edge) fn begin_http2(&mut self) {
        let (now, bounds) = (self.context.now(), &self.context.bounds);
        let timeouts = ExchangeTimeouts {
            body: self.read_wait.pace,
            response: self.write_wait.pace,
            rest: bounds.discard_time.into(),
            idle: bounds.idle_timeout.into(),
        };
        // A client that acknowledges less of a response counts as one that reads nothing.
        let rate = bounds.body_min_rate.map_or(0, |rate| rate.get());
        let min_acknowledged = rate.saturating_mul(bounds.idle_timeout.as_secs()).max(1);
        let mut watch = FrameWatch::new(timeouts, min_acknowledged, now);
        watch.report_activity(self.context.mark.as_deref(), false, now);
        self.phase = StreamPhase::Http2(Box::new(watch));
        self.count_streams();
    }

    /// What the connection shares with its requests.
    pub(in crate::edge) fn state(&self) -> Arc<ConnectionState> {
        Arc::clone(&self.context.state)
    }

    /// Passes on one request of HTTP/1, whose head was scanned in the bytes read ahead.
    pub(in crate::edge) fn begin_request(&mut self, head: WireHead) {
        self.clear_reported_refusal();
        self.read_wait.pace.reset();
        self.body_read = 0;
        self.body_read_at_response_end = None;
        self.phase = StreamPhase::Head { left: head.size, framing: Framing::new(head.body) };
        self.context.state.begin_request(Some(head.scanned), head.size);
    }

    /// Ends a request of HTTP/1. Returns whether its body was read to its end, so that another request may follow.
    pub(in crate::edge) fn end_request(&mut self) -> bool {
        let phase = std::mem::replace(&mut self.phase, StreamPhase::Idle);
        if self.read_ahead.is_empty() && self.read_ahead.try_reclaim(READ_SIZE + 1) {
            // Frees a buffer that one large head has grown; the connection may stay idle for long.
            self.read_ahead = BytesMut::new();
        }
        self.context.memory.set_read_ahead(self.read_ahead.len());
        matches!(phase, StreamPhase::Body(framing) if framing.is_done())
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.context.cutoff.check()?;
        match &mut this.phase {
            StreamPhase::Idle => Poll::Ready(Ok(())),
            StreamPhase::Head { left, framing } => {
                let bytes = (*left).min(this.read_ahead.len()).min(buf.remaining());
                buf.put_slice(&this.read_ahead[..bytes]);
                *left -= bytes;
                this.read_ahead.advance(bytes);
                if *left == 0 {
                    this.phase = StreamPhase::Body(*framing);
                }
                Poll::Ready(Ok(()))
            }
            StreamPhase::Body(_) if this.context.state.is_switched() => {
                this.phase = StreamPhase::Switched;
                this.poll_pass(cx, buf).map_ok(|_| ())
            }
            StreamPhase::Body(framing) if framing.is_done() => match this.poll_next_request(cx) {
                Poll::Pending => this.poll_origin_silent(cx),
                ready @ Poll::Ready(_) => ready,
            },
            StreamPhase::Body(framing) => {
                let framing = *framing;
                this.poll_body(framing, cx, buf)
            }
            StreamPhase::Switched => this.poll_pass(cx, buf).map_ok(|_| ()),
            StreamPhase::Http2(_) => this.poll_frames(cx, buf),
        }
    }
}
