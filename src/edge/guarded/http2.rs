//! A connection of HTTP/2 as its stream watches it: what passes, what is over, and what both sides are told
//! of it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use pingora::protocols::l4::ext::TCP_INFO;
use tokio::time::Sleep;

use super::{Guarded, Stage};
use crate::clock::Nanos;
use crate::edge::exchanges::{Exchanges, Over, Rules};
use crate::edge::frames::{self, Frame, Reader};
use crate::edge::idle_mark::IdleMark;
use crate::edge::link::StreamCut;
use crate::http::RejectReason;

/// In which `h2_resets` are counted.
pub(crate) const RESET_WINDOW: Nanos = Nanos::new(60_000_000_000);

/// Codes of resets for what a client did wrong (RFC 9113, section 7): PROTOCOL_ERROR, FLOW_CONTROL_ERROR,
/// STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, ENHANCE_YOUR_CALM.
const PROVOKED: [u32; 6] = [0x1, 0x3, 0x5, 0x6, 0x7, 0xb];

/// How long a connection that is to close waits for a client that goes on taking the end of its last answer:
/// what it has not acknowledged would be lost.
const SHED_PATIENCE: Nanos = Nanos::from_secs(5);

/// How long it waits while the client takes nothing.
const SHED_STALL: Nanos = Nanos::SECOND;

/// How long the implementation may wait for the end of a frame before it is told of resets: as long as a body
/// may stall.
const FRAME_PATIENCE: Nanos = Nanos::from_secs(20);

/// The same, when the memory of the streams is needed.
const FRAME_PATIENCE_MEMORY: Nanos = Nanos::SECOND;

/// Between two looks: acknowledgements come after 40 ms at the latest, unless the way is long.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct FrameWatch {
    pub(crate) inbound: Reader,
    pub(crate) outbound: Reader,
    pub(crate) exchanges: Exchanges,
    /// Frames by which the implementation of HTTP/2 is told that the client has reset streams.
    pub(crate) injected: BytesMut,
    /// Until when a frame of the client may keep them waiting.
    injected_by: Option<Nanos>,
    /// Resets that the client is to be told of, with their codes: once the implementation knows of them, and
    /// what it has written before is out.
    pub(crate) resets_due: Vec<(u32, u32)>,
    /// Fires when the next exchange may be over.
    timer: Option<(Nanos, Pin<Box<Sleep>>)>,
    /// Bytes that the client's kernel had acknowledged when the connection was last found idle.
    acknowledged: u64,
    /// Fewest bytes that it acknowledges in an idle timeout while it takes an answer.
    least_acknowledged: u64,
    /// Whether the header block that the client is in the midst of begins a stream.
    begins_stream: bool,
    /// What was noted last.
    noted: State,
    /// Set while the connection is to close.
    shedding: Option<Shedding>,
    /// RST_STREAM frames from the client, and those that it made the implementation write.
    resets: u32,
    resets_since: Nanos,
}

/// What a connection does, for who needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has no exchange.
    Idle,
    /// It waits for its client: for the end of a frame, or for window for what does not come from an origin.
    Unfinished,
    Busy,
}

/// A connection that is to close, and whose client has not taken everything.
struct Shedding {
    since: Nanos,
    /// Bytes that the client's kernel has acknowledged, and when it last acknowledged more.
    acknowledged: u64,
    moved: Nanos,
    /// When to look again.
    again: Pin<Box<Sleep>>,
}

impl Shedding {
    fn new(acknowledged: u64, now: Nanos) -> Self {
        Self { since: now, acknowledged, moved: now, again: Self::look_again() }
    }

    fn look_again() -> Pin<Box<Sleep>> {
        Box::pin(tokio::time::sleep(LOOK))
    }

    /// Whether the client has had its time, now that it has acknowledged so much.
    fn is_over(&mut self, acknowledged: u64, now: Nanos) -> bool {
        if std::mem::replace(&mut self.acknowledged, acknowledged) != acknowledged {
            self.moved = now;
        }
        let lasts = |since: Nanos, patience| now.saturating_sub(since) >= patience;
        lasts(self.moved, SHED_STALL) || lasts(self.since, SHED_PATIENCE)
    }
}

impl FrameWatch {
    /// Watches a connection whose bytes have yet to come. Its client acknowledges at least `least_acknowledged`
    /// bytes in an idle timeout while it takes an answer.
    pub(crate) fn new(rules: Rules, least_acknowledged: u64, now: Nanos) -> Self {
        Self {
            inbound: Reader::of_client(),
            outbound: Reader::of_server(),
            exchanges: Exchanges::new(rules, now),
            injected: BytesMut::new(),
            injected_by: None,
            resets_due: Vec::new(),
            timer: None,
            acknowledged: 0,
            least_acknowledged,
            begins_stream: false,
            noted: State::Busy,
            shedding: None,
            resets: 0,
            resets_since: now,
        }
    }

