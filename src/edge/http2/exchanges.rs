//! All exchanges of one HTTP/2 connection, updated by the frames of both directions.
//!
//! It keeps the flow-control windows, the earliest deadline and the counts of exchanges. The h2 crate forgets a
//! response once it is queued; what is observed here has passed on the wire. Time is an argument; nothing here waits.
//! What must always hold: the counts equal the exchanges' states, and no deadline is earlier than
//! [`Exchanges::next_deadline`].

use hashbrown::HashMap;

use super::exchange::{AbortReason, Exchange, ExchangeTimeouts, FlowWindows};
use super::frames::Frame;
use crate::clock::Nanos;

/// The initial window of a stream and of a connection (RFC 9113, section 6.9.2).
const INITIAL_WINDOW: i64 = 65_535;

/// Exchanges that are observed at once; the largest `h2_streams` that the configuration allows.
const MAX_EXCHANGES: usize = 10_000;

/// How many exchanges there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::edge) struct ExchangeCounts {
    /// Exchanges that have not ended.
    pub(in crate::edge) open: usize,
    /// Those whose response has begun and not ended.
    pub(in crate::edge) answering: usize,
    /// Those whose response waits for window.
    pub(in crate::edge) blocked: usize,
    /// Bytes of bodies that were received and not read by the proxy yet.
    pub(in crate::edge) unread: usize,
}

/// An exchange that is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AbortedExchange {
    pub(super) stream: u32,
    pub(super) reason: AbortReason,
}

/// All exchanges of a connection.
#[derive(Debug)]
pub(in crate::edge) struct Exchanges {
    timeouts: ExchangeTimeouts,
    open: HashMap<u32, Exchange>,
    /// The windows of the connection.
    windows: FlowWindows,
    /// The windows of a new stream.
    initial: FlowWindows,
    /// The last stream that the client began.
    last_stream: u32,
    /// Since when there has been no exchange.
    idle_since: Nanos,
    /// No exchange has an earlier deadline.
    next_deadline: Option<Nanos>,
    /// The numbers of open exchanges with a response in progress, and of those that wait for window.
    answering: usize,
    blocked: usize,
}

impl Exchanges {
    pub(super) fn new(timeouts: ExchangeTimeouts, now: Nanos) -> Self {
        let windows = FlowWindows { inbound: INITIAL_WINDOW, outbound: INITIAL_WINDOW };
        Self {
            timeouts,
            open: HashMap::new(),
            windows,
            initial: windows,
            last_stream: 0,
            idle_since: now,
            next_deadline: None,
            answering: 0,
            blocked: 0,
        }
    }

    /// How many there are.
    pub(in crate::edge) fn counts(&self) -> ExchangeCounts {
        // The h2 crate opens the connection's window again as bodies are read, and never beyond its initial size.
        let unread = usize::try_from(INITIAL_WINDOW - self.windows.inbound).unwrap_or(0);
        let (open, answering, blocked) = (self.open.len(), self.answering, self.blocked);
        ExchangeCounts { open, answering, blocked, unread }
    }

    /// Removes all exchanges whose responses wait for window, to free their memory.
    pub(super) fn abort_blocked(&mut self, now: Nanos) -> Vec<AbortedExchange> {
        let blocked = self.open.iter().filter(|(_, exchange)| exchange.is_blocked());
        let reason = AbortReason::Memory;
        let aborted = blocked.map(|(stream, _)| AbortedExchange { stream: *stream, reason });
        let aborted: Vec<_> = aborted.collect();
        aborted.iter().for_each(|aborted| self.remove(aborted.stream, now));
        aborted
    }

    /// Removes all exchanges whose deadlines have passed.
    pub(super) fn abort_expired(&mut self, now: Nanos) -> Vec<AbortedExchange> {
        if self.next_deadline.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let rest = self.timeouts.rest;
        let expired = |(stream, exchange): (&u32, &Exchange)| {
            let deadline = exchange.deadline(rest).filter(|deadline| deadline.at <= now)?;
            Some(AbortedExchange { stream: *stream, reason: deadline.reason })
        };
        let aborted: Vec<_> = self.open.iter().filter_map(expired).collect();
        aborted.iter().for_each(|aborted| self.remove(aborted.stream, now));
        let deadlines = self.open.values().filter_map(|exchange| exchange.deadline(rest));
        self.next_deadline = deadlines.map(|deadline| deadline.at).min();
        aborted
    }

