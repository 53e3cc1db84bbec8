//! Watches the frames of an HTTP/2 connection and aborts exchanges that wait too long.
//!
//! The h2 crate offers no deadline for a stream and no way to end one from outside. Therefore an aborted exchange is
//! reported to it as a RST_STREAM that the client seems to have sent ("injected"), so that it drops what it holds; then
//! the client is sent a RST_STREAM as well. The watch does no I/O. What must always hold: frames are injected only
//! between frames of the client, and the client is told only after the h2 crate.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use pingora::protocols::l4::ext::TCP_INFO;
use tokio::time::Sleep;

use super::exchange::ExchangeTimeouts;
use super::exchanges::{AbortedExchange, Exchanges};
use super::frames::{self, Frame, FrameReader};
use super::shed_wait::{ShedWait, is_all_acknowledged};
use crate::clock::Nanos;
use crate::edge::admission::IdleMark;
use crate::edge::state::StreamCut;
use crate::http::RejectReason;

/// The period in which `h2_resets` are counted.
const RESET_WINDOW: Nanos = Nanos::new(60_000_000_000);

/// Error codes of resets that a client provokes by its own errors (RFC 9113, section 7): PROTOCOL_ERROR,
/// FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, ENHANCE_YOUR_CALM.
const PROVOKED_CODES: [u32; 6] = [0x1, 0x3, 0x5, 0x6, 0x7, 0xb];

/// How long an injection may wait for the end of a client's frame: as long as a body may stall.
const INJECT_PATIENCE: Nanos = Nanos::from_secs(20);

/// The same, when the memory of the streams is needed.
const INJECT_PATIENCE_MEMORY: Nanos = Nanos::SECOND;

/// The state of one HTTP/2 connection as seen on the wire.
pub(in crate::edge) struct FrameWatch {
    inbound: FrameReader,
    outbound: FrameReader,
    pub(in crate::edge) exchanges: Exchanges,
    /// RST_STREAM frames for the h2 crate, as if the client had sent them.
    injected: BytesMut,
    /// Until when a frame of the client may delay them.
    inject_deadline: Option<Nanos>,
    /// Resets for the client, sent once the h2 crate has received its own and what it wrote before is out.
    pending_resets: Vec<StreamReset>,
    /// Fires when the next exchange may expire.
    timer: Option<DeadlineTimer>,
    /// Bytes that the client's kernel had acknowledged when the connection was last found idle.
    acknowledged: u64,
    /// The fewest bytes that a client acknowledges in an idle timeout while it reads a response.
    min_acknowledged: u64,
    /// Whether the header block that the client is sending begins a stream.
    begins_stream: bool,
    /// What was last reported to the idle mark.
    reported: ConnectionActivity,
    /// Set while the connection is to close.
    shed_wait: Option<ShedWait>,
    resets: ResetCounter,
}

/// A RST_STREAM frame that is to be sent.
struct StreamReset {
    stream: u32,
    code: u32,
}

struct DeadlineTimer {
    at: Nanos,
    sleep: Pin<Box<Sleep>>,
}

/// RST_STREAM frames from the client, and those that it provoked, in the current [`RESET_WINDOW`].
struct ResetCounter {
    count: u32,
    since: Nanos,
}

impl ResetCounter {
    fn add(&mut self, is_reset: bool) {
        self.count = self.count.saturating_add(is_reset.into());
    }

    /// Begins a new window if the current one is over; returns the count.
    fn roll(&mut self, now: Nanos) -> u32 {
        if now.saturating_sub(self.since) >= RESET_WINDOW {
            *self = Self { count: 0, since: now };
        }
        self.count
    }
}

/// What a connection does, as far as making room for others is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionActivity {
    /// It has no exchange.
    Idle,
    /// It waits for its client: for the end of a frame, or for window for responses that are not an origin's.
    Unfinished,
    /// It serves an exchange.
    Busy,
}

impl FrameWatch {
    /// Watches a connection from its first byte. Its client acknowledges at least `min_acknowledged` bytes in an idle
    /// timeout while it reads a response.
    pub(in crate::edge) fn new(
        timeouts: ExchangeTimeouts,
        min_acknowledged: u64,
        now: Nanos,
    ) -> Self {
        Self {
            inbound: FrameReader::for_client(),
            outbound: FrameReader::for_server(),
            exchanges: Exchanges::new(timeouts, now),
            injected: BytesMut::new(),
            inject_deadline: None,
            pending_resets: Vec::new(),
            timer: None,
            acknowledged: 0,
            min_acknowledged,
            begins_stream: false,
            reported: ConnectionActivity::Busy,
            shed_wait: None,
            resets: ResetCounter { count: 0, since: now },
        }
    }

