//! The exchanges of one HTTP/2 connection: who keeps whom waiting, and since when (RFC 9113, sections 5.2
//! and 8.1).
//!
//! The HTTP/2 implementation has no deadline for any of it, and forgets an answer once it is queued. What
//! is read here is what has passed on the wire. Time is an argument; nothing here waits.
//!
//! - A client owes the bytes of a body while there is window for them and no answer has begun.
//! - A client owes window while an answer has begun, has not ended, and there is none.
//! - After the whole answer a client may send the rest of its body for a moment only.
//! - Otherwise the origin is waited for, and its own timeouts end that.

use hashbrown::HashMap;

use super::frames::Frame;
use super::pace::Pace;
use crate::clock::Nanos;

/// The window of a stream and of a connection in the beginning (RFC 9113, section 6.9.2).
const INITIAL_WINDOW: i64 = 65_535;

/// Most exchanges that are watched at once; the largest `h2_streams` that a file may say.
const MAX_EXCHANGES: usize = 10_000;

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// A body that the client sends.
    pub(crate) body: Pace,
    /// An answer that the client takes.
    pub(crate) answer: Pace,
    /// What is left of a body after the answer.
    pub(crate) rest: Nanos,
    /// A connection without exchanges.
    pub(crate) idle: Nanos,
}

/// Why an exchange is over before it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The client sends its body too slowly.
    SlowBody,
    /// It takes the answer too slowly.
    SlowReader,
    /// The answer is whole, and the client has not ended its request in the time after it.
    Rest,
    /// It does not take the answer, whose memory others need.
    Memory,
}

/// How many exchanges there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Exchanges that have not ended.
    pub(crate) open: usize,
    /// Those whose answer has begun and not ended.
    pub(crate) answering: usize,
    /// Those of them that wait for window.
    pub(crate) blocked: usize,
    /// Bytes of bodies that came and that nobody has read.
    pub(crate) unread: usize,
}

/// All exchanges of a connection.
#[derive(Debug)]
pub(crate) struct Exchanges {
    rules: Rules,
    open: HashMap<u32, Exchange>,
    /// What the client may send, and what we may send, on the connection as a whole.
    windows: Windows,
    /// The same of a new stream.
    initial: Windows,
    /// The last stream that the client began.
    last: u32,
    /// Since when there has been no exchange.
    idle_since: Nanos,
    /// No exchange is over before this.
    next: Option<Nanos>,
    /// Of `open`: how many answers are in progress, and how many of those wait for window.
    answering: usize,
    blocked: usize,
}

#[derive(Clone, Copy, Debug)]
struct Windows {
    of_client: i64,
    ours: i64,
}

#[derive(Debug)]
struct Exchange {
    windows: Windows,
    /// Whether the client may still send parts of its request.
    is_request_open: bool,
    answer: Answer,
    body: Pace,
    reading: Pace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    NotBegun,
    Begun,
    /// At this instant.
    Ended(Nanos),
}

impl Exchanges {
    pub(crate) fn new(rules: Rules, now: Nanos) -> Self {
        let windows = Windows { of_client: INITIAL_WINDOW, ours: INITIAL_WINDOW };
        Self {
            rules,
            open: HashMap::new(),
            windows,
            initial: windows,
            last: 0,
            idle_since: now,
            next: None,
            answering: 0,
            blocked: 0,
        }
    }

    /// How many there are.
    pub(crate) fn counts(&self) -> Counts {
        // The implementation opens the connection's window again as bodies are read, and never beyond this.
        let unread = usize::try_from(INITIAL_WINDOW - self.windows.of_client).unwrap_or(0);
        let (open, answering, blocked) = (self.open.len(), self.answering, self.blocked);
        Counts { open, answering, blocked, unread }
    }

    /// Ends all exchanges that wait for window, and says which.
    pub(crate) fn shed(&mut self, now: Nanos) -> Vec<(u32, Over)> {
        let blocked = self.open.iter().filter(|(_, one)| one.reading.waits());
        let blocked: Vec<_> = blocked.map(|(stream, _)| (*stream, Over::Memory)).collect();
        for (stream, _) in &blocked {
            self.end(*stream, now);
        }
        blocked
    }

