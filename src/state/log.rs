//! Writes frames into logs, and removes logs that nothing needs any more.
//!
//! After a failure nothing more is written into the same log: how much of it reached the disk is unknown. The next log
//! begins a new round. Nothing here decides when to write ([`super::saver`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::disk::{DiskFile, StateDisk};
use super::frame::{FrameHeader, FrameKind};
use super::progress::StateMetrics;
use super::room::VolumeRoom;
use super::sync::SyncJob;

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 256 * 1024;

/// Digits of the number of a log. Each start and each round takes one number.
const NUMBER_DIGITS: usize = 10;

/// The largest number of a log that is found. No directory gets there; a larger one would leave too few for the logs after it.
pub(super) const MAX_FOUND_NUMBER: u64 = 5_000_000_000;

/// More frames than anybody else writes into the directory while this process does not notice.
pub(super) const SEQUENCES_OF_OTHERS: u64 = 1 << 32;

/// Takes frames. Errors are told when the frames are flushed.
pub trait FrameSink {
    /// Adds a frame. A `payload` of more than [`MAX_PAYLOAD`](super::MAX_PAYLOAD) bytes is an error, because nobody could read it.
    fn add(&mut self, kind: FrameKind, group: u8, payload: &[u8]);
}

/// What the first frame of a log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogStart {
    /// The fingerprint of the secret that the keys in the log are hashed with.
    pub(super) fingerprint: u64,
    /// The log with which its round began: itself.
    pub(super) round: u64,
}

/// What the frame at the end of a round says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RoundComplete {
    /// The log with which the round began.
    pub(super) round: u64,
}

/// A log in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogFile {
    pub(super) number: u64,
    pub(super) bytes: u64,
}

/// The logs of a directory that is in use.
pub struct StateLog {
    disk: Arc<dyn StateDisk>,
    metrics: Arc<StateMetrics>,
    fingerprint: u64,
    /// All logs, ascending; the last is written if `file` is open.
    logs: Vec<LogFile>,
    /// The log with which the latest complete round began that can be restored without an earlier one.
    complete: Option<u64>,
    file: Option<Arc<dyn DiskFile>>,
    /// Files that were written to and not brought to the disk since, and whether names were not.
    unsynced: Vec<Arc<dyn DiskFile>>,
    has_unsynced_names: bool,
    last_number: u64,
    next_sequence: u64,
    /// About what everything took when the directory was read.
    found_round_bytes: u64,
    buffer: Vec<u8>,
    /// Whether everything is collected until the next flush, however much it is.
    is_collecting: bool,
    failure: Option<io::Error>,
    /// Bytes of frames since the log was opened, those in the buffer included.
    added: u64,
    /// Whether earlier logs may not be on the disk: the process before may have been killed, or a sync has failed.
    is_inherited: bool,
}

/// Where the logs of a directory end.
#[derive(Clone, Debug, Default)]
pub(super) struct LogEnd {
    pub(super) logs: Vec<LogFile>,
    /// The complete round that a start begins to restore with.
    pub(super) complete: Option<u64>,
    pub(super) last_number: u64,
    pub(super) next_sequence: u64,
    /// About what everything takes: the bytes of the latest complete round, or of all logs.
    pub(super) round_bytes: u64,
}

/// The name of a log.
pub(super) fn name_of(number: u64) -> String {
    format!("log.{number:0NUMBER_DIGITS$}")
}

/// The number of the log of this name. Other spellings of a number name no log.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log.")?;
    let number = digits.parse().ok()?;
    (digits.len() == NUMBER_DIGITS && name_of(number) == name).then_some(number)
}

impl StateLog {
    pub(super) fn new(
        disk: Arc<dyn StateDisk>,
        metrics: Arc<StateMetrics>,
        fingerprint: u64,
        end: LogEnd,
    ) -> Self {
        let LogEnd { logs, complete, last_number, next_sequence, round_bytes } = end;
        let log = Self {
            disk,
            metrics,
            fingerprint,
            logs,
            complete,
            file: None,
            unsynced: Vec::new(),
            has_unsynced_names: false,
            last_number,
            next_sequence,
            found_round_bytes: round_bytes,
            buffer: Vec::new(),
            is_collecting: false,
            failure: None,
            added: 0,
            is_inherited: true,
        };
        log.count_bytes();
        log
    }

