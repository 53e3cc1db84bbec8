//! The last lines of the access log in memory, for operators that ask for them.
//!
//! Lines have running numbers, so that a reader who asks for one page after the other knows what it missed. The numbers
//! begin with the microsecond at which the process began, so that a number of the process before is not taken for one of
//! this process. It does not know what a line says. What must always hold: the memory is bounded, and is taken only while lines are kept; the lock
//! is held for one line or one step of a page, never while an answer is written; the oldest lines are dropped first.
//!
//! ```text
//!   bytes   [ 444|5555555|666666|      |2222|33333333|44 ]    line 4 goes on at the front; line 1 was dropped for line 6
//!   lines     2, 3, 4, 5, 6                                   each with its position, and when it was recorded
//! ```
//!
//! A request that began under a configuration without `replay` has no line here, even if it ends after the reload.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::clock::Nanos;

/// The bytes of the lines that are kept: some minutes of a site with a hundred requests a second. It is a small share of
/// what clients may make the process hold.
const MAX_LOG_BYTES: usize = 32 << 20;

/// The number of lines that are kept. Lines with what a replay needs are longer than 256 bytes, so the bytes are used up
/// first. The table of lines has room for so many from the beginning, and is never moved while a request waits.
const MAX_LOG_LINES: usize = MAX_LOG_BYTES / 256;

/// What the lines take at most, with their table.
pub(crate) const RECENT_LINES_BYTES: usize =
    MAX_LOG_BYTES + MAX_LOG_LINES * size_of::<LinePosition>();

/// The bytes of a page: more would keep the thread that serves operators from its other work. A longer line is a page of
/// its own.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// The bytes that are copied under one lock: some microseconds.
const STEP_BYTES: usize = 64 << 10;

/// The lines that are looked at under one lock, where they are older than what is asked for.
const STEP_LINES: usize = 1_024;

/// The last lines, while the configuration wants them to be kept.
#[derive(Debug)]
pub(crate) struct RecentLines {
    kept: Mutex<KeptLines>,
}

/// Some lines, each with its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LinePage {
    /// The lines.
    pub(crate) text: Vec<u8>,
    /// The number of the last line that was looked at. The next page comes after it.
    pub(crate) next: u64,
    /// The number of the last line that there was. While it is larger than `next`, there are more pages.
    pub(crate) last: u64,
    /// The number of lines before this page that were asked for and are dropped; without `after`, at most so many.
    pub(crate) dropped: u64,
    /// The date since which all lines are kept, if earlier ones were asked for.
    pub(crate) kept_since: Option<Nanos>,
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogPageError {
    /// No lines are kept.
    NotKept,
    /// No line of this process has had the number.
    UnknownLine {
        /// The number of the last line.
        last: u64,
    },
}

#[derive(Debug)]
struct KeptLines {
    /// The number before the first line of this process.
    base: u64,
    /// The number of the last line, also when it is not kept any more. It only grows, so that numbers stay valid.
    last: u64,
    ring: Option<LineRing>,
}

/// The bytes of the last lines, and where each begins.
#[derive(Debug)]
struct LineRing {
    bytes: Box<[u8]>,
    /// The position behind the last line. Positions only grow; a byte stands at its position modulo the length.
    end: u64,
    lines: VecDeque<LinePosition>,
    max_lines: usize,
    /// The date since which nothing is dropped.
    since: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct LinePosition {
    begin: u64,
    /// When it was recorded.
    at: Nanos,
    /// The latest of the dates up to this line. Lines are recorded almost in order; these dates are in order.
    latest: Nanos,
}

impl RecentLines {
    /// No lines, of a process that begins at a date.
    pub(super) fn new(date: Nanos) -> Self {
        let base = date.get() / 1_000;
        Self { kept: Mutex::new(KeptLines { base, last: base, ring: None }) }
    }

    /// Begins to keep lines at a date, or drops them all and gives the memory back. Does nothing if it is so already.
    pub(super) fn set_kept(&self, is_kept: bool, date: Nanos) {
        if self.kept.lock().ring.is_some() != is_kept {
            self.replace(is_kept.then(|| LineRing::new(MAX_LOG_BYTES, MAX_LOG_LINES, date)));
        }
    }

