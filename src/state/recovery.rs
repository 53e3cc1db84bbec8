//! Reads the logs of a directory: first to see what is whole, then to restore it.
//!
//! The last complete round and everything after it is restored. Where a frame of that is damaged, the round before is
//! restored first, so that a key which only the damaged frame named has its older count rather than none.

use std::io::{self, Read};
use std::sync::Arc;

use memchr::memmem;

use super::disk::StateDisk;
use super::error::StateError;
use super::frame::{
    FrameHeader, FrameKind, HEADER_BYTES, HeaderError, MAGIC, MAX_PAYLOAD, VERSION,
};
use super::log::{
    LogEnd, LogFile, LogStart, MAX_FOUND_NUMBER, RoundComplete, SEQUENCES_OF_OTHERS, StateLog,
    name_of, number_of,
};
use super::progress::StateMetrics;
use crate::clock::TimeMark;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of payloads that are checked in vain, as many times the bytes before them, and at first. A payload above that is not
/// checked, and taken for damage: otherwise a log of nothing but heads would be read once for each of them.
const MAX_VAIN_TIMES: u64 = 4;
const MAX_VAIN_BYTES: u64 = 16 * MAX_PAYLOAD as u64;

/// A range of a log that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The number of the log.
    pub log: u64,
    /// The first byte that cannot be read.
    pub at: u64,
    /// How many bytes cannot be read.
    pub bytes: u64,
    /// Whether the log ends there, as after a crash: only what was written last is lost.
    pub is_tail: bool,
}

/// One log, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSummary {
    /// Its number.
    pub number: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whole frames in it.
    pub frames: u64,
    /// Frames that are not there, as the numbers of those around them tell; those in a damaged range are not counted.
    pub missing: u64,
}

/// Where a whole frame ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameEnd {
    /// The number of the log.
    pub log: u64,
    /// The bytes of the log up to its end.
    pub bytes: u64,
}

/// What a directory holds.
#[derive(Clone, Debug, Default)]
pub struct StateSummary {
    /// Its logs, ascending.
    pub logs: Vec<LogSummary>,
    /// Ranges that cannot be read.
    pub damage: Vec<Damage>,
    /// The last instant that a frame tells.
    pub mark: Option<TimeMark>,
    /// The end of the last whole frame.
    pub last: Option<FrameEnd>,
    /// Whether the process that wrote it ended in an orderly way, and what it wrote last is whole.
    pub is_clean: bool,
    /// Whether it ended in an orderly way, whatever can be read of what it wrote.
    pub has_orderly_end: bool,
    /// Who wrote the last orderly end ([`run_id`](super::run_id)).
    pub ended_by: Option<u64>,
    /// The log with which the latest complete round began.
    pub complete: Option<u64>,
}

/// A directory that was read once, and can be restored.
pub struct Recovery {
    disk: Arc<dyn StateDisk>,
    summary: StateSummary,
    /// The logs that are restored, ascending.
    replayed: Vec<LogFile>,
    /// The number of the last frame before the logs that are restored.
    before: Option<u64>,
    /// The number of the last frame before an orderly end; what was written until then is all that was spent.
    clean_until: Option<u64>,
    end: LogEnd,
}

/// A frame that is restored.
pub struct RestoredFrame {
    /// What its payload is.
    pub kind: FrameKind,
    /// The group of shards that it belongs to.
    pub group: u8,
    /// The payload.
    pub payload: Vec<u8>,
    /// Whether the process that wrote it ended in an orderly way.
    pub is_clean: bool,
}

