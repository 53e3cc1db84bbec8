//! The running process's end of the stream: frames and packets on their way to the successor, and its answers.
//!
//! A thread writes, so that whoever counts or saves never waits for a successor that reads slowly. What must always hold:
//! frames arrive in the order in which they were added.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::timeouts::STALL_TIMEOUT;
use super::wire::{Packet, packet_bytes, unexpected, write_frame};
use crate::clock::Stopwatch;
use crate::state::{FrameKind, FrameSink};

/// The most bytes that may wait for a successor that reads slowly: what changes in seconds of heavy traffic. Above it the
/// handover is given up.
const MAX_UNSENT_BYTES: usize = 256 * 1024 * 1024;

/// What waits to be written.
#[derive(Default)]
struct UnsentFrames {
    bytes: Vec<u8>,
    /// Whether bytes are being written that are not in `bytes` any more.
    is_writing: bool,
    is_closed: bool,
    /// Why nothing more is written.
    failure: Option<String>,
}

impl UnsentFrames {
    fn fail(&mut self, why: &str) {
        self.failure = Some(why.to_owned());
        self.bytes = Vec::new();
    }

    fn result(&self) -> io::Result<()> {
        match &self.failure {
            Some(why) => Err(io::Error::new(io::ErrorKind::BrokenPipe, why.clone())),
            None => Ok(()),
        }
    }
}

/// The reason for giving up a successor that does not read.
const READS_NO_MORE: &str = "it reads no more";

/// Frames to a successor.
#[derive(Clone)]
pub(super) struct FrameStream {
    queue: Arc<(Mutex<UnsentFrames>, Condvar)>,
}

impl FrameStream {
    /// Starts the thread that writes.
    pub(super) fn start(stream: &UnixStream) -> io::Result<Self> {
        let mut stream = stream.try_clone()?;
        stream.set_write_timeout(Some(STALL_TIMEOUT))?;
        let frames = Self { queue: Arc::default() };
        let own = Arc::clone(&frames.queue);
        std::thread::Builder::new().name("handover".to_owned()).spawn(move || {
            let (queue, changed) = &*own;
            let mut bytes = Vec::new();
            loop {
                let mut locked = queue.lock();
                locked.is_writing = false;
                changed.notify_all();
                changed.wait_while(&mut locked, |queue| queue.bytes.is_empty() && !queue.is_closed);
                if locked.bytes.is_empty() || locked.failure.is_some() {
                    return;
                }
                bytes.clear();
                std::mem::swap(&mut locked.bytes, &mut bytes);
                locked.is_writing = true;
                drop(locked);
                if stream.write_all(&bytes).is_err() {
                    let mut locked = queue.lock();
                    locked.is_writing = false;
                    locked.fail(READS_NO_MORE);
                    changed.notify_all();
                    return;
                }
            }
        })?;
        Ok(frames)
    }

    /// Adds a packet.
    pub(super) fn send(&self, packet: &Packet) -> io::Result<()> {
        let bytes = packet_bytes(packet)?;
        self.push(|out| {
            out.extend_from_slice(&bytes);
            Ok(())
        });
        self.queue.0.lock().result()
    }

    /// Waits until at most this many bytes are unwritten. Returns whether that is so; an error if the successor does not
    /// read.
    pub(super) fn wait_below(&self, bytes: usize, time: Duration) -> io::Result<bool> {
        let (queue, changed) = &*self.queue;
        let mut locked = queue.lock();
        let is_busy = |queue: &mut UnsentFrames| {
            queue.failure.is_none()
                && (queue.bytes.len() > bytes || (bytes == 0 && queue.is_writing))
        };
        let waited = changed.wait_while_for(&mut locked, is_busy, time);
        locked.result().map(|()| !waited.timed_out())
    }

    /// Ends the thread once everything is written.
    pub(super) fn close(&self) {
        let (queue, changed) = &*self.queue;
        queue.lock().is_closed = true;
        changed.notify_all();
    }

    fn push(&self, add: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
        let (queue, changed) = &*self.queue;
        let mut locked = queue.lock();
        if locked.failure.is_none() {
            match add(&mut locked.bytes) {
                Ok(()) if locked.bytes.len() > MAX_UNSENT_BYTES => locked.fail(READS_NO_MORE),
                Ok(()) => {}
                Err(error) => locked.fail(&error.to_string()),
            }
            changed.notify_all();
        }
    }
}

impl FrameSink for FrameStream {
    fn add(&mut self, kind: FrameKind, group: u8, payload: &[u8]) {
        self.push(|out| write_frame(out, kind, group, payload));
    }
}

/// The successor's answers.
pub(super) struct Answers {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Answers {
    pub(super) fn new(stream: &UnixStream) -> io::Result<Self> {
        Ok(Self { stream: stream.try_clone()?, read: Vec::new() })
    }

