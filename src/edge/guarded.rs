//! The stream between a client and the framework: it gives on exactly one request at a time, and
//! it waits for nobody longer than it is told.
//!
//! Over HTTP/1 the framework reads what it is given: a head that was scanned, then the bytes that
//! belong to its body, and nothing of what follows them. So what one reader takes for the end of a
//! request and another for its middle never comes up, and requests that are sent ahead of their
//! turn wait here. Over HTTP/2 all bytes pass, and their frames are watched.

mod digests;
mod http2;
mod memory;
mod transport;

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use pingora::protocols::SocketDigest;
use pingora::protocols::raw_connect::ProxyDigest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::exchanges::Rules;
use super::frames;
use super::idle_mark::IdleMark;
use super::link::{Awaited, ConnectionState, OriginSilent, StreamCut};
use super::memory_budget::MAX_RESPONSE_BYTES;
use super::pace::{Pace, Wait};
use crate::clock::{Clock, Nanos};
use crate::config::Bounds;
use crate::http::{Framing, RejectReason, WireHead};

use http2::FrameWatch;

pub use memory::{ConnectionBytes, connection_bytes};
pub(crate) use memory::{ConnectionMemory, H2_SEND_BUFFER_BYTES};
pub(crate) use transport::Transport;

/// Bytes that are read at once before somebody says how many he wants.
const READ: usize = 8 * 1024;

/// Most bytes of later requests that wait for their turn.
const AHEAD: usize = 16 * 1024;

/// Bytes of an answer that are gathered before they are written; a flush writes them at once.
const GATHER: usize = 4 * 1024;

/// Credit of time with which a body begins: a phone may change its network in between.
const BODY_CREDIT: Duration = Duration::from_secs(20);

/// How a connection's stream is watched.
pub(crate) struct Watch {
    pub(crate) bounds: Arc<Bounds>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) link: Arc<ConnectionState>,
    /// Where the connection notes whether it is idle, if it may be closed to make room for others.
    pub(crate) mark: Option<Arc<IdleMark>>,
    /// Most RST_STREAM frames in [`http2::RESET_WINDOW`].
    pub(crate) most_resets: u32,
    pub(crate) memory: ConnectionMemory,
}

/// A stream that is watched.
pub(crate) struct Guarded {
    inner: Transport,
    watch: Watch,
    proxy_digest: Arc<ProxyDigest>,
    socket_digest: Arc<SocketDigest>,
    stage: Stage,
    /// What came and was not given on.
    ahead: BytesMut,
    /// What is to be written, and how much of it is.
    gathered: Vec<u8>,
    written: usize,
    /// Whether something may lie in the stream below: the framework flushes four times a request.
    is_unflushed: bool,
    /// Bytes of the request's body that were given on.
    body: usize,
    /// How many those were when the answer was found whole.
    body_at_answer: Option<usize>,
    inbound: Wait,
    outbound: Wait,
    /// Bytes that the client's kernel has acknowledged.
    acknowledged: u64,
    /// Whether it is noted that an HTTP/1 client does not take a refusal.
    is_noted: bool,
}

/// What is given on.
enum Stage {
    /// Nothing: no request is being served.
    Between,
    /// So many bytes of a head, then its body.
    Head(usize, Framing),
    /// What belongs to a body, then nothing.
    Body(Framing),
    /// Everything.
    Switched,
    /// Everything, as frames of HTTP/2.
    Frames(Box<FrameWatch>),
}

impl Guarded {
    /// Watches a stream. `socket_digest` says who is at the other end.
    pub(crate) fn new(
        inner: Transport,
        watch: Watch,
        socket_digest: Arc<SocketDigest>,
    ) -> pingora::Result<Self> {
        let rate = watch.bounds.body_min_rate;
        let write_credit = Nanos::from(watch.bounds.write_timeout);
        Ok(Self {
            proxy_digest: Arc::new(watch.link.digest()?),
            socket_digest,
            inner,
            stage: Stage::Between,
            ahead: BytesMut::new(),
            gathered: Vec::new(),
            written: 0,
            is_unflushed: true,
            body: 0,
            body_at_answer: None,
            inbound: Wait::new(Pace::new(Nanos::from(BODY_CREDIT), rate)),
            outbound: Wait::new(Pace::new(write_credit, rate)),
            acknowledged: 0,
            is_noted: false,
            watch,
        })
    }

