//! The successor's part of the conversation, from the sockets to the instant in which it counts.
//!
//! A thread reads and takes up what the running process counts, while this process builds what serves it. What must always
//! hold: nothing is judged here before the running process can no longer take its counts back.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use super::client::Greeted;
use super::serving::serve;
use super::timeouts::{LAST_SAVE_PATIENCE, POLL_INTERVAL, STALL_TIMEOUT, SUCCESSOR_PATIENCE};
use super::wire::{Packet, Word, read_packet, receive_sockets, send, unexpected};
use crate::clock::{Clock, Nanos, RoundedSpan};
use crate::edge::{ListeningSockets, TicketKeys};
use crate::engine::{Engine, Predecessor, Restorer};
use crate::history::{RestoredMinutes, TrafficHistory};
use crate::proxy::Live;
use crate::signals::OperatorRequests;
use crate::state::{FrameKind, RestoredFrame, StateMetrics};

/// Bytes that are read at once.
const READ_BYTES: usize = 256 * 1024;

/// The most bytes of what is taken up in the last moment: the confirm table, and a million keys with requests in flight.
const MAX_LAST_BYTES: usize = 64 * 1024 * 1024;

/// What takes up the counts.
pub(crate) struct TakeUpContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) history: Arc<TrafficHistory>,
    pub(crate) live: Arc<ArcSwap<Live>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<StateMetrics>,
    pub(crate) requests: Arc<OperatorRequests>,
    /// Puts the rules for keys into force that were taken up.
    pub(crate) republish: Box<dyn Fn() + Send>,
    /// Looks whether this process's state directory is free, when everything has been copied once, and changes nothing in it.
    pub(crate) look: Option<Box<dyn FnOnce() -> BeginSaving + Send>>,
    /// Lets requests in, as soon as this process counts.
    pub(crate) open: Box<dyn FnOnce() + Send>,
}

/// Begins to save, while the process before is known to serve.
pub(crate) type BeginSaving = Box<dyn FnOnce() -> EarlySave + Send>;

/// What is saved of what was taken up, before this process counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EarlySave {
    /// Nothing: there is no directory, or the running process still uses it.
    Nothing,
    /// Saving has begun.
    Incomplete,
    /// Everything so far.
    Everything,
}

/// What this process received from the running process.
pub(crate) struct TakenOver {
    pub(crate) sockets: ListeningSockets,
    pub(crate) successor: TakeUp,
}

/// This process after it received the sockets and before it counts.
pub(crate) struct TakeUp {
    /// Lets the thread say that this process can serve.
    prepared: mpsc::Sender<()>,
    taken: oneshot::Receiver<io::Result<(UnixStream, Predecessor)>>,
    live: Arc<ArcSwap<Live>>,
}

/// Waits until the running process hands over its sockets and session ticket keys, then begins to take up what it counts.
/// `None` if this process is told to end meanwhile.
pub(crate) fn take_over(
    greeted: Greeted,
    requests: &OperatorRequests,
    ticket_keys: &TicketKeys,
    context: TakeUpContext,
) -> io::Result<Option<TakenOver>> {
    let Greeted { mut stream, .. } = greeted;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero();
    log::info!("waiting for process {pid} to hand over: send it QUIT (kill -QUIT {pid})");
    for _ in 0..SUCCESSOR_PATIENCE.as_millis() / POLL_INTERVAL.as_millis() {
        if requests.is_ending() {
            return Ok(None);
        }
        let message = match receive_sockets(&stream) {
            Ok(message) => message,
            // A signal for another reason interrupts the wait too.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        log::info!("{} sockets were handed over", message.sockets.len());
        if !ticket_keys.adopt(&message.ticket_keys, context.clock.now().mono) {
            log::warn!("no keys of session tickets were handed over: sessions begin anew");
        }
        send(&mut stream, message.word.answer("copy").as_bytes())?;
        let successor = TakeUp::start(stream, message.link, context)?;
        let sockets = ListeningSockets::inherited(message.sockets);
        return Ok(Some(TakenOver { sockets, successor }));
    }
    let reason = "it has not handed over within a minute: it was not sent QUIT, or waits for the process before it";
    Err(io::Error::new(io::ErrorKind::TimedOut, reason))
}

impl TakeUp {
    fn start(stream: UnixStream, link: UnixStream, context: TakeUpContext) -> io::Result<Self> {
        let (prepared, may_answer) = mpsc::channel();
        let (tell, taken) = oneshot::channel();
        let live = Arc::clone(&context.live);
        stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        std::thread::Builder::new().name("take-up".to_owned()).spawn(move || {
            // If nobody listens, the process ends.
            let taken = take_up(stream, context, &may_answer);
            drop(tell.send(taken.map(|predecessor| (link, predecessor))));
        })?;
        Ok(Self { prepared, taken, live })
    }

    /// Says that this process can serve at once, and returns when it counts. Then the process before is served until it has
    /// ended, by a task that holds `alive`.
    pub(crate) async fn take<A: Send + 'static>(self, alive: A) -> io::Result<()> {
        // If the thread has ended, it tells why.
        let _is_heard = self.prepared.send(());
        let taken = self.taken.await.map_err(io::Error::other)?;
        let (link, predecessor) = taken.map_err(explained)?;
        let live = self.live;
        tokio::spawn(async move {
            serve(link, predecessor, live).await;
            drop(alive);
        });
        Ok(())
    }
}