    /// A frame came from the client.
    pub(crate) fn came(&mut self, frame: Frame, now: Nanos) {
        match frame {
            Frame::Headers { stream, ends } => {
                // Streams are opened in the order of their numbers (RFC 9113, section 5.1.1): another one has
                // ended, and what still comes of it is dropped.
                if stream > self.last {
                    self.begin(stream);
                }
                self.change(stream, now, |one| one.is_request_open &= !ends);
            }
            Frame::Data { stream, bytes, ends } => {
                self.windows.of_client -= i64::from(bytes);
                self.change(stream, now, |one| {
                    one.windows.of_client -= i64::from(bytes);
                    one.is_request_open &= !ends;
                    one.body.moved(u64::from(bytes), now);
                });
                let after = self.windows.of_client;
                self.connection_changed(after + i64::from(bytes), after, now);
            }
            Frame::Window { stream: 0, more } => {
                let before = self.windows.ours;
                self.windows.ours += i64::from(more);
                self.connection_changed(before, self.windows.ours, now);
            }
            Frame::Window { stream, more } => {
                self.change(stream, now, |one| one.windows.ours += i64::from(more));
            }
            Frame::InitialWindow(size) => {
                let more = i64::from(size) - self.initial.ours;
                self.initial.ours += more;
                self.change_all(now, |one| one.windows.ours += more);
            }
            Frame::Reset { stream, .. } => self.end(stream, now),
            Frame::Other => {}
        }
    }

    /// A frame goes to the client.
    pub(crate) fn went(&mut self, frame: Frame, now: Nanos) {
        match frame {
            Frame::Headers { stream, ends } => {
                self.change(stream, now, |one| one.answer(ends, now))
            }
            Frame::Data { stream, bytes, ends } => {
                let before = self.windows.ours;
                self.windows.ours -= i64::from(bytes);
                self.change(stream, now, |one| {
                    one.windows.ours -= i64::from(bytes);
                    one.reading.moved(u64::from(bytes), now);
                    one.answer(ends, now);
                });
                self.connection_changed(before, self.windows.ours, now);
            }
            Frame::Window { stream: 0, more } => {
                let before = self.windows.of_client;
                self.windows.of_client += i64::from(more);
                self.connection_changed(before, self.windows.of_client, now);
            }
            Frame::Window { stream, more } => {
                self.change(stream, now, |one| one.windows.of_client += i64::from(more));
            }
            Frame::InitialWindow(size) => {
                let more = i64::from(size) - self.initial.of_client;
                self.initial.of_client += more;
                self.change_all(now, |one| one.windows.of_client += more);
            }
            Frame::Reset { stream, .. } => self.end(stream, now),
            Frame::Other => {}
        }
    }

    /// The exchanges that are over by now; they are forgotten.
    pub(crate) fn over(&mut self, now: Nanos) -> Vec<(u32, Over)> {
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let rest = self.rules.rest;
        let over: Vec<_> = self
            .open
            .iter()
            .filter_map(|(stream, one)| {
                let (at, why) = one.deadline(rest)?;
                (at <= now).then_some((*stream, why))
            })
            .collect();
        for (stream, _) in &over {
            self.end(*stream, now);
        }
        self.next = self.open.values().filter_map(|one| Some(one.deadline(rest)?.0)).min();
        over
    }

    /// When to look again, at the latest.
    pub(crate) fn next(&self) -> Option<Nanos> {
        match self.is_idle() {
            true => Some(self.idle_since.saturating_add(self.rules.idle)),
            false => self.next,
        }
    }

    /// Whether there has been no exchange for so long that the connection ends.
    pub(crate) fn has_idled(&self, now: Nanos) -> bool {
        self.is_idle() && self.idle_since.saturating_add(self.rules.idle) <= now
    }

    /// What the last exchanges left with the kernel was on its way until then.
    pub(crate) fn idles_since(&mut self, since: Nanos) {
        self.idle_since = self.idle_since.max(since);
    }

    /// The last stream that the client began.
    pub(crate) const fn last(&self) -> u32 {
        self.last
    }