/// Why logs cannot be used at all.
#[derive(Debug)]
pub(super) enum ScanError {
    Io(io::Error),
    OtherVersion(u16),
    OtherSecret,
    /// A log has a number that leaves too few for those after it.
    Number(u64),
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl ScanError {
    /// The error, for people.
    pub(super) fn at(self, folder: &std::path::Path) -> StateError {
        let folder = folder.to_owned();
        let is_denied =
            matches!(&self, Self::Io(error) if error.kind() == io::ErrorKind::PermissionDenied);
        match self {
            Self::Io(error) => StateError::Io {
                path: folder,
                error,
                cure: match is_denied {
                    true => "make its files readable for tollgate's user (chown)",
                    false => {
                        "the state cannot be read; start once with --ignore-state to begin anew"
                    }
                },
            },
            Self::OtherVersion(version) => StateError::Version { folder, version, own: VERSION },
            Self::Number(number) => StateError::Number { path: folder.join(name_of(number)) },
            Self::OtherSecret => StateError::Secret {
                folder,
                problem: "its key-secret is not the one that its logs were written with",
            },
        }
    }
}

impl StateSummary {
    /// Whether a process has ended in an orderly way and is the last that wrote.
    pub fn was_ended_by(&self, run_id: u64) -> bool {
        run_id != 0 && self.is_clean && self.ended_by == Some(run_id)
    }

    /// Whether something is damaged or missing, other than what a crash has cut.
    pub fn is_incomplete(&self) -> bool {
        self.damage.iter().any(|damage| !damage.is_tail)
            || self.logs.iter().any(|log| log.missing > 0)
    }
}

impl Recovery {
    /// Reads all logs. `fingerprint`: that of the key secret; `None`: any.
    pub(super) fn scan(
        disk: Arc<dyn StateDisk>,
        fingerprint: Option<u64>,
    ) -> Result<Self, ScanError> {
        let mut numbers: Vec<u64> =
            disk.names()?.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        if let Some(number) = numbers.last().filter(|number| **number > MAX_FOUND_NUMBER) {
            return Err(ScanError::Number(*number));
        }
        let mut summary = StateSummary::default();
        let (mut rounds, mut sequence, mut files) = (Vec::new(), None, Vec::new());
        let (mut clean, mut last_before, mut sequences) = (None, Vec::new(), Vec::new());
        let (mut with_gaps, mut round_bytes) = (Vec::new(), 0);
        for number in numbers.iter().copied() {
            last_before.push((number, sequence));
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", name_of(number)))
            };
            let file = disk.open(&name_of(number)).map_err(named)?;
            let mut reader = LogReader::new(file, sequence);
            let (mut frames, mut missing, mut before, mut begins) = (0, 0, None, None);
            let mut damaged_ranges = 0;
            while let Some(frame) = reader.next_frame()? {
                frames += 1;
                // Within a log, sequence numbers ascend by one; after a failing disk a new log goes on with a higher one.
                let expected = before.map_or(frame.sequence, |before: u64| before.wrapping_add(1));
                let is_behind_damage = reader.damage.len() > damaged_ranges;
                damaged_ranges = reader.damage.len();
                if frame.sequence != expected {
                    with_gaps.push(number);
                    let skipped = frame.sequence.saturating_sub(expected).max(1);
                    let counted = if is_behind_damage { 0 } else { skipped };
                    missing = u64::saturating_add(missing, counted);
                }
                before = Some(frame.sequence);
                begins.get_or_insert(frame.sequence);
                summary.last = Some(FrameEnd { log: number, bytes: reader.offset });
                sequence = Some(frame.sequence);
                summary.is_clean = frame.kind == FrameKind::CleanStop;
                summary.has_orderly_end = summary.is_clean;
                match frame.kind {
                    FrameKind::Start => {
                        let start = postcard::from_bytes::<LogStart>(&frame.payload);
                        let is_known = |own| start.is_ok_and(|start| start.fingerprint == own);
                        if !fingerprint.is_none_or(is_known) {
                            return Err(ScanError::OtherSecret);
                        }
                    }
                    FrameKind::CleanStop => {
                        clean = Some((number, frame.sequence));
                        let id = <[u8; 8]>::try_from(frame.payload.as_slice());
                        summary.ended_by = id.ok().map(u64::from_le_bytes);
                    }
                    FrameKind::Time => {
                        summary.mark =
                            postcard::from_bytes(&frame.payload).ok().or(summary.mark.take());
                    }
                    FrameKind::Complete => {
                        let complete = postcard::from_bytes::<RoundComplete>(&frame.payload);
                        // A round whose first log is gone cannot be restored.
                        round_bytes = reader.offset;
                        rounds.extend(
                            complete
                                .ok()
                                .map(|complete| complete.round)
                                .filter(|round| numbers.contains(round)),
                        );
                    }
                    _ => {}
                }
            }
            // What a process wrote into a log that is empty now is lost.
            summary.is_clean &= frames > 0;
            summary.has_orderly_end &= frames > 0;
            if let Some(version) = reader.other_version.filter(|_| frames == 0) {
                return Err(ScanError::OtherVersion(version));
            }
            summary.is_clean &= reader.damage.is_empty();
            summary.has_orderly_end &= reader.damage.iter().all(|damage| !damage.is_tail);
            summary
                .damage
                .extend(reader.damage.iter().map(|damage| Damage { log: number, ..*damage }));
            let bytes = reader.offset;
            files.push(LogFile { number, bytes });
            summary.logs.push(LogSummary { number, bytes, frames, missing });
            sequences.push((begins, sequence));
        }
        summary.complete = rounds.last().copied();
        let first = Self::first_log(&summary, &rounds);
        let begins_with_round = summary.complete == Some(first) || rounds.contains(&first);
        count_missing(&mut summary.logs, &sequences, first, begins_with_round);
        // A process that hands over lets go of the directory before its end is on the disk. After a power loss the end may be
        // there, and what was written before it not.
        let is_cut = |number| {
            with_gaps.contains(&number)
                || summary.logs.iter().any(|log| log.number == number && log.missing > 0)
        };
        let clean = clean.filter(|(number, _)| !is_cut(*number));
        summary.is_clean &= clean.is_some();
        let clean_until = clean.map(|(_, sequence)| sequence);
        let end = LogEnd {
            // The latest one may be damaged. Then the one before is needed until there is a later one.
            complete: rounds.contains(&first).then_some(first),
            last_number: numbers.last().copied().unwrap_or(0),
            next_sequence: sequence.map_or(0, |sequence| sequence.wrapping_add(1)),
            round_bytes: match round_bytes {
                0 => files.iter().map(|log| log.bytes).sum(),
                bytes => bytes,
            },
            logs: files.clone(),
        };
        let replayed = files.into_iter().filter(|log| log.number >= first).collect();
        let before = last_before.into_iter().find(|(number, _)| *number >= first);
        let before = before.and_then(|(_, sequence)| sequence);
        Ok(Self { disk, summary, replayed, before, clean_until, end })
    }