/// What was taken up so far.
struct TakingUp {
    context: TakeUpContext,
    restorer: Restorer,
    minutes: RestoredMinutes,
    /// What is taken up in the last moment.
    last_frames: Vec<(FrameKind, Vec<u8>)>,
    last_bytes: usize,
    /// Records that this process cannot read.
    unreadable: u64,
    /// Cells that were copied once; `None`: not all have been.
    copied: Option<u64>,
    has_new_rules: bool,
    /// Set after a look at the directory.
    begin_saving: Option<BeginSaving>,
    early: EarlySave,
    /// Whether this process can serve at once.
    is_prepared: bool,
}

/// Takes up everything. Returns when this process counts.
fn take_up(
    stream: UnixStream,
    context: TakeUpContext,
    may_answer: &mpsc::Receiver<()>,
) -> io::Result<Predecessor> {
    let mut reader = BufReader::with_capacity(READ_BYTES, stream.try_clone()?);
    let mut answers = stream;
    let now = context.clock.now();
    let mut taking_up = TakingUp {
        restorer: Restorer::new(Arc::clone(&context.engine)),
        minutes: context.history.restorer(now.mono, context.clock.date(now)),
        context,
        last_frames: Vec::new(),
        last_bytes: 0,
        unreadable: 0,
        copied: None,
        has_new_rules: false,
        begin_saving: None,
        early: EarlySave::Nothing,
        is_prepared: false,
    };
    loop {
        match read_packet(&mut reader)? {
            Packet::Frame { kind, group, payload } => taking_up.read(kind, group, payload)?,
            Packet::Copied(word) if taking_up.copied.is_none() => {
                taking_up.look()?;
                send(&mut answers, word.answer("looked").as_bytes())?;
            }
            Packet::Serving(word) if taking_up.copied.is_some() && !taking_up.is_prepared => {
                check_end(&taking_up.context.requests)?;
                taking_up.prepare();
                may_answer
                    .recv_timeout(STALL_TIMEOUT)
                    .map_err(|_| io::Error::other("this process was not ready in time"))?;
                check_end(&taking_up.context.requests)?;
                send(&mut answers, word.answer("prepared").as_bytes())?;
            }
            Packet::Last { word, since } if taking_up.is_prepared => {
                if !reader.buffer().is_empty() {
                    return Err(unexpected());
                }
                return taking_up.finish(&mut answers, word, since);
            }
            Packet::Hello(_) | Packet::Copied(_) | Packet::Serving(_) | Packet::Last { .. } => {
                return Err(unexpected());
            }
        }
    }
}