    fn replace(&self, ring: Option<LineRing>) {
        let former = std::mem::replace(&mut self.kept.lock().ring, ring);
        // The lock is free again: giving memory back takes a while.
        drop(former);
    }

    /// Keeps a line, given without its end, where the oldest ones were.
    pub(super) fn push(&self, line: &str, at: Nanos) {
        let mut kept = self.kept.lock();
        if let KeptLines { last, ring: Some(ring), .. } = &mut *kept {
            *last += 1;
            ring.push(line, at);
        }
    }

    /// The lines after the one with the number `after` that were recorded since a date, as many as fit a page.
    ///
    /// # Errors
    /// No lines are kept, or none has had this number.
    pub(crate) fn page(&self, after: Option<u64>, since: Nanos) -> Result<LinePage, LogPageError> {
        // Memory is asked for while the lock is free.
        let text = Vec::with_capacity(STEP_BYTES);
        let kept = self.kept.lock();
        let mut page = kept.begin(text, after, since)?;
        let mut has_more = kept.copy_step(&mut page, since);
        drop(kept);
        while has_more {
            page.text.reserve(STEP_BYTES);
            has_more = self.kept.lock().copy_step(&mut page, since);
        }
        Ok(page)
    }
}

impl KeptLines {
    /// A page without lines, before the first line that belongs to it.
    fn begin(
        &self,
        text: Vec<u8>,
        after: Option<u64>,
        since: Nanos,
    ) -> Result<LinePage, LogPageError> {
        let ring = self.ring.as_ref().ok_or(LogPageError::NotKept)?;
        let (before, last) = (self.number_before(ring), self.last);
        let asked = after.unwrap_or(self.base);
        if !(self.base..=last).contains(&asked) {
            return Err(LogPageError::UnknownLine { last });
        }
        // Otherwise everything that was dropped is older than what is asked for.
        let may_lack = since < ring.since;
        let dropped = if may_lack { before.saturating_sub(asked) } else { 0 };
        let lacks = if after.is_some() { dropped > 0 } else { may_lack };
        let older = ring.lines.partition_point(|line| line.latest < since) as u64;
        Ok(LinePage {
            text,
            next: asked.max(before + older),
            last,
            dropped,
            kept_since: lacks.then_some(ring.since),
        })
    }

    /// The number of the line before the first that is kept.
    fn number_before(&self, ring: &LineRing) -> u64 {
        self.last - ring.lines.len() as u64
    }

    /// Copies the next lines to a page. Returns whether more belong to it.
    fn copy_step(&self, page: &mut LinePage, since: Nanos) -> bool {
        let Some(ring) = &self.ring else {
            return false;
        };
        // `None`: lines were dropped since the last step. The next page says so.
        let first = page.next.checked_sub(self.number_before(ring));
        let Some(first) = first.and_then(|first| usize::try_from(first).ok()) else {
            return false;
        };
        let enough = MAX_PAGE_BYTES.min(page.text.len() + STEP_BYTES);
        for index in (first..ring.lines.len()).take(STEP_LINES) {
            if page.next >= page.last || page.text.len() >= enough {
                break;
            }
            let Some((line, length)) = ring.line(index) else {
                break;
            };
            if line.at >= since {
                if !page.text.is_empty() && page.text.len() + length > MAX_PAGE_BYTES {
                    return false;
                }
                ring.read(line.begin, length, &mut page.text);
            }
            page.next += 1;
        }
        page.next < page.last && page.text.len() < MAX_PAGE_BYTES
    }
}

impl LineRing {
    /// A ring without lines. The system gives it its memory as lines come.
    fn new(max_bytes: usize, max_lines: usize, since: Nanos) -> Self {
        Self {
            bytes: vec![0; max_bytes].into_boxed_slice(),
            end: 0,
            lines: VecDeque::with_capacity(max_lines),
            max_lines,
            since,
        }
    }