    /// From now on everything passes as frames of HTTP/2.
    pub(crate) fn speak_http2(&mut self) {
        let (now, bounds) = (self.now(), &self.watch.bounds);
        let rules = Rules {
            body: self.inbound.pace,
            answer: self.outbound.pace,
            rest: bounds.discard_time.into(),
            idle: bounds.idle_timeout.into(),
        };
        // A client that takes less of an answer takes nothing.
        let rate = bounds.body_min_rate.map_or(0, |rate| rate.get());
        let least = rate.saturating_mul(bounds.idle_timeout.as_secs()).max(1);
        let mut watched = FrameWatch::new(rules, least, now);
        watched.note(self.watch.mark.as_deref(), false, now);
        self.stage = Stage::Frames(Box::new(watched));
        self.count_streams();
    }

    /// What the connection and its requests tell each other.
    pub(crate) fn link(&self) -> Arc<ConnectionState> {
        Arc::clone(&self.watch.link)
    }

    /// What came and was not given on.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Drops the first bytes of it.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.ahead.advance(bytes.min(self.ahead.len()));
    }

    /// Reads more of it; false at the end of the stream.
    pub(crate) async fn read_ahead(&mut self) -> io::Result<bool> {
        std::future::poll_fn(|cx| self.poll_ahead(cx)).await.map(|bytes| bytes > 0)
    }

    /// Gives on one request, whose head was scanned and lies ahead.
    pub(crate) fn begin(&mut self, head: WireHead) {
        self.forget_refusal();
        self.inbound.pace.renew();
        self.body = 0;
        self.body_at_answer = None;
        self.stage = Stage::Head(head.size, Framing::new(head.body));
        self.watch.link.begin(Some(head.scanned), head.size);
    }

    /// Ends a request; false when its body was not read to its end, so that nothing may follow.
    pub(crate) fn end(&mut self) -> bool {
        let stage = std::mem::replace(&mut self.stage, Stage::Between);
        if self.ahead.is_empty() && self.ahead.try_reclaim(READ + 1) {
            // A head that was large once is no reason to hold as much for as long as the client likes.
            self.ahead = BytesMut::new();
        }
        self.watch.memory.set_ahead(self.ahead.len());
        matches!(stage, Stage::Body(framing) if framing.is_done())
    }

    fn now(&self) -> Nanos {
        self.watch.clock.now().mono
    }

    /// Reads more of it; how many bytes.
    pub(crate) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // On the stack, so that a connection that only waits holds no buffer.
        let mut space = [const { MaybeUninit::uninit() }; READ];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        self.ahead.extend_from_slice(read.filled());
        self.watch.memory.set_ahead(self.ahead.len());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// The request has been given on: what comes now is of the next one, and waits.
    fn poll_after(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ahead.len() < AHEAD {
            if ready!(self.poll_ahead(cx))? == 0 {
                // The client has gone, or at least says no more.
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// The whole request is with the origin, which may be silent for so long and no longer.
    fn poll_origin(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(patience) = self.watch.link.origin_timeout() else {
            return Poll::Pending;
        };
        let now = self.now();
        self.inbound.poll_over(now, Some(patience), cx).map(|()| Err(OriginSilent.into()))
    }

    /// Gives on what is ahead, or else reads; at most so many bytes.
    fn poll_some(
        &mut self,
        most: usize,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        if most >= buf.remaining() {
            return self.poll_through(cx, buf);
        }
        let mut some = ReadBuf::new(buf.initialize_unfilled_to(most));
        let bytes = ready!(self.poll_through(cx, &mut some))?;
        buf.advance(bytes);
        Poll::Ready(Ok(bytes))
    }

    /// Gives on what is ahead, or else reads.
    fn poll_through(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.ahead.is_empty() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
            return Poll::Ready(Ok(buf.filled().len() - before));
        }
        let bytes = self.ahead.len().min(buf.remaining());
        buf.put_slice(&self.ahead[..bytes]);
        self.ahead.advance(bytes);
        Poll::Ready(Ok(bytes))
    }

    fn poll_body(
        &mut self,
        mut framing: Framing,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let awaited = self.watch.link.awaits();
        if awaited == Awaited::Nothing && self.body_at_answer.is_none() {
            self.body_at_answer = Some(self.body);
            self.inbound.pace.renew();
        }
        let read = match self.most_body().saturating_sub(self.body) {
            0 => Poll::Pending,
            left => self.poll_some(left, cx, buf)?,
        };
        let Poll::Ready(read) = read else {
            return self.poll_body_over(awaited, cx).map(Err);
        };
        if self.body_at_answer.is_none() {
            let now = self.now();
            self.inbound.pace.moved(read as u64, now);
        }
        let taken = framing.take(&buf.filled()[before..]).map_err(StreamCut)?;
        self.body += taken;
        if taken < read {
            // The rest is of the next request.
            let mut rest = BytesMut::from(&buf.filled()[before + taken..]);
            rest.extend_from_slice(&self.ahead);
            self.ahead = rest;
            buf.set_filled(before + taken);
        }
        self.stage = Stage::Body(framing);
        Poll::Ready(Ok(()))
    }

    /// Most bytes of the body that are read.
    fn most_body(&self) -> usize {
        let most = self.watch.link.most_body();
        let rest = self.watch.bounds.discard_bytes;
        self.body_at_answer.map_or(most, |at| most.min(at.saturating_add(rest)))
    }

    /// Nothing of the body comes: ready when that has lasted for too long.
    fn poll_body_over(&mut self, awaited: Awaited, cx: &mut Context<'_>) -> Poll<io::Error> {
        let now = self.now();
        let bounds = &self.watch.bounds;
        let most = match awaited {
            // Who waits for the rest of a refused body waits for its own deadline.
            Awaited::Body if self.watch.link.most_body() <= self.body => return Poll::Pending,
            Awaited::Body => {
                ready!(self.inbound.poll_over(now, None, cx));
                return Poll::Ready(StreamCut(RejectReason::BodyRate).into());
            }
            // The framework ends an answer that pauses for longer. If it has not, the answer is whole,
            // and its end was told by nothing but the end of the origin's stream.
            Awaited::Origin(patience) => Duration::from(patience) + BODY_CREDIT,
            Awaited::Nothing => bounds.discard_time,
        };
        ready!(self.inbound.poll_over(now, Some(most), cx));
        Poll::Ready(io::ErrorKind::ConnectionAborted.into())
    }

    fn poll_frames(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let now = self.now();
        if self.poll_exchanges(now, cx, buf)?.is_ready() {
            return Poll::Ready(Ok(()));
        }
        let most = match &self.stage {
            Stage::Frames(watched) => watched.most_read(),
            _ => usize::MAX,
        };
        let read = self.poll_some(most, cx, buf)?;
        let Stage::Frames(watched) = &mut self.stage else {
            return Poll::Ready(Ok(()));
        };
        let Poll::Ready(read) = read else {
            if !watched.inbound.is_inside() {
                self.inbound.pace.rest();
                return Poll::Pending;
            }
            let reason = watched.frame_reason();
            let is_head = !watched.inbound.is_inside_data();
            let most = is_head.then_some(self.watch.bounds.header_timeout);
            ready!(self.inbound.poll_over(now, most, cx));
            return Poll::Ready(Err(self.watch.link.cut_for(reason).into()));
        };
        let was_inside = watched.inbound.is_inside();
        let was_head = was_inside && !watched.inbound.is_inside_data();
        let ended = watched.came(&buf.filled()[before..], now);
        watched.note(self.watch.mark.as_deref(), self.watch.link.expected_answers() > 0, now);
        match (was_inside, was_head) {
            (false, _) => self.inbound.pace.rest(),
            // Bytes of a head do not make its deadline later; its end does.
            (true, true) if !ended => {}
            (true, _) => self.inbound.pace.moved(read as u64, now),
        }
        if watched.has_too_many_resets(self.watch.most_resets, now) {
            return Poll::Ready(Err(self.watch.link.cut_for(RejectReason::H2Resets).into()));
        }
        self.count_streams();
        Poll::Ready(Ok(()))
    }

    /// Ends exchanges that are over, and the connection when there have been none for long. Ready: what
    /// is to be read is in `buf`; without bytes, the end of the connection.
    ///
    /// The implementation of HTTP/2 offers no deadline for a stream, and no way to end one from outside.
    /// So it is told that the client has reset the stream, whereupon it drops what it holds of it; then
    /// the client is told the same.
    fn poll_exchanges(
        &mut self,
        now: Nanos,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.watch.memory.is_cut(cx.waker()) {
            if self.outbound.pace.waits() {
                // Nothing can be said to the client.
                return Poll::Ready(Err(self.watch.link.cut_for(RejectReason::Memory).into()));
            }
            self.shed(now);
        }
        if self.poll_shed(now, cx).is_ready() {
            // A client that takes nothing is not waited for.
            let _ = self.poll_goodbye(cx);
            return Poll::Ready(Ok(()));
        }
        let Stage::Frames(watched) = &mut self.stage else {
            return Poll::Pending;
        };
        while watched.poll_timer(now, cx).is_ready() {
            watched.give_up(now);
            if watched.is_kept_waiting(now) {
                let reason = watched.frame_reason();
                return Poll::Ready(Err(self.watch.link.cut_for(reason).into()));
            }
            if watched.tells_now() {
                break;
            }
            if !watched.exchanges.has_idled(now) {
                continue;
            }
            if let Some(since) =
                self.socket_digest.tcp_info().and_then(|tcp| watched.sent(&tcp, now))
            {
                watched.exchanges.idles_since(since);
                if !watched.exchanges.has_idled(now) {
                    continue;
                }
            }
            return self.poll_goodbye(cx);
        }
        if !watched.tells_now() {
            return Poll::Pending;
        }
        let bytes = watched.injected.len().min(buf.remaining());
        buf.put_slice(&watched.injected.split_to(bytes));
        self.count_streams();
        Poll::Ready(Ok(()))
    }

    /// Tells the client that no further request is served.
    fn poll_goodbye(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Stage::Frames(watched) = &self.stage
            && !watched.outbound.is_inside()
        {
            self.gathered.extend_from_slice(&frames::goaway(watched.exchanges.last()));
        }
        // Else the end of the connection says it.
        self.poll_gathered(cx)
    }

    /// The client takes nothing: cut when it has taken too little for too long. What its kernel
    /// acknowledged counts, not what fits into ours.
    fn poll_untaken(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let over = self.poll_untaken_over(cx);
        self.count_waiting();
        if self.poll_makes_room(cx).is_ready() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        if self.watch.memory.is_cut(cx.waker()) {
            return Poll::Ready(match self.stage {
                Stage::Frames(_) => self.watch.link.cut_for(RejectReason::Memory).into(),
                _ => StreamCut(RejectReason::Memory).into(),
            });
        }
        over
    }

    /// Ready when the connection is to make room for another one, while its client takes nothing.
    fn poll_makes_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.now();
        if matches!(self.stage, Stage::Frames(_)) {
            return self.poll_shed(now, cx);
        }
        let Some(mark) = self.watch.mark.as_deref() else {
            return Poll::Pending;
        };
        // What no origin has to do with can be asked for again. (A tunnel is no refusal either.)
        if !matches!(self.stage, Stage::Switched) && self.watch.link.is_refused() {
            if !self.is_noted {
                mark.unfinished(now);
                self.is_noted = true;
            }
            return mark.poll_shed(cx);
        }
        Poll::Pending
    }

    fn poll_untaken_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let now = self.now();
        loop {
            ready!(self.outbound.poll_over(now, None, cx));
            let acknowledged =
                self.socket_digest.tcp_info().map_or(self.acknowledged, |tcp| tcp.tcpi_bytes_acked);
            let taken = acknowledged.saturating_sub(self.acknowledged);
            if taken == 0 {
                return Poll::Ready(StreamCut(RejectReason::BodyRate).into());
            }
            self.acknowledged = acknowledged;
            self.outbound.pace.moved(taken, now);
        }
    }

    /// Writes what was gathered.
    fn poll_gathered(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.gathered.len() {
            match Pin::new(&mut self.inner).poll_write(cx, &self.gathered[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    self.taken(written);
                    self.written += written;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_untaken(cx).map(Err),
            }
        }
        self.gathered.clear();
        // A head that was large once is no reason to hold as much for as long as the client likes.
        self.gathered.shrink_to(2 * GATHER);
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// The client takes what is written: a wait for it, if there was one, is over.
    fn taken(&mut self, bytes: usize) {
        self.is_unflushed = true;
        self.watch.memory.add_written(bytes);
        if self.body_at_answer.is_none() && self.inbound.pace.waits() {
            // Once the answer goes on, a wait for the body begins anew with each part of it.
            if matches!(self.watch.link.awaits(), Awaited::Origin(_)) {
                self.inbound.pace.rest();
            }
        }
        if self.outbound.pace.waits() {
            let now = self.now();
            self.outbound.pace.moved(0, now);
            self.count_waiting();
        }
    }

    /// The request has ended: the next one is not refused yet.
    fn forget_refusal(&mut self) {
        if std::mem::take(&mut self.is_noted)
            && let Some(mark) = &self.watch.mark
        {
            mark.busy();
        }
    }

    /// Ends the answers that wait for window.
    fn shed(&mut self, now: Nanos) {
        if let Stage::Frames(watched) = &mut self.stage {
            watched.shed(now);
        }
        self.count_streams();
        self.watch.memory.was_cut();
    }

    /// Counts the streams of HTTP/2 that there are now, and what waits in them.
    fn count_streams(&mut self) {
        if let Stage::Frames(watched) = &self.stage {
            self.watch.memory.set_streams(watched.exchanges.counts());
            self.count_waiting();
        }
    }

    /// Counts the answers that wait for the client: those without window, or all while its socket is full.
    fn count_waiting(&mut self) {
        let is_full = self.outbound.pace.waits();
        let (waiting, blocked) = match &self.stage {
            Stage::Frames(watched) => {
                let counts = watched.exchanges.counts();
                let waiting = if is_full { counts.answering } else { counts.blocked };
                (waiting, waiting)
            }
            _ => (usize::from(is_full), 0),
        };
        let bytes = self.watch.link.expected_answers().min(waiting * MAX_RESPONSE_BYTES);
        self.watch.memory.set_answers(bytes, blocked);
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.stage {
            Stage::Between => Poll::Ready(Ok(())),
            Stage::Head(left, framing) => {
                let bytes = (*left).min(this.ahead.len()).min(buf.remaining());
                buf.put_slice(&this.ahead[..bytes]);
                *left -= bytes;
                this.ahead.advance(bytes);
                if *left == 0 {
                    this.stage = Stage::Body(*framing);
                }
                Poll::Ready(Ok(()))
            }
            Stage::Body(_) if this.watch.link.is_switched() => {
                this.stage = Stage::Switched;
                this.poll_through(cx, buf).map_ok(|_| ())
            }
            Stage::Body(framing) if framing.is_done() => match this.poll_after(cx) {
                Poll::Pending => this.poll_origin(cx),
                ready @ Poll::Ready(_) => ready,
            },
            Stage::Body(framing) => {
                let framing = *framing;
                this.poll_body(framing, cx, buf)
            }
            Stage::Switched => this.poll_through(cx, buf).map_ok(|_| ()),
            Stage::Frames(_) => this.poll_frames(cx, buf),
        }
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.watch.link.origin_timeout().is_some() {
            // What is written comes from the origin: it is not silent.
            this.inbound.pace.rest();
        }
        if this.gathered.len() + buf.len() > GATHER {
            ready!(this.poll_gathered(cx))?;
        }
        if this.watch.link.write_head(buf, &mut this.gathered) {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = if buf.len() < GATHER {
            this.gathered.extend_from_slice(buf);
            buf.len()
        } else {
            match Pin::new(&mut this.inner).poll_write(cx, buf)? {
                Poll::Ready(written) => {
                    this.taken(written);
                    written
                }
                Poll::Pending => return this.poll_untaken(cx).map(Err),
            }
        };
        if let Stage::Frames(watched) = &mut this.stage {
            let now = this.watch.clock.now().mono;
            watched.went(&buf[..written], now);
            let forwards = this.watch.link.expected_answers() > 0;
            watched.note(this.watch.mark.as_deref(), forwards, now);
            this.count_streams();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.watch.link.write_reply(&mut this.gathered);
        if let Stage::Frames(watched) = &mut this.stage {
            watched.write_resets(&mut this.gathered);
        }
        if this.gathered.is_empty() && !this.is_unflushed {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_gathered(cx))?;
        match Pin::new(&mut this.inner).poll_flush(cx) {
            Poll::Ready(result) => {
                if result.is_ok() {
                    this.taken(0);
                    this.is_unflushed = false;
                }
                Poll::Ready(result)
            }
            Poll::Pending => this.poll_untaken(cx).map(Err),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_gathered(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}