    /// The first log that is restored.
    fn first_log(summary: &StateSummary, rounds: &[u64]) -> u64 {
        let Some(complete) = summary.complete else {
            return 0;
        };
        let is_inside = |damage: &Damage| damage.log >= complete && !damage.is_tail;
        match summary.damage.iter().any(is_inside) {
            true => rounds.iter().rev().copied().find(|round| *round < complete).unwrap_or(0),
            false => complete,
        }
    }

    /// Somebody else may write on into these logs: this process goes on with numbers that no other one gives.
    pub(super) const fn expect_others(&mut self) {
        self.end.next_sequence = self.end.next_sequence.saturating_add(SEQUENCES_OF_OTHERS);
    }

    /// Reads the logs on a disk whose keys are hashed with the secret of this fingerprint.
    ///
    /// # Errors
    /// The disk cannot be read, or the logs are of another version or secret.
    pub fn read(disk: Arc<dyn StateDisk>, fingerprint: u64) -> Result<Self, StateError> {
        let scanned = Self::scan(disk, Some(fingerprint));
        scanned.map_err(|error| error.at(std::path::Path::new("state")))
    }

    /// The logs, to go on writing. Nothing is written before the first [`Saver::step`](super::Saver::step).
    pub fn into_log(self, fingerprint: u64, metrics: Arc<StateMetrics>) -> StateLog {
        StateLog::new(self.disk, metrics, fingerprint, self.end)
    }