    /// Adds a line, in the room of the oldest ones. A line that is longer than all the room is dropped after them.
    fn push(&mut self, line: &str, at: Nanos) {
        let begin = self.end;
        let end = begin.saturating_add(line.len() as u64 + 1);
        while self.lines.len() >= self.max_lines || end - self.begin() > self.bytes.len() as u64 {
            if !self.drop_oldest() {
                self.drop_until(at);
                return;
            }
        }
        let latest = self.lines.back().map_or(at, |last| last.latest.max(at));
        self.lines.push_back(LinePosition { begin, at, latest });
        self.write(line.as_bytes());
        self.write(b"\n");
    }

    /// The position of the first line.
    fn begin(&self) -> u64 {
        self.lines.front().map_or(self.end, |line| line.begin)
    }

    fn drop_oldest(&mut self) -> bool {
        let oldest = self.lines.pop_front();
        if let Some(line) = oldest {
            self.drop_until(line.at);
        }
        oldest.is_some()
    }

    /// Remembers that a line of a date was dropped.
    fn drop_until(&mut self, at: Nanos) {
        self.since = self.since.max(at.saturating_add(Nanos::new(1)));
    }

    /// A line with the bytes that it has.
    fn line(&self, index: usize) -> Option<(LinePosition, usize)> {
        let line = *self.lines.get(index)?;
        let end = self.lines.get(index + 1).map_or(self.end, |next| next.begin);
        Some((line, usize::try_from(end - line.begin).ok()?))
    }

    /// Writes bytes at the end, at the front again where the ring ends.
    fn write(&mut self, bytes: &[u8]) {
        let (begin, _) = self.split(self.end, bytes.len());
        let (first, rest) = bytes.split_at(bytes.len().min(self.bytes.len() - begin));
        self.bytes[begin..begin + first.len()].copy_from_slice(first);
        self.bytes[..rest.len()].copy_from_slice(rest);
        self.end += bytes.len() as u64;
    }

    /// Reads bytes from a position on.
    fn read(&self, position: u64, length: usize, out: &mut Vec<u8>) {
        let (begin, first) = self.split(position, length);
        out.extend_from_slice(&self.bytes[begin..begin + first]);
        out.extend_from_slice(&self.bytes[..length - first]);
    }