impl TakingUp {
    fn read(&mut self, kind: FrameKind, group: u8, payload: Vec<u8>) -> io::Result<()> {
        if matches!(kind, FrameKind::Confirm | FrameKind::InFlight | FrameKind::Fleet) {
            self.last_bytes += payload.len();
            if self.copied.is_none() || self.last_bytes > MAX_LAST_BYTES {
                return Err(unexpected());
            }
            self.last_frames.push((kind, payload));
            return Ok(());
        }
        if kind == FrameKind::History {
            self.minutes.read(&payload);
            return self.check_readable(0);
        }
        self.has_new_rules |= kind == FrameKind::Rules;
        let frame = RestoredFrame { kind, group, payload, is_clean: true };
        if let Some(cells) = self.restorer.read(frame) {
            let TakeUpContext { engine, metrics, .. } = &self.context;
            self.unreadable += Restorer::restore_cells(engine, metrics, &cells);
        }
        self.check_readable(0)
    }

    /// Everything has been copied once.
    fn look(&mut self) -> io::Result<()> {
        self.restorer.publish_rules();
        (self.context.republish)();
        self.has_new_rules = false;
        self.copied = Some(self.context.metrics.recovered_cells());
        self.check_readable(self.restorer.unreadable())?;
        self.begin_saving = self.context.look.take().map(|look| look());
        Ok(())
    }

    /// The process before serves on, after this one has looked.
    fn prepare(&mut self) {
        if let Some(begin_saving) = self.begin_saving.take() {
            self.early = begin_saving();
        }
        if self.early != EarlySave::Nothing {
            self.restorer.list_as_changed();
        }
        self.is_prepared = true;
    }

    /// Takes up what changed last, and says that this process counts.
    fn finish(self, answers: &mut UnixStream, word: Word, since: Nanos) -> io::Result<Predecessor> {
        let (unreadable, copied) = (self.unreadable, self.copied.unwrap_or_default());
        let early = self.early;
        let TakeUpContext {
            engine, history, live, clock, metrics, requests, republish, open, ..
        } = self.context;
        let generation = &live.load().generation;
        let (predecessor, left) = self.restorer.take_up(&engine, generation, &self.last_frames);
        if self.has_new_rules {
            republish();
        }
        if unreadable + left > 0 {
            return Err(not_readable(unreadable + left));
        }
        history.restore(self.minutes);
        if early != EarlySave::Nothing {
            history.set_unsaved();
        }
        if early == EarlySave::Everything && !engine.save_within(LAST_SAVE_PATIENCE) {
            log::warn!(
                "the last changes are not saved within {LAST_SAVE_PATIENCE:?}; until they are, a sudden end of this process loses them"
            );
        }
        check_end(&requests)?;
        answer_taken(answers, word)?;
        open();
        let pause = clock.now().mono.saturating_sub(since);
        metrics.record_handover(copied, pause);
        let span = RoundedSpan(pause);
        log::info!("{copied} cells were handed over; requests waited for {span}");
        Ok(predecessor)
    }

    /// An error if something cannot be read: the running process can, and serves on.
    fn check_readable(&self, more: u64) -> io::Result<()> {
        match self.unreadable + self.minutes.unreadable() + more {
            0 => Ok(()),
            unreadable => Err(not_readable(unreadable)),
        }
    }
}

/// The error of a conversation, for people: what the system says of a silent or a dead process tells them nothing.
pub(crate) fn explained(error: io::Error) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof, WouldBlock};
    let reason = match error.kind() {
        // It has a reason of its own.
        _ if error.get_ref().is_some() => return error,
        WouldBlock => "it does not answer: it may be stopped",
        UnexpectedEof | BrokenPipe | ConnectionReset => {
            "it has ended, or ended the conversation: its log says why"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), reason)
}

fn not_readable(records: u64) -> io::Error {
    io::Error::other(format!("{records} records of its counts cannot be read"))
}

/// An error once this process is told to end: then the running one must serve on.
fn check_end(requests: &OperatorRequests) -> io::Result<()> {
    match requests.is_ending() {
        true => Err(io::Error::other("this process is told to end")),
        false => Ok(()),
    }
}

/// Says that this process counts. After an error it does not: the running process has taken its counts back.
fn answer_taken(answers: &mut UnixStream, word: Word) -> io::Result<()> {
    send(answers, word.answer("taken").as_bytes())
}