    /// What the directory holds.
    pub const fn summary(&self) -> &StateSummary {
        &self.summary
    }

    /// Calls `visit` with every frame that is restored, in order.
    ///
    /// # Errors
    /// A log cannot be read.
    pub fn replay(
        &self,
        metrics: &StateMetrics,
        mut visit: impl FnMut(RestoredFrame),
    ) -> io::Result<()> {
        metrics.begin_restoring(self.replayed.iter().map(|log| log.bytes).sum());
        self.visit(&self.replayed, self.before, |frame| {
            metrics.add_restored((HEADER_BYTES + frame.payload.len()) as u64);
            visit(frame);
        })
    }

    /// The number of the first log that is restored, if any is.
    pub fn first_replayed(&self) -> Option<u64> {
        self.replayed.first().map(|log| log.number)
    }

    /// Calls `visit` with every frame of the logs that are kept for the case that a later one is damaged, and are not
    /// restored now.
    ///
    /// # Errors
    /// A log cannot be read.
    pub fn visit_older(&self, visit: impl FnMut(RestoredFrame)) -> io::Result<()> {
        let older = self.end.logs.len() - self.replayed.len();
        self.visit(&self.end.logs[..older], None, visit)
    }

    /// `last`: the number of the last frame before these logs.
    fn visit(
        &self,
        logs: &[LogFile],
        mut last: Option<u64>,
        mut visit: impl FnMut(RestoredFrame),
    ) -> io::Result<()> {
        for log in logs {
            let mut reader = LogReader::new(self.disk.open(&name_of(log.number))?, last);
            while let Some(frame) = reader.next_frame()? {
                let ReadFrame { kind, group, sequence, payload } = frame;
                last = Some(sequence);
                let is_clean = self.clean_until.is_some_and(|clean| sequence <= clean);
                visit(RestoredFrame { kind, group, payload, is_clean });
            }
        }
        Ok(())
    }
}

/// Counts the frames that are missing before and between the logs from this one on, because a log was removed or cut.
/// `sequences`: the numbers of the first frame of each log, and of the last up to its end.
fn count_missing(
    logs: &mut [LogSummary],
    sequences: &[(Option<u64>, Option<u64>)],
    first: u64,
    begins_with_round: bool,
) {
    // What is before a round is not needed; without one everything is, from the first frame on.
    let mut expected = if begins_with_round { None } else { Some(0) };
    for (log, (begins, last)) in logs.iter_mut().zip(sequences) {
        if log.number < first {
            continue;
        }
        if let (Some(begins), Some(expected)) = (begins, expected) {
            // A process that expected others has left out as many numbers.
            let skipped = begins.saturating_sub(expected);
            let missing = if skipped < SEQUENCES_OF_OTHERS { skipped } else { 0 };
            log.missing = log.missing.saturating_add(missing);
        }
        expected = last.map(|last| last.wrapping_add(1)).or(expected);
    }
}

struct ReadFrame {
    kind: FrameKind,
    group: u8,
    sequence: u64,
    payload: Vec<u8>,
}

/// Reads one log, and skips what is damaged.
struct LogReader {
    file: Box<dyn Read + Send>,
    /// The number of the last frame, also of the logs before. What is not above it is left over from an older log: after a
    /// loss of power a file system may show what its blocks held before.
    last_sequence: Option<u64>,
    window: Vec<u8>,
    /// Where in the window the next frame begins.
    start: usize,
    /// The offset of `start` in the log.
    offset: u64,
    is_at_end: bool,
    /// Bytes of payloads that were checked and are damaged.
    vain_bytes: u64,
    /// Whether a payload was not checked since the last whole frame.
    is_unchecked: bool,
    damage: Vec<Damage>,
    other_version: Option<u16>,
}

