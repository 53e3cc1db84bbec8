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
use super::timeouts::{POLL_INTERVAL, STALL_TIMEOUT, SUCCESSOR_PATIENCE};
use super::wire::{Packet, Word, read_packet, receive_sockets, send, unexpected};
use crate::clock::{Clock, Nanos, RoundedSpan};
use crate::edge::{ListeningSockets, TicketKeys};
use crate::engine::{Engine, Predecessor, Restorer};
use crate::proxy::Live;
use crate::signals::OperatorRequests;
use crate::state::{FrameKind, RestoredFrame, StateMetrics};

/// Bytes that are read at once.
const READ_BYTES: usize = 256 * 1024;

/// What takes up the counts.
pub(crate) struct TakeUpContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) live: Arc<ArcSwap<Live>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<StateMetrics>,
    pub(crate) requests: Arc<OperatorRequests>,
    /// Puts the rules for keys into force that were taken up.
    pub(crate) republish: Box<dyn Fn() + Send>,
    /// Lets requests in, as soon as this process counts.
    pub(crate) open: Box<dyn FnOnce() + Send>,
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
        let successor = TakeUp::start(stream, context)?;
        let sockets = ListeningSockets::inherited(message.sockets);
        return Ok(Some(TakenOver { sockets, successor }));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "it was not sent QUIT"))
}

impl TakeUp {
    fn start(stream: UnixStream, context: TakeUpContext) -> io::Result<Self> {
        let (prepared, may_answer) = mpsc::channel();
        let (tell, taken) = oneshot::channel();
        let live = Arc::clone(&context.live);
        stream.set_read_timeout(Some(STALL_TIMEOUT))?;
        std::thread::Builder::new().name("take-up".to_owned()).spawn(move || {
            // If nobody listens, the process ends.
            drop(tell.send(take_up(stream, context, &may_answer)));
        })?;
        Ok(Self { prepared, taken, live })
    }

    /// Says that this process can serve at once, and returns when it counts. Then the process before is served until it has
    /// ended, by a task that holds `alive`.
    pub(crate) async fn take<A: Send + 'static>(self, alive: A) -> io::Result<()> {
        // If the thread has ended, it tells why.
        let _is_heard = self.prepared.send(());
        let (stream, predecessor) = self.taken.await.map_err(io::Error::other)??;
        let live = self.live;
        tokio::spawn(async move {
            serve(stream, predecessor, live).await;
            drop(alive);
        });
        Ok(())
    }
}

/// Takes up everything. Returns when this process counts.
fn take_up(
    stream: UnixStream,
    context: TakeUpContext,
    may_answer: &mpsc::Receiver<()>,
) -> io::Result<(UnixStream, Predecessor)> {
    let TakeUpContext { engine, live, clock, metrics, requests, republish, open } = context;
    let mut reader = BufReader::with_capacity(READ_BYTES, stream.try_clone()?);
    let mut answers = stream.try_clone()?;
    let mut restorer = Restorer::new(Arc::clone(&engine));
    let mut last_frames = Vec::new();
    let (mut unreadable, mut has_new_rules, mut cells) = (0, false, 0);
    loop {
        match read_packet(&mut reader)? {
            Packet::Frame {
                kind: kind @ (FrameKind::Confirm | FrameKind::InFlight),
                payload,
                ..
            } => {
                last_frames.push((kind, payload));
            }
            Packet::Frame { kind, group, payload } => {
                has_new_rules |= kind == FrameKind::Rules;
                let frame = RestoredFrame { kind, group, payload, is_settled: true };
                if let Some(cells) = restorer.read(frame) {
                    unreadable += Restorer::restore_cells(&engine, &metrics, &cells);
                }
            }
            Packet::Copied(word) => {
                restorer.publish_rules();
                republish();
                (has_new_rules, cells) = (false, metrics.recovered_cells());
                may_answer
                    .recv_timeout(STALL_TIMEOUT)
                    .map_err(|_| io::Error::other("this process was not ready in time"))?;
                check_end(&requests)?;
                send(&mut answers, word.answer("prepared").as_bytes())?;
            }
            Packet::Last { word, since } => {
                let generation = &live.load().generation;
                let (predecessor, left) = restorer.take_up(&engine, generation, &last_frames);
                if has_new_rules {
                    republish();
                }
                if !reader.buffer().is_empty() {
                    return Err(unexpected());
                }
                check_end(&requests)?;
                answer_taken(&mut answers, word)?;
                open();
                let pause = clock.now().mono.saturating_sub(since);
                metrics.record_handover(cells, pause);
                report(cells, unreadable + left, pause);
                return Ok((stream, predecessor));
            }
            Packet::Hello(_) => return Err(unexpected()),
        }
    }
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

fn report(cells: u64, unreadable: u64, pause: Nanos) {
    let span = RoundedSpan(pause);
    log::info!("{cells} cells were handed over; requests waited for {span}");
    if unreadable > 0 {
        log::error!(
            "{unreadable} records of the running process could not be read and are left out"
        );
    }
}