    /// Where bytes begin, and how many of them stand before the ring ends.
    fn split(&self, position: u64, length: usize) -> (usize, usize) {
        let begin = usize::try_from(position % self.bytes.len() as u64).unwrap_or(0);
        (begin, length.min(self.bytes.len() - begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(1_000);

    fn at(seconds: u64) -> Nanos {
        START.saturating_add(Nanos::from_secs(seconds))
    }

    fn kept(max_bytes: usize, max_lines: usize) -> RecentLines {
        let lines = RecentLines::new(Nanos::ZERO);
        lines.replace(Some(LineRing::new(max_bytes, max_lines, START)));
        lines
    }

    fn text(page: &LinePage) -> Vec<&str> {
        std::str::from_utf8(&page.text).unwrap().split_terminator('\n').collect()
    }

    #[test]
    fn lines_come_back_in_order_and_after_a_number() {
        let lines = kept(1_000, 100);
        assert_eq!(text(&lines.page(None, Nanos::ZERO).unwrap()), [""; 0]);
        for n in 1..=5 {
            lines.push(&format!("<{n}>"), at(n));
        }
        for (after, since, expected, next) in [
            (None, START, &["<1>", "<2>", "<3>", "<4>", "<5>"][..], 5),
            (Some(0), START, &["<1>", "<2>", "<3>", "<4>", "<5>"], 5),
            (Some(3), START, &["<4>", "<5>"], 5),
            (Some(5), START, &[], 5),
            (None, at(4), &["<4>", "<5>"], 5),
            (Some(4), at(2), &["<5>"], 5),
            (Some(1), at(4), &["<4>", "<5>"], 5),
            (None, at(6), &[], 5),
        ] {
            let page = lines.page(after, since).unwrap();
            assert_eq!(text(&page), expected, "{after:?} {since:?}");
            assert_eq!((page.next, page.last, page.dropped, page.kept_since), (next, 5, 0, None));
        }
        assert_eq!(lines.page(Some(6), START), Err(LogPageError::UnknownLine { last: 5 }));
        assert_eq!(lines.page(None, Nanos::ZERO).unwrap().kept_since, Some(START));
        assert_eq!(lines.page(Some(0), Nanos::ZERO).unwrap().kept_since, None, "none was dropped");
    }

    #[test]
    fn dropped_lines_are_counted() {
        let lines = kept(1_000, 3);
        for n in 1..=5 {
            lines.push(&format!("<{n}>"), at(n));
        }
        let kept_since = at(2).saturating_add(Nanos::new(1));
        for (after, since, dropped, expected) in [
            (None, Nanos::ZERO, 2, Some(kept_since)),
            (None, at(2), 2, Some(kept_since)),
            (None, at(3), 0, None),
            (Some(0), Nanos::ZERO, 2, Some(kept_since)),
            (Some(1), Nanos::ZERO, 1, Some(kept_since)),
            (Some(2), Nanos::ZERO, 0, None),
            (Some(1), at(3), 0, None),
        ] {
            let page = lines.page(after, since).unwrap();
            assert_eq!(text(&page), ["<3>", "<4>", "<5>"]);
            let told = (page.dropped, page.kept_since);
            assert_eq!(told, (dropped, expected), "{after:?} {since:?}");
        }
    }

    /// Requests that end at the same time may be recorded in another order than that of their dates, and the system's
    /// clock may be set back.
    #[test]
    fn dates_that_are_not_in_order_are_filtered_exactly() {
        for seed in 0..500 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let lines = kept(1_000, 100);
            let dates: Vec<u64> = (0..20).map(|n| n / 2 + rng.u64(0..3)).collect();
            dates.iter().for_each(|n| lines.push(&n.to_string(), at(*n)));
            for since in 0..14 {
                let page = lines.page(None, at(since)).unwrap();
                let expected = dates.iter().filter(|n| **n >= since).map(u64::to_string);
                assert_eq!(text(&page), expected.collect::<Vec<_>>(), "{seed}");
                assert_eq!((page.next, page.last), (20, 20));
            }
        }
    }

    /// Against a list of all lines: whatever their sizes, the last ones are there, and the ring takes no more than it may.
    #[test]
    fn a_ring_of_any_size_has_the_last_lines() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (max_bytes, max_lines) = (rng.usize(1..60), rng.usize(1..8));
            let lines = kept(max_bytes, max_lines);
            let (mut all, mut read, mut missed, mut cursor) =
                (Vec::<String>::new(), Vec::new(), 0, 0);
            for n in 0..rng.usize(1..40) {
                let line = "x".repeat(rng.usize(0..30)) + &n.to_string();
                lines.push(&line, at(n as u64));
                all.push(line);
                let mut last: Vec<&str> = Vec::new();
                let mut room = max_bytes;
                for line in all.iter().rev().take(max_lines) {
                    let Some(left) = room.checked_sub(line.len() + 1) else { break };
                    room = left;
                    last.insert(0, line);
                }
                let page = lines.page(None, Nanos::ZERO).unwrap();
                assert_eq!(text(&page), last, "{seed}");
                assert_eq!(page.dropped as usize + last.len(), all.len(), "{seed}");
                if rng.u8(0..4) == 0 {
                    let page = lines.page(Some(cursor), Nanos::ZERO).unwrap();
                    read.extend(text(&page).into_iter().map(str::to_owned));
                    missed += page.dropped as usize;
                    cursor = page.next;
                    assert_eq!(read.len() + missed, all.len(), "{seed}");
                }
            }
            let kept = lines.kept.lock();
            let ring = kept.ring.as_ref().unwrap();
            assert_eq!((ring.bytes.len(), ring.lines.len() <= max_lines), (max_bytes, true));
        }
    }