    /// Observes a frame from the client.
    pub(super) fn observe_inbound(&mut self, frame: Frame, now: Nanos) {
        match frame {
            Frame::Headers { stream, ends } => {
                // Streams are opened in the order of their numbers (RFC 9113, section 5.1.1). A lower number belongs to
                // a stream that has ended, and what still arrives for it is dropped.
                if stream > self.last_stream {
                    self.begin(stream);
                }
                self.update(stream, now, |exchange| exchange.end_request_if(ends));
            }
            Frame::Data { stream, bytes, ends } => {
                let before = self.windows.inbound;
                self.windows.inbound -= i64::from(bytes);
                self.update(stream, now, |exchange| exchange.receive_body(bytes, ends, now));
                self.update_all_if_toggled(before, self.windows.inbound, now);
            }
            Frame::WindowUpdate { stream: 0, increment } => {
                let before = self.windows.outbound;
                self.windows.outbound += i64::from(increment);
                self.update_all_if_toggled(before, self.windows.outbound, now);
            }
            Frame::WindowUpdate { stream, increment } => {
                let increment = i64::from(increment);
                self.update(stream, now, |exchange| exchange.windows.outbound += increment);
            }
            Frame::InitialWindow(size) => {
                let increment = i64::from(size) - self.initial.outbound;
                self.initial.outbound += increment;
                self.update_all(now, |exchange| exchange.windows.outbound += increment);
            }
            Frame::Reset { stream, .. } => self.remove(stream, now),
            Frame::Other => {}
        }
    }

    /// Observes a frame to the client.
    pub(super) fn observe_outbound(&mut self, frame: Frame, now: Nanos) {
        match frame {
            Frame::Headers { stream, ends } => {
                self.update(stream, now, |exchange| exchange.advance_response(ends, now));
            }
            Frame::Data { stream, bytes, ends } => {
                let before = self.windows.outbound;
                self.windows.outbound -= i64::from(bytes);
                self.update(stream, now, |exchange| exchange.send_body(bytes, ends, now));
                self.update_all_if_toggled(before, self.windows.outbound, now);
            }
            Frame::WindowUpdate { stream: 0, increment } => {
                let before = self.windows.inbound;
                self.windows.inbound += i64::from(increment);
                self.update_all_if_toggled(before, self.windows.inbound, now);
            }
            Frame::WindowUpdate { stream, increment } => {
                let increment = i64::from(increment);
                self.update(stream, now, |exchange| exchange.windows.inbound += increment);
            }
            Frame::InitialWindow(size) => {
                let increment = i64::from(size) - self.initial.inbound;
                self.initial.inbound += increment;
                self.update_all(now, |exchange| exchange.windows.inbound += increment);
            }
            Frame::Reset { stream, .. } => self.remove(stream, now),
            Frame::Other => {}
        }
    }

    /// When to look for expired exchanges, or for the idle timeout of the connection.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        match self.is_empty() {
            true => Some(self.idle_since.saturating_add(self.timeouts.idle)),
            false => self.next_deadline,
        }
    }

    /// Whether the connection has had no exchange for the idle timeout.
    pub(in crate::edge) fn is_idle_expired(&self, now: Nanos) -> bool {
        self.is_empty() && self.idle_since.saturating_add(self.timeouts.idle) <= now
    }

    /// The connection is idle since `since` at the earliest: until then the kernel was sending the last responses.
    pub(in crate::edge) fn postpone_idle_start(&mut self, since: Nanos) {
        self.idle_since = self.idle_since.max(since);
    }

    /// The last stream that the client began.
    pub(in crate::edge) const fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Whether there is no exchange.
    pub(in crate::edge) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    fn begin(&mut self, stream: u32) {
        self.last_stream = stream;
        if self.open.len() < MAX_EXCHANGES {
            self.open.insert(stream, Exchange::new(self.initial, &self.timeouts));
        }
    }

    fn remove(&mut self, stream: u32, now: Nanos) {
        let Some(removed) = self.open.remove(&stream) else {
            return;
        };
        self.answering -= usize::from(removed.is_answering());
        self.blocked -= usize::from(removed.is_blocked());
        if self.is_empty() {
            self.idle_since = now;
        }
    }

    /// Changes an exchange and updates its waits, the counts and the earliest deadline.
    fn update(&mut self, stream: u32, now: Nanos, change: impl FnOnce(&mut Exchange)) {
        let Some(exchange) = self.open.get_mut(&stream) else {
            return;
        };
        let (was_answering, was_blocked) = (exchange.is_answering(), exchange.is_blocked());
        change(exchange);
        exchange.update_waits(self.windows, now);
        let deadline = exchange.deadline(self.timeouts.rest);
        self.answering += usize::from(exchange.is_answering());
        self.answering -= usize::from(was_answering);
        self.blocked += usize::from(exchange.is_blocked());
        self.blocked -= usize::from(was_blocked);
        if exchange.is_complete() {
            return self.remove(stream, now);
        }
        self.next_deadline = earliest(self.next_deadline, deadline.map(|deadline| deadline.at));
    }

    /// Changes all exchanges, and updates their waits.
    fn update_all(&mut self, now: Nanos, mut change: impl FnMut(&mut Exchange)) {
        let (mut next, mut blocked) = (self.next_deadline, 0);
        for exchange in self.open.values_mut() {
            change(exchange);
            exchange.update_waits(self.windows, now);
            let deadline = exchange.deadline(self.timeouts.rest);
            next = earliest(next, deadline.map(|deadline| deadline.at));
            blocked += usize::from(exchange.is_blocked());
        }
        (self.next_deadline, self.blocked) = (next, blocked);
    }

    /// A window of the connection has changed. All exchanges begin or end waits when it was used up or opens again.
    fn update_all_if_toggled(&mut self, before: i64, after: i64, now: Nanos) {
        if (before > 0) != (after > 0) {
            self.update_all(now, |_| {});
        }
    }
}

