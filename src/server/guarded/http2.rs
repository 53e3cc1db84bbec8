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
use crate::proxy::{Cut, Reason};
use crate::server::exchanges::{Exchanges, Over, Rules};
use crate::server::frames::{self, Frame, Reader};
use crate::server::idle_mark::IdleMark;

/// In which `h2_resets` are counted.
pub(super) const RESET_WINDOW: Nanos = Nanos::new(60_000_000_000);

/// How long a connection that is to close waits until its client has acknowledged the last answer. One
/// that takes longer is no idle one: its client is reading.
const SHED_PATIENCE: Nanos = Nanos::SECOND;

/// Between two looks: acknowledgements come after 40 ms at the latest, unless the way is long.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct FrameWatch {
    pub(super) inbound: Reader,
    pub(super) outbound: Reader,
    pub(super) exchanges: Exchanges,
    /// Frames by which the implementation of HTTP/2 is told that the client has reset streams.
    pub(super) injected: BytesMut,
    /// Resets that the client is to be told of, with their codes: once the implementation knows of them, and
    /// what it has written before is out.
    pub(super) resets_due: Vec<(u32, u32)>,
    /// Fires when the next exchange may be over.
    timer: Option<(Nanos, Pin<Box<Sleep>>)>,
    /// Bytes that the client's kernel had acknowledged when the connection was last found idle.
    acknowledged: u64,
    /// What was noted last.
    is_noted_idle: bool,
    /// Since when the connection is to close, and when it looks again whether it can.
    shed: Option<(Nanos, Pin<Box<Sleep>>)>,
    /// RST_STREAM frames from the client.
    resets: u32,
    resets_since: Nanos,
}

impl FrameWatch {
    /// Watches a connection whose bytes have yet to come.
    pub(super) fn new(rules: Rules, now: Nanos) -> Self {
        Self {
            inbound: Reader::of_client(),
            outbound: Reader::of_server(),
            exchanges: Exchanges::new(rules, now),
            injected: BytesMut::new(),
            resets_due: Vec::new(),
            timer: None,
            acknowledged: 0,
            is_noted_idle: false,
            shed: None,
            resets: 0,
            resets_since: now,
        }
    }

    /// Until when the kernel has been sending what the last answers left with it. None: it still holds some of
    /// it, and the client has taken nothing since the last look.
    pub(super) fn sent(&mut self, tcp: &TCP_INFO, now: Nanos) -> Option<Nanos> {
        if is_taken(tcp) {
            return Some(now.saturating_sub(Nanos::from_millis(tcp.tcpi_last_data_sent.into())));
        }
        let acknowledged = tcp.tcpi_bytes_acked;
        let before = std::mem::replace(&mut self.acknowledged, acknowledged);
        (acknowledged != before).then_some(now)
    }

    /// Writes the resets that the client is to be told of, if they may come now.
    pub(super) fn write_resets(&mut self, out: &mut Vec<u8>) {
        if self.injected.is_empty() && !self.outbound.is_inside() {
            for (stream, code) in self.resets_due.drain(..) {
                out.extend_from_slice(&frames::reset(stream, code));
            }
        }
    }

    /// Bytes came from the client. Says whether what it was in the midst of has ended among them.
    pub(super) fn came(&mut self, mut bytes: &[u8], now: Nanos) -> bool {
        let mut ended = false;
        // The parts of a header block are one thing, however many there are.
        let mut in_block = self.inbound.is_in_block();
        // Each one changes the window of every stream; thousands of them fit into a frame.
        let mut initial_window = None;
        while let Some(frame) = self.inbound.next(&mut bytes) {
            let is_head = !matches!(frame, Frame::Window { .. } | Frame::InitialWindow(_));
            ended |= is_head && !in_block;
            in_block = self.inbound.is_in_block();
            self.resets = self.resets.saturating_add(matches!(frame, Frame::Reset { .. }).into());
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
    pub(super) fn went(&mut self, mut bytes: &[u8], now: Nanos) {
        while let Some(frame) = self.outbound.next(&mut bytes) {
            self.exchanges.went(frame, now);
        }
    }

    /// Notes whether the connection is idle: without exchanges, and not in the midst of a frame.
    pub(super) fn note(&mut self, mark: Option<&IdleMark>, now: Nanos) {
        let is_idle = self.exchanges.is_idle() && !self.inbound.is_inside();
        let Some(mark) = mark.filter(|_| is_idle != self.is_noted_idle) else {
            return;
        };
        self.is_noted_idle = is_idle;
        self.shed = None;
        if is_idle { mark.idle(now) } else { mark.busy() }
    }

    /// The connection does not close, though it was told to: it is not idle until something has passed
    /// again.
    fn stays(&mut self, mark: &IdleMark) {
        self.is_noted_idle = false;
        self.shed = None;
        mark.busy();
    }

    /// Ends the exchanges that are over.
    pub(super) fn give_up(&mut self, now: Nanos) {
        let over = self.exchanges.over(now);
        self.reset(over);
    }

    /// Ends the exchanges whose answers wait for window.
    pub(super) fn shed(&mut self, now: Nanos) {
        let blocked = self.exchanges.shed(now);
        self.reset(blocked);
    }

    fn reset(&mut self, over: Vec<(u32, Over)>) {
        for (stream, why) in over {
            let code = Cut::stream_code(why.reason());
            self.injected.extend_from_slice(&frames::reset(stream, code));
            self.resets_due.push((stream, why.code()));
        }
    }

    /// Whether the client has taken back too many requests lately.
    pub(super) fn has_too_many_resets(&mut self, most: u32, now: Nanos) -> bool {
        if now.saturating_sub(self.resets_since) >= RESET_WINDOW {
            self.resets_since = now;
            self.resets = 0;
        }
        self.resets > most
    }

    /// Ready when something may be over.
    pub(super) fn poll_timer(&mut self, now: Nanos, cx: &mut Context<'_>) -> Poll<()> {
        let Some(next) = self.exchanges.next() else {
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
    pub(super) fn poll_shed(&mut self, now: Nanos, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Frames(watched) = &mut self.stage else {
            return Poll::Pending;
        };
        let mark = self.watch.mark.as_deref();
        let Some(mark) = mark.filter(|mark| mark.poll_shed(cx).is_ready()) else {
            return Poll::Pending;
        };
        let is_written = self.gathered.is_empty() && !self.is_unflushed;
        loop {
            if is_written && self.socket_digest.tcp_info().is_none_or(|tcp| is_taken(&tcp)) {
                return Poll::Ready(());
            }
            let look_again = || Box::pin(tokio::time::sleep(LOOK));
            let (since, again) = watched.shed.get_or_insert_with(|| (now, look_again()));
            if now.saturating_sub(*since) >= SHED_PATIENCE {
                watched.stays(mark);
                return Poll::Pending;
            }
            ready!(again.as_mut().poll(cx));
            *again = look_again();
        }
    }
}

/// Whether the client's kernel has acknowledged everything.
const fn is_taken(tcp: &TCP_INFO) -> bool {
    tcp.tcpi_unacked == 0 && tcp.tcpi_notsent_bytes == 0
}

impl Over {
    /// What a request that fails for it is refused for; none, if it has its answer.
    const fn reason(self) -> Option<Reason> {
        match self {
            Self::SlowBody | Self::SlowReader => Some(Reason::BodyRate),
            Self::Memory => Some(Reason::Memory),
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