    /// Whether this line has arrived, within `time`. An error if another one does, or if the successor has gone.
    pub(super) fn has_arrived(&mut self, line: &str, time: Duration) -> io::Result<bool> {
        let timed = Stopwatch::start();
        while let Some(left) = time.checked_sub(timed.elapsed()).filter(|left| !left.is_zero()) {
            self.stream.set_read_timeout(Some(left))?;
            match self.read_more(line, || timed.elapsed() < time) {
                Err(error) if is_pause(&error) => {}
                result => return result,
            }
        }
        Ok(false)
    }

    /// Reads until the line is complete, or `may_go_on` says no.
    fn read_more(&mut self, line: &str, may_go_on: impl Fn() -> bool) -> io::Result<bool> {
        loop {
            // What was read stays, so a line that is another one stays an error.
            if !line.as_bytes().starts_with(&self.read) {
                return Err(unexpected());
            }
            if self.read.len() == line.len() {
                self.read.clear();
                return Ok(true);
            }
            if !may_go_on() {
                return Ok(false);
            }
            let mut bytes = [0; 64];
            let wanted = (line.len() - self.read.len()).min(bytes.len());
            match self.stream.read(&mut bytes[..wanted])? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has gone")),
                read => self.read.extend_from_slice(&bytes[..read]),
            }
        }
    }

    /// Accepts no more answers. Returns whether this line had arrived before: from now on the successor cannot send it, as
    /// the system refuses what it writes.
    pub(super) fn close_unless_arrived(&mut self, line: &str) -> bool {
        // The stream exists, so it can be closed; if not, nothing is read below either.
        let closed = self.stream.shutdown(std::net::Shutdown::Read);
        // What was written before the end is still read, then the end.
        closed.is_ok()
            && loop {
                match self.read_more(line, || true) {
                    Err(error) if is_pause(&error) => {}
                    result => break result.unwrap_or(false),
                }
            }
    }
}

/// Whether reading can simply be tried again: the time was over, or a signal came.
fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::MAX_PAYLOAD;

    #[test]
    fn an_answer_counts_once_and_only_if_it_is_awaited() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut answers = Answers::new(&ours).unwrap();
        let time = Duration::from_millis(10);
        assert!(!answers.has_arrived("yes\n", time).unwrap());
        theirs.write_all(b"ye").unwrap();
        assert!(!answers.has_arrived("yes\n", time).unwrap());
        theirs.write_all(b"s\nno\n").unwrap();
        assert!(answers.has_arrived("yes\n", time).unwrap());
        assert!(answers.has_arrived("yes\n", time).is_err());
        assert!(answers.has_arrived("yes\n", time).is_err(), "not the second time either");
        assert!(!answers.close_unless_arrived("yes\n"));
    }

    /// A successor either has written that it counts, or cannot say it any more.
    #[test]
    fn the_system_decides_whether_an_answer_came_in_time() {
        for round in 0..2_000_u32 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut answers = Answers::new(&ours).unwrap();
            let written = std::thread::spawn(move || {
                for _ in 0..round % 50 {
                    std::hint::spin_loop();
                }
                theirs.write_all(b"taken\n").is_ok()
            });
            for _ in 0..(round / 50) * 40 {
                std::hint::spin_loop();
            }
            let has_arrived = answers.close_unless_arrived("taken\n");
            assert_eq!(has_arrived, written.join().unwrap(), "round {round}");
        }
    }

    #[test]
    fn a_frame_that_no_successor_would_read_ends_the_handover() {
        for (bytes, is_sent) in [(MAX_PAYLOAD, true), (MAX_PAYLOAD + 1, false)] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let reading = std::thread::spawn(move || io::copy(&mut theirs, &mut io::sink()));
            let mut frames = FrameStream::start(&ours).unwrap();
            frames.add(FrameKind::Quotas, 0, &vec![0; bytes]);
            let sent = frames.wait_below(0, Duration::from_secs(10));
            assert_eq!(sent.is_ok(), is_sent, "{bytes}: {sent:?}");
            frames.close();
            drop((frames, ours));
            assert_eq!(reading.join().unwrap().unwrap() > 0, is_sent, "{bytes}");
        }
    }

    #[test]
    fn a_successor_that_does_not_read_stops_nobody() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut frames = FrameStream::start(&ours).unwrap();
        for _ in 0..100 {
            frames.add(FrameKind::Cells, 0, &[0; 10_000]);
        }
        assert!(!frames.wait_below(0, Duration::from_millis(20)).unwrap());
        drop(theirs);
        let failed = (0..200).any(|_| frames.wait_below(0, Duration::from_millis(20)).is_err());
        assert!(failed);
    }
}