fn earliest(first: Option<Nanos>, second: Option<Nanos>) -> Option<Nanos> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.min(second)),
        (first, second) => first.or(second),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::edge::pace::Pace;

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    fn exchanges() -> Exchanges {
        let rate = NonZeroU64::new(256);
        let timeouts = ExchangeTimeouts {
            body: Pace::new(at(20), rate),
            response: Pace::new(at(60), rate),
            rest: at(1),
            idle: at(30),
        };
        Exchanges::new(timeouts, at(0))
    }

    const fn head(stream: u32, ends: bool) -> Frame {
        Frame::Headers { stream, ends }
    }

    const fn data_frame(stream: u32, bytes: u32, ends: bool) -> Frame {
        Frame::Data { stream, bytes, ends }
    }

    /// Second, stream and reason of each abort, looking only at the announced deadlines.
    fn run(all: &mut Exchanges, until: u64) -> Vec<(u64, u32, AbortReason)> {
        let mut seen = Vec::new();
        while let Some(next) =
            all.next_deadline().filter(|next| *next <= at(until) && !all.is_idle_expired(*next))
        {
            for AbortedExchange { stream, reason } in all.abort_expired(next) {
                seen.push((next.secs(), stream, reason));
            }
        }
        seen.sort_unstable_by_key(|(second, stream, _)| (*second, *stream));
        seen
    }

    #[test]
    fn each_body_has_its_own_credit() {
        let mut all = exchanges();
        for stream in [1, 3, 5] {
            all.observe_inbound(head(stream, false), at(0));
        }
        // An exchange that moves does not extend the deadline of another.
        for second in 1..30 {
            assert_eq!(run(&mut all, second - 1).is_empty(), second != 21, "{second}");
            all.observe_inbound(data_frame(1, 1_000, false), at(second));
        }
        assert_eq!(run(&mut all, 60), [(49, 1, AbortReason::SlowBody)]);
        assert!(all.is_idle_expired(at(79)) && !all.is_idle_expired(at(78)));
    }

    #[test]
    fn a_body_without_window_is_not_awaited() {
        let mut all = exchanges();
        all.observe_inbound(head(1, false), at(0));
        all.observe_inbound(head(3, false), at(0));
        all.observe_inbound(data_frame(1, 65_535, false), at(1));
        assert_eq!(run(&mut all, 1_000), [], "the connection's window is used up");
        all.observe_outbound(Frame::WindowUpdate { stream: 0, increment: 10 }, at(1_000));
        assert_eq!(run(&mut all, 2_000), [(1_020, 3, AbortReason::SlowBody)]);
        all.observe_outbound(Frame::WindowUpdate { stream: 1, increment: 10 }, at(2_000));
        assert_eq!(run(&mut all, 3_000), [(2_020, 1, AbortReason::SlowBody)]);
    }

    #[test]
    fn the_rest_of_a_body_has_a_short_time_after_the_response() {
        let mut all = exchanges();
        for stream in [1, 3, 5] {
            all.observe_inbound(head(stream, false), at(0));
            all.observe_outbound(head(stream, false), at(1));
        }
        assert_eq!(run(&mut all, 1_000), [], "the response is in progress: the origin is awaited");
        all.observe_outbound(data_frame(1, 5, true), at(1_000));
        all.observe_outbound(data_frame(3, 5, true), at(1_000));
        all.observe_inbound(data_frame(3, 5, true), at(1_000));
        assert_eq!(run(&mut all, 2_000), [(1_001, 1, AbortReason::UnfinishedRequest)]);
    }

    #[test]
    fn a_client_is_aborted_if_it_reads_nothing_and_not_if_it_reads_some() {
        let mut all = exchanges();
        all.observe_inbound(Frame::InitialWindow(1_000), at(0));
        for stream in [1, 3] {
            all.observe_inbound(head(stream, true), at(0));
            all.observe_outbound(head(stream, false), at(0));
            all.observe_outbound(data_frame(stream, 1_000, false), at(0));
        }
        for second in 1..100 {
            all.observe_inbound(Frame::WindowUpdate { stream: 3, increment: 500 }, at(second));
            all.observe_outbound(data_frame(3, 500, false), at(second));
        }
        assert_eq!(run(&mut all, 99), [(60, 1, AbortReason::SlowReader)]);
        all.observe_inbound(Frame::InitialWindow(1_001), at(100));
        assert_eq!(run(&mut all, 1_000), [], "the window is open");
        all.observe_outbound(data_frame(3, 1, true), at(1_000));
        assert!(all.is_idle_expired(at(1_030)));
    }

    #[test]
    fn frames_of_an_ended_stream_begin_no_exchange() {
        let mut all = exchanges();
        all.observe_inbound(head(1, false), at(0));
        all.observe_outbound(head(1, true), at(0));
        all.observe_outbound(Frame::Reset { stream: 1, code: 8 }, at(0));
        all.observe_inbound(head(1, true), at(1));
        assert_eq!(all.counts().open, 0);
        assert!(all.is_idle_expired(at(30)));
    }

    #[test]
    fn open_answering_and_blocked_exchanges_are_counted() {
        let counts = |all: &Exchanges| {
            let ExchangeCounts { open, answering, blocked, unread } = all.counts();
            (open, answering, blocked, unread)
        };
        let mut all = exchanges();
        all.observe_inbound(Frame::InitialWindow(1_000), at(0));
        for stream in [1, 3, 5, 7] {
            all.observe_inbound(head(stream, stream != 7), at(0));
        }
        assert_eq!(counts(&all), (4, 0, 0, 0));
        for stream in [1, 3, 5] {
            all.observe_outbound(head(stream, false), at(0));
        }
        all.observe_outbound(data_frame(1, 1_000, false), at(0));
        all.observe_outbound(data_frame(3, 1_000, false), at(0));
        all.observe_inbound(data_frame(7, 500, false), at(0));
        assert_eq!(counts(&all), (4, 3, 2, 500));
        all.observe_inbound(Frame::WindowUpdate { stream: 1, increment: 9 }, at(0));
        all.observe_outbound(Frame::WindowUpdate { stream: 0, increment: 400 }, at(0));
        assert_eq!(counts(&all), (4, 3, 1, 100));
        // The window of the connection is used up: all responses wait.
        all.observe_outbound(data_frame(5, 63_535, false), at(0));
        assert_eq!(counts(&all), (4, 3, 3, 100));
        assert_eq!(all.abort_blocked(at(1)).len(), 3);
        assert_eq!(counts(&all), (1, 0, 0, 100));
        all.observe_inbound(Frame::Reset { stream: 7, code: 8 }, at(1));
        assert_eq!(counts(&all), (0, 0, 0, 100));
    }

    #[test]
    fn a_connection_with_an_open_response_is_not_idle() {
        let mut all = exchanges();
        all.observe_inbound(head(1, true), at(0));
        all.observe_outbound(head(1, false), at(5));
        assert_eq!(all.next_deadline(), None);
        assert!(!all.is_idle_expired(at(10_000)));
        all.observe_inbound(Frame::Reset { stream: 1, code: 8 }, at(10_000));
        assert!(!all.is_idle_expired(at(10_029)) && all.is_idle_expired(at(10_030)));
        assert_eq!(all.last_stream(), 1);
    }
}
