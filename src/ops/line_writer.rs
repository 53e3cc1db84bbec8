//! Lines on their way out of the process. Whoever writes a line never waits: a full pipe or a slow
//! disk drops lines and counts them.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines that may wait: a second of a busy proxy, some megabytes.
const MAX_WAITING: usize = 16_384;

/// Lines dropped in this process, all writers together: `tollgate_log_dropped_total`.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// A queue of lines with a thread at its end.
#[derive(Clone, Debug)]
pub struct LineWriter {
    queue: SyncSender<Message>,
}

#[derive(Debug)]
enum Message {
    Line(String),
    /// Answered when everything before it was written.
    Flush(SyncSender<()>),
}

impl LineWriter {
    /// Starts the thread that writes to `out`. It ends when the last clone is dropped.
    pub fn start(name: &str, out: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (queue, waiting) = sync_channel(MAX_WAITING);
        let name = format!("log-{name}");
        std::thread::Builder::new().name(name).spawn(move || write_all(&waiting, out))?;
        Ok(Self { queue })
    }

    /// Hands over a line without its end, or drops it.
    pub fn write(&self, line: String) {
        match self.queue.try_send(Message::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until what was handed over is written, at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let (done, wait) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // A reader that is gone or slow is no reason to stay.
            let _ = wait.recv_timeout(patience);
        }
    }

    /// Lines dropped so far, of all writers.
    pub fn dropped() -> u64 {
        DROPPED.load(Ordering::Relaxed)
    }
}

/// Writes as many lines at once as are waiting.
fn write_all(waiting: &Receiver<Message>, mut out: impl Write) {
    /// Bytes after which a write is made even though more lines wait.
    const BATCH: usize = 64 * 1024;
    let mut batch = Vec::with_capacity(BATCH);
    let mut flushes: Vec<SyncSender<()>> = Vec::new();
    while let Ok(first) = waiting.recv() {
        let mut lines = 0;
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Line(line) => {
                    batch.extend_from_slice(line.as_bytes());
                    batch.push(b'\n');
                    lines += 1;
                }
                Message::Flush(done) => flushes.push(done),
            }
            next = if batch.len() < BATCH { waiting.try_recv().ok() } else { None };
        }
        if out.write_all(&batch).and_then(|()| out.flush()).is_err() {
            DROPPED.fetch_add(lines, Ordering::Relaxed);
        }
        batch.clear();
        flushes.drain(..).for_each(|done| {
            let _ = done.try_send(());
        });
    }
}

/// Where a log goes, as a writer.
pub(super) fn open(target: &crate::config::LogTarget) -> std::io::Result<Option<LineWriter>> {
    use crate::config::LogTarget;
    let writer = match target {
        LogTarget::None => return Ok(None),
        LogTarget::Stdout => LineWriter::start("stdout", std::io::stdout())?,
        LogTarget::Stderr => LineWriter::start("stderr", std::io::stderr())?,
        LogTarget::File(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            LineWriter::start("file", file)?
        }
    };
    Ok(Some(writer))
}

/// A writer that several logs share.
pub(super) type Shared = Arc<arc_swap::ArcSwapOption<LineWriter>>;