    /// Whether a log is open.
    pub(super) const fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Whether something that was added cannot be written. The next flush tells why.
    pub(super) const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// How many logs there are.
    pub(super) const fn count(&self) -> usize {
        self.logs.len()
    }

    /// About what everything took when the directory was read.
    pub(super) const fn found_round_bytes(&self) -> u64 {
        self.found_round_bytes
    }

    /// The bytes of all logs.
    pub(super) fn bytes(&self) -> u64 {
        self.logs.iter().map(|log| log.bytes).sum()
    }

    /// The number of the log that is written.
    pub(super) const fn number(&self) -> u64 {
        self.last_number
    }

    /// Bytes of frames since the log was opened.
    pub(super) const fn added(&self) -> u64 {
        self.added
    }

    /// Begins a log, and a round with it.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.file = None;
        self.buffer.clear();
        self.failure = None;
        self.added = 0;
        if self.disk.restore_folder()? {
            self.go_on_after_others()?;
        }
        self.look_for_logs();
        let number = self.last_number + 1;
        let file = match self.disk.create(&name_of(number)) {
            // No process that holds the directory wrote it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.go_on_after_others()?;
                self.disk.create(&name_of(number))
            }
            created => created,
        }?;
        self.last_number = number;
        let start = LogStart { fingerprint: self.fingerprint, round: number };
        let payload = postcard::to_stdvec(&start).map_err(io::Error::other)?;
        let mut frame = Vec::new();
        FrameHeader::write(&mut frame, FrameKind::Start, 0, self.next_sequence, &payload);
        if let Err(error) = file.append(&frame) {
            drop(file);
            // An empty log would only be in the way. If it cannot be removed, it does no harm.
            let _ = self.disk.remove(&name_of(number));
            return Err(error);
        }
        self.next_sequence = self.next_sequence.wrapping_add(1);
        self.logs.push(LogFile { number, bytes: frame.len() as u64 });
        self.unsynced.push(Arc::clone(&file));
        self.has_unsynced_names = true;
        self.file = Some(file);
        self.count_bytes();
        Ok(())
    }

    /// Goes on in a directory that somebody else may have written to, such as a successor that failed. Logs of others are
    /// kept, and restored by nobody. Frames whose numbers are not above all before them would be taken for left over.
    fn go_on_after_others(&mut self) -> io::Result<()> {
        let is_own = |number| self.logs.iter().any(|log| log.number == number);
        let mut names = self.disk.names()?;
        names.retain(|name| number_of(name).is_some_and(|number| !is_own(number)));
        if !names.is_empty() {
            self.disk.move_away(&names)?;
        }
        self.next_sequence = self.next_sequence.saturating_add(SEQUENCES_OF_OTHERS);
        Ok(())
    }

    /// Looks which logs are there, and how large they are: a write that failed may have written a part, and somebody may have
    /// removed a log.
    fn look_for_logs(&mut self) {
        let disk = &self.disk;
        self.logs.retain_mut(|log| match disk.size(&name_of(log.number)) {
            Ok(bytes) => {
                log.bytes = bytes;
                true
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        });
    }

    /// From now on, what is added is only collected until the next flush; `false`: no more.
    pub(super) const fn collect(&mut self, is_collecting: bool) {
        self.is_collecting = is_collecting;
    }

    /// Writes what was added. After an error the log is closed.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.write_out();
        match self.failure.take() {
            None => Ok(()),
            Some(error) => {
                self.file = None;
                Err(error)
            }
        }
    }

    /// What has to be brought to the disk, so that everything that is flushed is there. It is given once.
    pub(super) fn take_sync_job(&mut self) -> SyncJob {
        let names = std::mem::take(&mut self.has_unsynced_names);
        let inherited = match std::mem::take(&mut self.is_inherited) {
            true => self.logs.iter().map(|log| name_of(log.number)).collect(),
            false => Vec::new(),
        };
        SyncJob {
            disk: Arc::clone(&self.disk),
            inherited,
            files: std::mem::take(&mut self.unsynced),
            names,
        }
    }

    /// Closes the log after a failure. Everything is written anew before anything counts as saved.
    pub(super) fn close(&mut self) {
        self.file = None;
        self.unsynced.clear();
        // Nothing is known of what a sync that failed has done.
        self.is_inherited = true;
    }

    /// Records that everything has been written since this round began.
    pub(super) fn add_complete(&mut self, round: u64) -> io::Result<()> {
        let payload = postcard::to_stdvec(&RoundComplete { round }).map_err(io::Error::other)?;
        self.add(FrameKind::Complete, 0, &payload);
        Ok(())
    }

    /// That record is on the disk: removes the logs before the round before.
    pub(super) fn set_complete(&mut self, round: u64) {
        let before = self.complete.replace(round);
        self.remove_before(before.unwrap_or(0));
    }

    /// Makes room on a full disk: the logs before the latest complete round are a second copy.
    pub(super) fn make_room(&mut self) {
        self.remove_before(self.complete.unwrap_or(0));
    }

    /// The room on the volume; `None`: the disk does not tell.
    pub(super) fn room(&self) -> Option<VolumeRoom> {
        self.disk.free().ok().map(|free| VolumeRoom { free, logs: self.bytes() })
    }

    /// Removes this log and all later ones, which an attempt that failed has begun. Nothing else holds what they hold, but
    /// everything is written anew before anything counts as saved.
    pub(super) fn discard_from(&mut self, number: u64) {
        self.close();
        self.remove(|log| log >= number);
    }

    fn remove_before(&mut self, number: u64) {
        self.remove(|log| log < number);
    }

    fn remove(&mut self, is_removed: impl Fn(u64) -> bool) {
        let disk = &self.disk;
        self.logs.retain(|log| {
            !is_removed(log.number)
                || match disk.remove(&name_of(log.number)) {
                    Ok(()) => false,
                    // It is tried again after the next round.
                    Err(error) => error.kind() != io::ErrorKind::NotFound,
                }
        });
        self.count_bytes();
    }

    fn write_out(&mut self) {
        if self.failure.is_some() {
            self.buffer.clear();
        }
        if self.buffer.is_empty() {
            return;
        }
        let written = match &self.file {
            None => Err(io::Error::other("no log is open")),
            Some(file) => file.append(&self.buffer),
        };
        match written {
            Ok(()) => {
                self.list_unsynced();
                let bytes = self.buffer.len() as u64;
                if let Some(log) = self.logs.last_mut() {
                    log.bytes += bytes;
                }
                self.metrics.written.fetch_add(bytes, Ordering::Relaxed);
                self.count_bytes();
            }
            Err(error) => self.failure = Some(error),
        }
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES * 2);
    }

    fn list_unsynced(&mut self) {
        if let Some(file) = &self.file
            && !self.unsynced.last().is_some_and(|last| Arc::ptr_eq(last, file))
        {
            self.unsynced.push(Arc::clone(file));
        }
    }

    fn count_bytes(&self) {
        let bytes = self.logs.iter().map(|log| log.bytes).sum();
        self.metrics.bytes.store(bytes, Ordering::Relaxed);
    }
}

impl FrameSink for StateLog {
    fn add(&mut self, kind: FrameKind, group: u8, payload: &[u8]) {
        if let Err(error) = kind.check_payload(payload) {
            self.failure.get_or_insert(error);
            return;
        }
        let before = self.buffer.len();
        FrameHeader::write(&mut self.buffer, kind, group, self.next_sequence, payload);
        self.next_sequence = self.next_sequence.wrapping_add(1);
        self.added += (self.buffer.len() - before) as u64;
        if self.buffer.len() >= BUFFER_BYTES && !self.is_collecting {
            self.write_out();
        }
    }
}