    /// Until when the kernel has been sending what the last answers left with it. None: it still holds some of
    /// it, and the client has taken too little since the last look.
    pub(crate) fn sent(&mut self, tcp: &TCP_INFO, now: Nanos) -> Option<Nanos> {
        if is_taken(tcp) {
            return Some(now.saturating_sub(Nanos::from_millis(tcp.tcpi_last_data_sent.into())));
        }
        let acknowledged = tcp.tcpi_bytes_acked;
        let before = std::mem::replace(&mut self.acknowledged, acknowledged);
        (acknowledged.saturating_sub(before) >= self.least_acknowledged).then_some(now)
    }

    /// Writes the resets that the client is to be told of, if they may come now.
    pub(crate) fn write_resets(&mut self, out: &mut Vec<u8>) {
        if self.injected.is_empty() && !self.outbound.is_inside() {
            for (stream, code) in self.resets_due.drain(..) {
                out.extend_from_slice(&frames::reset(stream, code));
            }
        }
    }

    /// Bytes came from the client. Says whether what it was in the midst of has ended among them.
    pub(crate) fn came(&mut self, mut bytes: &[u8], now: Nanos) -> bool {
        let mut ended = false;
        // The parts of a header block are one thing, however many there are.
        let mut in_block = self.inbound.is_in_block();
        // Each one changes the window of every stream; thousands of them fit into a frame.
        let mut initial_window = None;
        while let Some(frame) = self.inbound.next(&mut bytes) {
            let is_payload = matches!(
                frame,
                Frame::Window { .. } | Frame::InitialWindow(_) | Frame::Reset { .. }
            );
            let is_head = !is_payload;
            ended |= is_head && !in_block;
            in_block = self.inbound.is_in_block();
            self.resets = self.resets.saturating_add(matches!(frame, Frame::Reset { .. }).into());
            if let Frame::Headers { stream, .. } = frame {
                self.begins_stream = stream > self.exchanges.last();
            }
            match frame {
                Frame::InitialWindow(_) => initial_window = Some(frame),
                Frame::Other => {}
                other => {
                    initial_window.take().into_iter().for_each(|one| self.exchanges.came(one, now));
                    self.exchanges.came(other, now);
                }
            }
        }
        initial_window.into_iter().for_each(|one| self.exchanges.came(one, now));
        ended || !self.inbound.is_inside()
    }

    /// Bytes go to the client.
    pub(crate) fn went(&mut self, mut bytes: &[u8], now: Nanos) {
        while let Some(frame) = self.outbound.next(&mut bytes) {
            // A window beyond what the protocol allows, a second head, and so on: taken back all the same.
            let is_provoked =
                matches!(frame, Frame::Reset { code, .. } if PROVOKED.contains(&code));
            self.resets = self.resets.saturating_add(is_provoked.into());
            self.exchanges.went(frame, now);
        }
    }

    /// Notes what the connection does; `forwards`: an answer of an origin is on its way.
    pub(crate) fn note(&mut self, mark: Option<&IdleMark>, forwards: bool, now: Nanos) {
        let state = self.state(forwards);
        let Some(mark) = mark.filter(|_| state != self.noted) else {
            return;
        };
        self.noted = state;
        match state {
            State::Idle => mark.idle(now),
            State::Unfinished => mark.unfinished(now),
            State::Busy => {
                self.shedding = None;
                mark.busy();
            }
        }
    }

    fn state(&self, forwards: bool) -> State {
        let counts = self.exchanges.counts();
        match (counts.open, self.inbound.is_inside()) {
            (0, false) => State::Idle,
            (0, true) => State::Unfinished,
            // Else a client that never reads a refusal, or never ends a head, would never make room.
            (open, _) if open == counts.blocked + self.open_heads() && !forwards => {
                State::Unfinished
            }
            (_, _) => State::Busy,
        }
    }

    /// Exchanges whose request's head has not come whole.
    fn open_heads(&self) -> usize {
        usize::from(self.inbound.is_in_block() && self.begins_stream)
    }

    /// Ends the exchanges that are over.
    pub(crate) fn give_up(&mut self, now: Nanos) {
        let over = self.exchanges.over(now);
        self.reset(over, now.saturating_add(FRAME_PATIENCE));
    }

    /// Ends the exchanges whose answers wait for window.
    pub(crate) fn shed(&mut self, now: Nanos) {
        let blocked = self.exchanges.shed(now);
        self.reset(blocked, now.saturating_add(FRAME_PATIENCE_MEMORY));
    }

    fn reset(&mut self, over: Vec<(u32, Over)>, by: Nanos) {
        if !over.is_empty() {
            let before = self.injected_by.filter(|_| !self.injected.is_empty());
            self.injected_by = Some(before.map_or(by, |before| before.min(by)));
        }
        for (stream, why) in over {
            let code = StreamCut::stream_code(why.reason());
            self.injected.extend_from_slice(&frames::reset(stream, code));
            self.resets_due.push((stream, why.code()));
        }
    }