impl LogReader {
    fn new(file: Box<dyn Read + Send>, last_sequence: Option<u64>) -> Self {
        Self {
            file,
            last_sequence,
            window: Vec::new(),
            start: 0,
            offset: 0,
            is_at_end: false,
            vain_bytes: 0,
            is_unchecked: false,
            damage: Vec::new(),
            other_version: None,
        }
    }

    /// The next whole frame. `None`: the log ends.
    fn next_frame(&mut self) -> io::Result<Option<ReadFrame>> {
        let damaged_from = self.offset;
        loop {
            if self.fill(HEADER_BYTES)? < HEADER_BYTES {
                let rest = self.window.len() - self.start;
                self.skip(rest);
                // What was not checked may have been whole.
                self.record_damage(damaged_from, !self.is_unchecked);
                return Ok(None);
            }
            if let Some(frame) = self.complete_frame()? {
                let length = HEADER_BYTES + frame.payload.len();
                if self.last_sequence.is_some_and(|last| frame.sequence <= last) {
                    self.skip(length);
                    continue;
                }
                self.record_damage(damaged_from, false);
                self.is_unchecked = false;
                self.skip(length);
                self.last_sequence = Some(frame.sequence);
                return Ok(Some(frame));
            }
            self.skip(1);
            self.skip_to_magic()?;
        }
    }

    /// The frame at `start`, if it is whole.
    fn complete_frame(&mut self) -> io::Result<Option<ReadFrame>> {
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.window[self.start..self.start + HEADER_BYTES]);
        let header = match FrameHeader::read(&head) {
            Ok(header) => header,
            Err(HeaderError::OtherVersion(version)) => {
                self.other_version.get_or_insert(version);
                return Ok(None);
            }
            Err(HeaderError::NoFrame) => return Ok(None),
        };
        if !self.may_check(header.length) {
            self.is_unchecked = true;
            return Ok(None);
        }
        let length = HEADER_BYTES + header.length;
        if self.fill(length)? < length {
            return Ok(None);
        }
        let payload = &self.window[self.start + HEADER_BYTES..self.start + length];
        if !header.fits(&head, payload) {
            self.vain_bytes = self.vain_bytes.saturating_add(header.length as u64);
            return Ok(None);
        }
        Ok(Some(ReadFrame {
            kind: header.kind,
            group: header.group,
            sequence: header.sequence,
            payload: payload.to_vec(),
        }))
    }

    /// Whether a payload of this length may be checked. Damage of whole frames never comes to the bound: looking for the next
    /// frame passes the bytes that were checked.
    const fn may_check(&self, length: usize) -> bool {
        let max = self.offset.saturating_mul(MAX_VAIN_TIMES).saturating_add(MAX_VAIN_BYTES);
        self.vain_bytes.saturating_add(length as u64) <= max
    }

    /// Reads until `wanted` bytes are in the window behind `start`, or the log ends. Returns how many are there.
    fn fill(&mut self, wanted: usize) -> io::Result<usize> {
        while self.window.len() - self.start < wanted && !self.is_at_end {
            if self.start > CHUNK_BYTES {
                self.window.drain(..self.start);
                self.start = 0;
            }
            let wanted = CHUNK_BYTES as u64;
            let read = self.file.by_ref().take(wanted).read_to_end(&mut self.window)?;
            self.is_at_end = read < CHUNK_BYTES;
        }
        Ok(self.window.len() - self.start)
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Skips to where a frame may begin, or to the last bytes of the log.
    fn skip_to_magic(&mut self) -> io::Result<()> {
        loop {
            let there = self.fill(CHUNK_BYTES)?;
            let behind = &self.window[self.start..];
            if let Some(found) = memmem::find(behind, &MAGIC) {
                self.skip(found);
                return Ok(());
            }
            self.skip(there.saturating_sub(MAGIC.len() - 1));
            if self.is_at_end {
                return Ok(());
            }
        }
    }

    fn record_damage(&mut self, from: u64, is_tail: bool) {
        if self.offset > from {
            self.damage.push(Damage { log: 0, at: from, bytes: self.offset - from, is_tail });
        }
    }
}