    #[test]
    fn pages_are_bounded_and_together_have_everything() {
        let lines = RecentLines::new(Nanos::ZERO);
        lines.set_kept(true, START);
        let line = |n: usize| format!("{n:06} {}", "x".repeat(n * 37 % 5_000));
        (0..3_000).for_each(|n| lines.push(&line(n), at(1)));
        let longest = "y".repeat(MAX_PAGE_BYTES * 2);
        lines.push(&longest, at(1));
        lines.push("end", at(1));
        let (mut read, mut sizes, mut cursor) = (Vec::new(), Vec::new(), 0);
        while cursor < 3_002 {
            let page = lines.page(Some(cursor), START).unwrap();
            assert!(page.next > cursor && page.last == 3_002 && page.dropped == 0);
            cursor = page.next;
            sizes.push(page.text.len());
            read.extend(text(&page).into_iter().map(str::to_owned));
        }
        let expected = (0..3_000).map(line).chain([longest, "end".to_owned()]);
        assert!(read == expected.collect::<Vec<_>>());
        sizes.sort_unstable();
        assert_eq!(sizes.pop(), Some(MAX_PAGE_BYTES * 2 + 1), "the longest line is a page");
        assert!(sizes.iter().all(|size| *size <= MAX_PAGE_BYTES), "{sizes:?}");
        assert!(sizes.len() < 12, "most pages are almost full: {sizes:?}");
        let page = lines.page(None, at(2)).unwrap();
        assert_eq!((page.text.len(), page.next), (0, 3_002), "older lines are passed over");
    }

    #[test]
    fn foreign_numbers_are_refused() {
        let lines = RecentLines::new(START);
        lines.set_kept(true, START);
        lines.push("a", at(1));
        let last = 1_000_000_001;
        let page = lines.page(None, START).unwrap();
        assert_eq!((page.next, page.last, page.dropped), (last, last, 0));
        for after in [0, 1, last - 2, last + 1, u64::MAX] {
            let refused = Err(LogPageError::UnknownLine { last });
            assert_eq!(lines.page(Some(after), START), refused, "{after}");
        }
        assert_eq!(text(&lines.page(Some(last - 1), START).unwrap()), ["a"]);
    }

    #[test]
    fn lines_are_kept_between_two_changes_only_and_numbers_go_on() {
        let lines = RecentLines::new(Nanos::ZERO);
        lines.push("before", at(0));
        assert_eq!(lines.page(None, START), Err(LogPageError::NotKept));
        lines.set_kept(true, at(1));
        lines.push("a", at(2));
        lines.set_kept(true, at(3));
        lines.push("b", at(4));
        let page = lines.page(None, at(1)).unwrap();
        assert_eq!((text(&page), page.next), (vec!["a", "b"], 2));
        lines.set_kept(false, at(5));
        assert!(lines.kept.lock().ring.is_none(), "the memory is given back");
        assert_eq!(lines.page(Some(2), START), Err(LogPageError::NotKept));
        lines.push("between", at(6));
        lines.set_kept(true, at(7));
        lines.push("c", at(8));
        let page = lines.page(Some(1), START).unwrap();
        assert_eq!((text(&page), page.dropped, page.next), (vec!["c"], 1, 3));
        assert_eq!(page.kept_since, Some(at(7)));
    }

    /// Writers and a reader at once: each line is read once or counted as dropped.
    #[test]
    fn a_reader_among_writers_misses_nothing_unnoticed() {
        const LINES: u64 = 20_000;
        let lines = kept(300_000, 2_000);
        let (mut read, mut dropped, mut cursor) = (0, 0, 0);
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let lines = &lines;
                scope.spawn(move || {
                    for n in 0..LINES / 4 {
                        lines.push(&format!("{writer} {n} {}", "x".repeat(200)), at(n));
                    }
                });
            }
            while cursor < LINES {
                let page = lines.page(Some(cursor), Nanos::ZERO).unwrap();
                assert!(text(&page).iter().all(|line| line.ends_with('x') && line.len() > 200));
                read += text(&page).len() as u64;
                dropped += page.dropped;
                cursor = page.next;
            }
        });
        assert_eq!(read + dropped, LINES);
    }
}