    /// Observes bytes from the client. Returns whether a frame or header block that was open has ended among them.
    pub(in crate::edge) fn observe_inbound(&mut self, mut bytes: &[u8], now: Nanos) -> bool {
        let mut has_ended = false;
        // All fragments of a header block count as one.
        let mut in_header_block = self.inbound.is_in_header_block();
        // Each one changes the window of every stream, and thousands fit into a SETTINGS frame, so only the last of a
        // run is applied.
        let mut initial_window = None;
        while let Some(frame) = self.inbound.next(&mut bytes) {
            let is_payload_field = matches!(
                frame,
                Frame::WindowUpdate { .. } | Frame::InitialWindow(_) | Frame::Reset { .. }
            );
            has_ended |= !is_payload_field && !in_header_block;
            in_header_block = self.inbound.is_in_header_block();
            self.resets.add(matches!(frame, Frame::Reset { .. }));
            if let Frame::Headers { stream, .. } = frame {
                self.begins_stream = stream > self.exchanges.last_stream();
            }
            match frame {
                Frame::InitialWindow(_) => initial_window = Some(frame),
                Frame::Other => {}
                frame => {
                    if let Some(settings) = initial_window.take() {
                        self.exchanges.observe_inbound(settings, now);
                    }
                    self.exchanges.observe_inbound(frame, now);
                }
            }
        }
        if let Some(settings) = initial_window {
            self.exchanges.observe_inbound(settings, now);
        }
        has_ended || !self.inbound.is_inside()
    }

    /// Observes bytes to the client.
    pub(in crate::edge) fn observe_outbound(&mut self, mut bytes: &[u8], now: Nanos) {
        while let Some(frame) = self.outbound.next(&mut bytes) {
            // For example a window beyond the allowed size, or a second head: such a reset counts like the client's
            // own.
            let is_provoked =
                matches!(frame, Frame::Reset { code, .. } if PROVOKED_CODES.contains(&code));
            self.resets.add(is_provoked);
            self.exchanges.observe_outbound(frame, now);
        }
    }

    /// Whether the client is inside a frame, a header block or the preface.
    pub(in crate::edge) const fn is_inside_frame(&self) -> bool {
        self.inbound.is_inside()
    }

    /// Whether the client is inside the payload of a DATA frame.
    pub(in crate::edge) const fn is_inside_body(&self) -> bool {
        self.inbound.is_inside_body()
    }

    /// Whether what was written to the client ends between two frames.
    pub(in crate::edge) const fn is_between_written_frames(&self) -> bool {
        !self.outbound.is_inside()
    }

    /// The reason to cut a client that does not finish a frame.
    pub(in crate::edge) const fn stalled_frame_reason(&self) -> RejectReason {
        if self.inbound.is_inside_body() {
            RejectReason::BodyRate
        } else {
            RejectReason::HeaderTimeout
        }
    }

    /// The number of resets in the current window; begins a new window if the current one is over.
    pub(in crate::edge) fn roll_resets(&mut self, now: Nanos) -> u32 {
        self.resets.roll(now)
    }

    /// Reports to the idle mark what the connection does. `is_forwarding`: a response of an origin is in progress.
    pub(in crate::edge) fn report_activity(
        &mut self,
        mark: Option<&IdleMark>,
        is_forwarding: bool,
        now: Nanos,
    ) {
        let activity = self.activity(is_forwarding);
        let Some(mark) = mark.filter(|_| activity != self.reported) else {
            return;
        };
        self.reported = activity;
        match activity {
            ConnectionActivity::Idle => mark.set_idle(now),
            ConnectionActivity::Unfinished => mark.set_unfinished(now),
            ConnectionActivity::Busy => {
                self.shed_wait = None;
                mark.set_busy();
            }
        }
    }

    fn activity(&self, is_forwarding: bool) -> ConnectionActivity {
        let counts = self.exchanges.counts();
        // Exchanges whose request head is incomplete.
        let open_heads = usize::from(self.inbound.is_in_header_block() && self.begins_stream);
        match (counts.open, self.inbound.is_inside()) {
            (0, false) => ConnectionActivity::Idle,
            (0, true) => ConnectionActivity::Unfinished,
            // Otherwise a client that never reads a refusal, or never ends a head, would never make room.
            (open, _) if open == counts.blocked + open_heads && !is_forwarding => {
                ConnectionActivity::Unfinished
            }
            (_, _) => ConnectionActivity::Busy,
        }
    }

    /// Until when the kernel was sending the end of the last responses. `None` if it still holds some of them and the
    /// client has acknowledged too little since the last call.
    pub(in crate::edge) fn sending_ended_at(
        &mut self,
        tcp: &TCP_INFO,
        now: Nanos,
    ) -> Option<Nanos> {
        if is_all_acknowledged(tcp) {
            return Some(now.saturating_sub(Nanos::from_millis(tcp.tcpi_last_data_sent.into())));
        }
        let acknowledged = tcp.tcpi_bytes_acked;
        let before = std::mem::replace(&mut self.acknowledged, acknowledged);
        (acknowledged.saturating_sub(before) >= self.min_acknowledged).then_some(now)
    }

