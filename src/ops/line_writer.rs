//! Writes lines to a file or a pipe without making the caller wait.
//!
//! Lines go through a queue to a thread that writes them. When a pipe is full or a disk is slow, the queue fills, and
//! further lines are dropped and counted. It does not know what a line says. What must always hold: no line
//! begins inside another one.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, OFlags};

/// The largest number of lines in the queue: a second of a busy proxy, some megabytes.
const MAX_WAITING: usize = 16_384;

/// The largest number of bytes in the queue. Clients can make lines of some kilobytes.
const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// Lines dropped by all writers of this process: `tollgate_log_dropped_total`.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A queue of lines, and the thread that writes them.
#[derive(Clone, Debug)]
pub struct LineWriter {
    queue: SyncSender<Message>,
    /// Bytes of the lines in the queue.
    queued: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Message {
    Line(String),
    /// Answered when everything before it has been written.
    Flush(SyncSender<()>),
}

impl LineWriter {
    /// Starts the thread that writes to `out`. It ends when the last clone is dropped.
    pub fn start(name: &str, out: File) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(MAX_WAITING);
        let name = format!("log-{name}");
        let queued = Arc::<AtomicUsize>::default();
        let taken = Arc::clone(&queued);
        std::thread::Builder::new().name(name).spawn(move || write_all(&waiting, &taken, out))?;
        Ok(Self { queue, queued })
    }

    /// Queues a line, given without its end. Drops it if the queue is full.
    pub fn write(&self, line: String) {
        let bytes = line.capacity();
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        let sent = before <= MAX_WAITING_BYTES && self.queue.try_send(Message::Line(line)).is_ok();
        if !sent {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the queued lines are written, at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let (done, wait) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // If the reader is slow or has gone, the lines are given up.
            let _ = wait.recv_timeout(patience);
        }
    }

    /// Lines dropped so far, of all writers.
    pub fn dropped() -> u64 {
        DROPPED.load(Ordering::Relaxed)
    }
}

/// Writes the queued lines, as many at once as fit into a batch.
fn write_all(waiting: &Receiver<Message>, queued: &AtomicUsize, out: impl LogOutput) {
    /// Bytes from which on a batch is written although more lines wait.
    const BATCH: usize = 64 * 1024;
    let mut lines = LineOutput { out, rest: Vec::new() };
    let mut batch = Vec::with_capacity(BATCH);
    let mut flushes: Vec<SyncSender<()>> = Vec::new();
    while let Ok(first) = waiting.recv() {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Line(line) => {
                    batch.extend_from_slice(line.as_bytes());
                    batch.push(b'\n');
                    queued.fetch_sub(line.capacity(), Ordering::Relaxed);
                }
                Message::Flush(done) => flushes.push(done),
            }
            next = if batch.len() < BATCH { waiting.try_recv().ok() } else { None };
        }
        DROPPED.fetch_add(lines.write(&batch), Ordering::Relaxed);
        batch.clear();
        flushes.drain(..).for_each(|done| {
            // Whoever waited may have given up.
            let _ = done.try_send(());
        });
    }
}

/// A file or pipe that may be full.
trait LogOutput: Write {
    /// Removes the last `bytes` that were written. Returns `false` if that is not possible.
    fn cut(&mut self, bytes: u64) -> bool;
}

impl LogOutput for File {
    fn cut(&mut self, bytes: u64) -> bool {
        let mut cut = || -> io::Result<bool> {
            // An error for a pipe, which has no position.
            let end = self.stream_position()?;
            let metadata = self.metadata()?;
            let is_at_end = metadata.is_file() && metadata.len() == end;
            let start = end.checked_sub(bytes).filter(|_| is_at_end);
            let Some(start) = start else {
                // Another process has appended its own lines, which must stay.
                return Ok(false);
            };
            self.set_len(start)?;
            self.seek(SeekFrom::Start(start)).map(|_| true)
        };
        cut().unwrap_or(false)
    }
}

/// Writes whole lines. A full disk may take only the beginning of a line. That beginning is removed again; if that is not
/// possible (a pipe), the line is completed before anything else is written.
struct LineOutput<O> {
    out: O,
    /// The missing part of a line whose beginning was written.
    rest: Vec<u8>,
}

impl<O: LogOutput> LineOutput<O> {
    /// Writes lines, each with its end. Returns how many were dropped.
    fn write(&mut self, lines: &[u8]) -> u64 {
        let rest = std::mem::take(&mut self.rest);
        let completed = self.write_some(&rest);
        if let Err(rest) = completed {
            self.rest = rest;
            return count(lines);
        }
        let Err(unwritten) = self.write_some(lines) else {
            return 0;
        };
        let written = &lines[..lines.len() - unwritten.len()];
        let begun = written.len() - memchr::memrchr(b'\n', written).map_or(0, |at| at + 1);
        let mut dropped = count(&unwritten);
        if begun > 0 && !self.out.cut(begun as u64) {
            let end = memchr::memchr(b'\n', &unwritten).map_or(unwritten.len(), |at| at + 1);
            self.rest = unwritten[..end].to_vec();
            dropped -= 1;
        }
        dropped
    }

    /// Writes bytes. `Err`: the bytes that could not be written.
    fn write_some(&mut self, bytes: &[u8]) -> Result<(), Vec<u8>> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.out.write(left) {
                Ok(written) if written > 0 => left = &left[written.min(left.len())..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return Err(left.to_vec()),
            }
        }
        self.out.flush().map_err(|_| Vec::new())
    }
}