    /// How many bytes may be read before the implementation is told of resets: those up to the end of a frame,
    /// since nothing may come between its parts. (A client may never let a read end with a frame.)
    pub(crate) fn most_read(&self) -> usize {
        if self.injected.is_empty() { usize::MAX } else { self.inbound.left() }
    }

    /// Whether the client keeps the implementation from being told of resets for too long.
    pub(crate) fn is_kept_waiting(&self, now: Nanos) -> bool {
        self.inbound.is_inside() && self.told_by().is_some_and(|by| by <= now)
    }

    /// Whether the implementation can be told of resets now: nothing may come between the parts of a frame, or
    /// of a header block.
    pub(crate) fn tells_now(&self) -> bool {
        !self.injected.is_empty() && !self.inbound.is_inside()
    }

    fn told_by(&self) -> Option<Nanos> {
        self.injected_by.filter(|_| !self.injected.is_empty())
    }

    /// Why a client is cut that does not end a frame.
    pub(crate) const fn frame_reason(&self) -> RejectReason {
        if self.inbound.is_inside_data() {
            RejectReason::BodyRate
        } else {
            RejectReason::HeaderTimeout
        }
    }

    /// Whether the client has taken back too many requests lately.
    pub(crate) fn has_too_many_resets(&mut self, most: u32, now: Nanos) -> bool {
        if now.saturating_sub(self.resets_since) >= RESET_WINDOW {
            self.resets_since = now;
            self.resets = 0;
        }
        self.resets > most
    }

    /// Ready when something may be over.
    pub(crate) fn poll_timer(&mut self, now: Nanos, cx: &mut Context<'_>) -> Poll<()> {
        let Some(next) = self.exchanges.next().into_iter().chain(self.told_by()).min() else {
            return Poll::Pending;
        };
        if next <= now {
            return Poll::Ready(());
        }
        let left = || tokio::time::sleep(next.saturating_sub(now).into());
        match &mut self.timer {
            // One that fires too early is set again then; one for each exchange would cost more.
            Some((at, timer)) if *at <= next => match timer.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => timer.set(left()),
            },
            Some((_, timer)) => timer.set(left()),
            None => self.timer = Some((next, Box::pin(left()))),
        }
        if let Some((at, timer)) = &mut self.timer {
            *at = next;
            // It was set just now: this only says whom to wake.
            return timer.as_mut().poll(cx);
        }
        Poll::Pending
    }
}

impl Guarded {
    /// Ready when the connection is to close to make room for another one. What its client has not
    /// acknowledged would be lost with it, so that is waited for a while.
    pub(crate) fn poll_shed(&mut self, now: Nanos, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Frames(watched) = &mut self.stage else {
            return Poll::Pending;
        };
        let mark = self.watch.mark.as_deref();
        if mark.is_none_or(|mark| mark.poll_shed(cx).is_pending()) {
            return Poll::Pending;
        }
        let is_written =
            self.gathered.is_empty() && !self.is_unflushed && watched.exchanges.is_idle();
        loop {
            let tcp = self.socket_digest.tcp_info();
            if is_written && tcp.is_none_or(|tcp| is_taken(&tcp)) {
                return Poll::Ready(());
            }
            let acknowledged = tcp.map_or(0, |tcp| tcp.tcpi_bytes_acked);
            let shedding = watched.shedding.get_or_insert_with(|| Shedding::new(acknowledged, now));
            if shedding.is_over(acknowledged, now) {
                return Poll::Ready(());
            }
            ready!(shedding.again.as_mut().poll(cx));
            shedding.again = Shedding::look_again();
        }
    }
}

/// Whether the client's kernel has acknowledged everything.
const fn is_taken(tcp: &TCP_INFO) -> bool {
    tcp.tcpi_unacked == 0 && tcp.tcpi_notsent_bytes == 0
}

impl Over {
    /// What a request that fails for it is refused for; none, if it has its answer.
    const fn reason(self) -> Option<RejectReason> {
        match self {
            Self::SlowBody | Self::SlowReader => Some(RejectReason::BodyRate),
            Self::Memory => Some(RejectReason::Memory),
            Self::Rest => None,
        }
    }

    /// What the client is told (RFC 9113, section 7): that its request need not go on, since the answer
    /// is whole (section 8.1), that the stream is not needed any longer, or that it is too much.
    const fn code(self) -> u32 {
        const NO_ERROR: u32 = 0x0;
        const CANCEL: u32 = 0x8;
        const ENHANCE_YOUR_CALM: u32 = 0xb;
        match self {
            Self::Rest => NO_ERROR,
            Self::SlowBody | Self::SlowReader => CANCEL,
            Self::Memory => ENHANCE_YOUR_CALM,
        }
    }
}