    /// Ready when the connection, which is to close, may close: the client has acknowledged everything or has had its
    /// time. `is_written`: everything was given to the kernel.
    pub(in crate::edge) fn poll_may_close(
        &mut self,
        is_written: bool,
        tcp: impl Fn() -> Option<TCP_INFO>,
        now: Nanos,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        loop {
            let tcp = tcp();
            if is_written && tcp.is_none_or(|tcp| is_all_acknowledged(&tcp)) {
                return Poll::Ready(());
            }
            let acknowledged = tcp.map_or(0, |tcp| tcp.tcpi_bytes_acked);
            let wait = self.shed_wait.get_or_insert_with(|| ShedWait::new(acknowledged, now));
            if wait.record(acknowledged, now) {
                return Poll::Ready(());
            }
            ready!(wait.poll_next(cx));
        }
    }

    /// Aborts the exchanges whose deadlines have passed.
    pub(in crate::edge) fn abort_expired(&mut self, now: Nanos) {
        let aborted = self.exchanges.abort_expired(now);
        self.queue_resets(aborted, now.saturating_add(INJECT_PATIENCE));
    }

    /// Aborts the exchanges whose responses wait for window.
    pub(in crate::edge) fn abort_blocked(&mut self, now: Nanos) {
        let aborted = self.exchanges.abort_blocked(now);
        self.queue_resets(aborted, now.saturating_add(INJECT_PATIENCE_MEMORY));
    }

    fn queue_resets(&mut self, aborted: Vec<AbortedExchange>, deadline: Nanos) {
        if !aborted.is_empty() {
            let before = self.inject_deadline();
            self.inject_deadline = Some(before.map_or(deadline, |before| before.min(deadline)));
        }
        for AbortedExchange { stream, reason } in aborted {
            let code = StreamCut::stream_code(reason.reject_reason());
            self.injected.extend_from_slice(&frames::rst_stream(stream, code));
            self.pending_resets.push(StreamReset { stream, code: reason.error_code() });
        }
    }

    /// How many bytes may be read from the client at once. While resets are to be injected, these are the bytes up to
    /// the end of a frame. (A client may never let a read end with a frame.)
    pub(in crate::edge) fn max_read(&self) -> usize {
        if self.injected.is_empty() { usize::MAX } else { self.inbound.bytes_left() }
    }

    /// Whether resets can be injected now: no frame and no header block of the client is open.
    pub(in crate::edge) fn can_inject(&self) -> bool {
        !self.injected.is_empty() && !self.inbound.is_inside()
    }

    /// Whether the client has delayed the injection of resets for too long.
    pub(in crate::edge) fn is_injection_late(&self, now: Nanos) -> bool {
        self.inbound.is_inside() && self.inject_deadline().is_some_and(|deadline| deadline <= now)
    }

    fn inject_deadline(&self) -> Option<Nanos> {
        self.inject_deadline.filter(|_| !self.injected.is_empty())
    }

    /// Takes at most `max` bytes of the resets to inject.
    pub(in crate::edge) fn take_injected(&mut self, max: usize) -> BytesMut {
        let bytes = self.injected.len().min(max);
        self.injected.split_to(bytes)
    }

    /// Writes the pending resets for the client, if they may be written now.
    pub(in crate::edge) fn write_resets(&mut self, out: &mut Vec<u8>) {
        if self.injected.is_empty() && !self.outbound.is_inside() {
            for StreamReset { stream, code } in self.pending_resets.drain(..) {
                out.extend_from_slice(&frames::rst_stream(stream, code));
            }
        }
    }

    /// Ready when an exchange or an injection may be late, or the idle timeout over.
    pub(in crate::edge) fn poll_timer(&mut self, now: Nanos, cx: &mut Context<'_>) -> Poll<()> {
        let deadlines = self.exchanges.next_deadline().into_iter().chain(self.inject_deadline());
        let Some(next) = deadlines.min() else {
            return Poll::Pending;
        };
        if next <= now {
            return Poll::Ready(());
        }
        let left = || tokio::time::sleep(next.saturating_sub(now).into());
        let timer = match &mut self.timer {
            // A timer that fires too early is set again then. Setting it at each change would cost more.
            Some(timer) if timer.at <= next => match timer.sleep.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => {
                    timer.sleep.set(left());
                    timer
                }
            },
            Some(timer) => {
                timer.sleep.set(left());
                timer
            }
            None => self.timer.insert(DeadlineTimer { at: next, sleep: Box::pin(left()) }),
        };
        timer.at = next;
        // The timer was set just now; this call registers the task to wake.
        timer.sleep.as_mut().poll(cx)
    }
}