fn count(lines: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', lines).count() as u64
}

/// Opens the target of a log. `None` if there is no log.
pub(super) fn open(target: &crate::config::LogTarget) -> io::Result<Option<LineWriter>> {
    use crate::config::LogTarget;
    let writer = match target {
        LogTarget::None => return Ok(None),
        LogTarget::Stdout => LineWriter::start("stdout", owned(io::stdout())?)?,
        LogTarget::Stderr => LineWriter::start("stderr", owned(io::stderr())?)?,
        LogTarget::File(path) => LineWriter::start("file", open_file(path, true)?)?,
    };
    Ok(Some(writer))
}

/// The types of `/proc` and `/sys` (`linux/magic.h`).
const KERNEL_FILES: [rustix::fs::FsWord; 2] = [rustix::fs::PROC_SUPER_MAGIC, 0x6265_6572];

/// Whether a target could be opened. Creates nothing: a file that `root` created while it checked would be closed to the
/// user that writes to it later.
pub(super) fn rehearse(target: &crate::config::LogTarget) -> io::Result<()> {
    let crate::config::LogTarget::File(path) = target else {
        return Ok(());
    };
    match open_file(path, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let (folder, may) =
                (folder.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK);
            rustix::fs::accessat(rustix::fs::CWD, folder, may, AtFlags::EACCESS)?;
            // The kernel makes the files of such a folder, and nobody else, whatever its mode is.
            match KERNEL_FILES.contains(&rustix::fs::statfs(folder)?.f_type) {
                true => Err(io::Error::other("no file can be created there")),
                false => Ok(()),
            }
        }
        opened => opened.map(drop),
    }
}

/// Opens a file to append to it. A pipe that no program reads is an error, because opening it would wait for a reader.
fn open_file(path: &Path, create: bool) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(create).append(true).custom_flags(flags).open(path)?;
    // Writing waits again: lines of a slow reader are dropped by the queue, not here.
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// A duplicate of a stream's descriptor. It bypasses the buffer of the standard library, which could keep a part of a
/// line.
pub(super) fn owned(stream: impl AsFd) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

/// A writer that can be replaced while it is used.
pub(super) type ReplaceableWriter = Arc<arc_swap::ArcSwapOption<LineWriter>>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many bytes as there is room, in pieces.
    struct Disk {
        held: Vec<u8>,
        room: usize,
        piece: usize,
        can_cut: bool,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.piece).min(self.room - self.held.len());
            self.held.extend_from_slice(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl LogOutput for Disk {
        fn cut(&mut self, bytes: u64) -> bool {
            if self.can_cut {
                self.held.truncate(self.held.len() - bytes as usize);
            }
            self.can_cut
        }
    }

    /// Whatever room there is and comes: lines are whole, in order, and those that are missing are
    /// counted.
    #[test]
    fn a_disk_that_is_full_at_any_byte_holds_complete_lines() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let disk = Disk {
                held: Vec::new(),
                room: rng.usize(0..60),
                piece: rng.usize(1..20),
                can_cut: rng.bool(),
            };
            let mut lines = LineOutput { out: disk, rest: Vec::new() };
            let (mut given, mut dropped) = (0, 0);
            for _ in 0..rng.usize(1..8) {
                let mut batch = Vec::new();
                for _ in 0..rng.usize(0..5) {
                    batch.extend_from_slice(format!("<{given}>\n").as_bytes());
                    given += 1;
                }
                dropped += lines.write(&batch);
                if lines.out.can_cut {
                    let held = &lines.out.held;
                    assert!(held.is_empty() || held.ends_with(b"\n"), "{seed}: torn");
                }
                lines.out.room += rng.usize(0..30);
            }
            lines.out.room = usize::MAX;
            dropped += lines.write(b"");
            let text = String::from_utf8(lines.out.held).unwrap();
            let numbers: Vec<u64> = text
                .split_terminator('\n')
                .map(|line| {
                    line.strip_prefix('<').unwrap().strip_suffix('>').unwrap().parse().unwrap()
                })
                .collect();
            assert!(numbers.is_sorted() && (text.is_empty() || text.ends_with('\n')), "{text}");
            assert_eq!(numbers.len() as u64 + dropped, given, "{seed}: {text}");
        }
    }

    /// A pipe that nobody reads: whatever the size of lines, their number and their bytes are bounded.
    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let (reader, pipe) = io::pipe().unwrap();
        let writer =
            LineWriter::start("test", File::from(std::os::fd::OwnedFd::from(pipe))).unwrap();
        let line = "x".repeat(1024 * 1024);
        let before = LineWriter::dropped();
        (0..100).for_each(|_| writer.write(line.clone()));
        let queued = writer.queued.load(Ordering::Relaxed);
        assert!(
            (MAX_WAITING_BYTES / 2..=MAX_WAITING_BYTES + line.len()).contains(&queued),
            "{queued}"
        );
        assert!(LineWriter::dropped() - before >= 60);
        drop(reader);
    }

    #[test]
    fn a_file_is_cut_unless_another_process_wrote_to_it() {
        let path = std::env::temp_dir().join(format!("tollgate-cut-{}", std::process::id()));
        let open = || std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let (mut ours, mut theirs) = (open(), open());
        ours.write_all(b"whole\npart").unwrap();
        assert!(ours.cut(4));
        ours.write_all(b"part").unwrap();
        theirs.write_all(b"theirs\n").unwrap();
        assert!(!ours.cut(4));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\nparttheirs\n");
        std::fs::remove_file(&path).unwrap();
    }
}