    /// Whether there is no exchange.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    fn begin(&mut self, stream: u32) {
        self.last = stream;
        if self.open.len() >= MAX_EXCHANGES {
            return;
        }
        let Rules { body, answer, .. } = self.rules;
        self.open.insert(
            stream,
            Exchange {
                windows: self.initial,
                is_request_open: true,
                answer: Answer::NotBegun,
                body,
                reading: answer,
            },
        );
    }

    fn end(&mut self, stream: u32, now: Nanos) {
        let Some(ended) = self.open.remove(&stream) else {
            return;
        };
        self.answering -= usize::from(ended.answer == Answer::Begun);
        self.blocked -= usize::from(ended.reading.waits());
        if self.is_idle() {
            self.idle_since = now;
        }
    }

    /// Changes an exchange, and says what is waited for afterwards.
    fn change(&mut self, stream: u32, now: Nanos, change: impl FnOnce(&mut Exchange)) {
        let Some(one) = self.open.get_mut(&stream) else {
            return;
        };
        let (answering, blocked) = (one.answer == Answer::Begun, one.reading.waits());
        change(one);
        let at = one.await_what_is_owed(self.windows, self.rules.rest, now);
        let is_over = !one.is_request_open && matches!(one.answer, Answer::Ended(_));
        self.answering += usize::from(one.answer == Answer::Begun);
        self.answering -= usize::from(answering);
        self.blocked += usize::from(one.reading.waits());
        self.blocked -= usize::from(blocked);
        if is_over {
            return self.end(stream, now);
        }
        self.next = earlier(self.next, at);
    }

    fn change_all(&mut self, now: Nanos, mut change: impl FnMut(&mut Exchange)) {
        let (mut next, mut blocked) = (self.next, 0);
        for one in self.open.values_mut() {
            change(one);
            next = earlier(next, one.await_what_is_owed(self.windows, self.rules.rest, now));
            blocked += usize::from(one.reading.waits());
        }
        (self.next, self.blocked) = (next, blocked);
    }

    /// A window of the connection has changed: when it is used up or opens again, so does what is waited
    /// for of all exchanges.
    fn connection_changed(&mut self, before: i64, after: i64, now: Nanos) {
        if (before > 0) != (after > 0) {
            self.change_all(now, |_| {});
        }
    }
}

impl Exchange {
    fn answer(&mut self, ends: bool, now: Nanos) {
        self.answer = match (self.answer, ends) {
            (Answer::Ended(at), _) => Answer::Ended(at),
            (_, true) => Answer::Ended(now),
            (_, false) => Answer::Begun,
        };
    }

    /// Begins the wait for what the client owes, or ends it; when it would be over.
    fn await_what_is_owed(
        &mut self,
        connection: Windows,
        rest: Nanos,
        now: Nanos,
    ) -> Option<Nanos> {
        let may_send = self.windows.of_client > 0 && connection.of_client > 0;
        let may_answer = self.windows.ours > 0 && connection.ours > 0;
        if self.is_request_open && self.answer == Answer::NotBegun && may_send {
            self.body.wait(now);
        } else {
            self.body.rest();
        }
        if self.answer == Answer::Begun && !may_answer {
            self.reading.wait(now);
        } else {
            self.reading.rest();
        }
        self.deadline(rest).map(|(at, _)| at)
    }

    /// When it is over, if nothing moves until then, and why.
    fn deadline(&self, rest: Nanos) -> Option<(Nanos, Over)> {
        if let Answer::Ended(at) = self.answer {
            return self.is_request_open.then_some((at.saturating_add(rest), Over::Rest));
        }
        let body = self.body.deadline().map(|at| (at, Over::SlowBody));
        body.or_else(|| self.reading.deadline().map(|at| (at, Over::SlowReader)))
    }
}

fn earlier(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    fn exchanges() -> Exchanges {
        let rate = NonZeroU64::new(256);
        let rules = Rules {
            body: Pace::new(at(20), rate),
            answer: Pace::new(at(60), rate),
            rest: at(1),
            idle: at(30),
        };
        Exchanges::new(rules, at(0))
    }

    const fn head(stream: u32, ends: bool) -> Frame {
        Frame::Headers { stream, ends }
    }

    const fn data(stream: u32, bytes: u32, ends: bool) -> Frame {
        Frame::Data { stream, bytes, ends }
    }

    /// When what is over, looking only when told to.
    fn run(all: &mut Exchanges, until: u64) -> Vec<(u64, u32, Over)> {
        let mut seen = Vec::new();
        while let Some(next) = all.next().filter(|next| *next <= at(until) && !all.has_idled(*next))
        {
            for (stream, why) in all.over(next) {
                seen.push((next.secs(), stream, why));
            }
        }
        seen.sort_unstable_by_key(|one| (one.0, one.1));
        seen
    }

    #[test]
    fn each_body_has_its_own_credit() {
        let mut all = exchanges();
        for stream in [1, 3, 5] {
            all.came(head(stream, false), at(0));
        }
        // One that moves keeps no other alive.
        for second in 1..30 {
            assert_eq!(run(&mut all, second - 1).is_empty(), second != 21, "{second}");
            all.came(data(1, 1_000, false), at(second));
        }
        assert_eq!(run(&mut all, 60), [(49, 1, Over::SlowBody)]);
        assert!(all.has_idled(at(79)) && !all.has_idled(at(78)));
    }

    #[test]
    fn a_body_without_window_is_not_owed() {
        let mut all = exchanges();
        all.came(head(1, false), at(0));
        all.came(head(3, false), at(0));
        all.came(data(1, 65_535, false), at(1));
        assert_eq!(run(&mut all, 1_000), [], "the connection's window is used up");
        all.went(Frame::Window { stream: 0, more: 10 }, at(1_000));
        assert_eq!(run(&mut all, 2_000), [(1_020, 3, Over::SlowBody)]);
        all.went(Frame::Window { stream: 1, more: 10 }, at(2_000));
        assert_eq!(run(&mut all, 3_000), [(2_020, 1, Over::SlowBody)]);
    }

    #[test]
    fn what_is_left_of_a_body_after_the_answer_has_a_moment() {
        let mut all = exchanges();
        for stream in [1, 3, 5] {
            all.came(head(stream, false), at(0));
            all.went(head(stream, false), at(1));
        }
        assert_eq!(run(&mut all, 1_000), [], "an answer that goes on: the origin is waited for");
        all.went(data(1, 5, true), at(1_000));
        all.went(data(3, 5, true), at(1_000));
        all.came(data(3, 5, true), at(1_000));
        assert_eq!(run(&mut all, 2_000), [(1_001, 1, Over::Rest)]);
    }

    #[test]
    fn who_takes_nothing_is_over_and_who_takes_some_is_not() {
        let mut all = exchanges();
        all.came(Frame::InitialWindow(1_000), at(0));
        for stream in [1, 3] {
            all.came(head(stream, true), at(0));
            all.went(head(stream, false), at(0));
            all.went(data(stream, 1_000, false), at(0));
        }
        for second in 1..100 {
            all.came(Frame::Window { stream: 3, more: 500 }, at(second));
            all.went(data(3, 500, false), at(second));
        }
        assert_eq!(run(&mut all, 99), [(60, 1, Over::SlowReader)]);
        all.came(Frame::InitialWindow(1_001), at(100));
        assert_eq!(run(&mut all, 1_000), [], "a window that is there is not owed");
        all.went(data(3, 1, true), at(1_000));
        assert!(all.has_idled(at(1_030)));
    }

    #[test]
    fn what_comes_of_a_stream_that_has_ended_begins_nothing() {
        let mut all = exchanges();
        all.came(head(1, false), at(0));
        all.went(head(1, true), at(0));
        all.went(Frame::Reset { stream: 1, code: 8 }, at(0));
        all.came(head(1, true), at(1));
        assert_eq!(all.counts().open, 0);
        assert!(all.has_idled(at(30)));
    }

    #[test]
    fn what_waits_is_counted() {
        let counts = |all: &Exchanges| {
            let Counts { open, answering, blocked, unread } = all.counts();
            (open, answering, blocked, unread)
        };
        let mut all = exchanges();
        all.came(Frame::InitialWindow(1_000), at(0));
        for stream in [1, 3, 5, 7] {
            all.came(head(stream, stream != 7), at(0));
        }
        assert_eq!(counts(&all), (4, 0, 0, 0));
        for stream in [1, 3, 5] {
            all.went(head(stream, false), at(0));
        }
        all.went(data(1, 1_000, false), at(0));
        all.went(data(3, 1_000, false), at(0));
        all.came(data(7, 500, false), at(0));
        assert_eq!(counts(&all), (4, 3, 2, 500));
        all.came(Frame::Window { stream: 1, more: 9 }, at(0));
        all.went(Frame::Window { stream: 0, more: 400 }, at(0));
        assert_eq!(counts(&all), (4, 3, 1, 100));
        // Nothing may be sent on the connection as a whole: all answers wait.
        all.went(data(5, 63_535, false), at(0));
        assert_eq!(counts(&all), (4, 3, 3, 100));
        assert_eq!(all.shed(at(1)).len(), 3);
        assert_eq!(counts(&all), (1, 0, 0, 100));
        all.came(Frame::Reset { stream: 7, code: 8 }, at(1));
        assert_eq!(counts(&all), (0, 0, 0, 100));
    }

    #[test]
    fn an_answer_that_nobody_resets_is_no_idleness() {
        let mut all = exchanges();
        all.came(head(1, true), at(0));
        all.went(head(1, false), at(5));
        assert_eq!(all.next(), None);
        assert!(!all.has_idled(at(10_000)));
        all.came(Frame::Reset { stream: 1, code: 8 }, at(10_000));
        assert!(!all.has_idled(at(10_029)) && all.has_idled(at(10_030)));
        assert_eq!(all.last(), 1);
    }
}
