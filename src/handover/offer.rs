//! The running process's side of a handover, until QUIT and a successor are there.
//!
//! It waits for both, in either order, and then has everything handed over. It does not know when the process ends. What must
//! always hold: only a successor of this user or of root receives anything, and a handover that fails leaves the process
//! serving and counting.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep, timeout};

use super::context::HandoverContext;
use super::giving::Giving;
use super::timeouts::{KEEPER_PATIENCE, MESSAGE_TIMEOUT, POLL_INTERVAL, QUIT_VALIDITY};
use super::wire::{Hello, MAX_WAIT_LINE, Packet, VERSION, packet_bytes, version_of};
use crate::state::AfterTask;
use crate::state::run_id;

/// Peers that are greeted at once. One that says nothing must not keep a successor waiting.
const MAX_GREETED: usize = 8;

/// Waits for a successor and for the order to hand over.
pub(crate) struct HandoverOffer {
    listener: UnixListener,
    context: Arc<HandoverContext>,
    predecessors: watch::Receiver<usize>,
}

/// Counts the processes before this one that still serve connections. While there is one, this process cannot hand over:
/// it counts for that one.
pub(crate) struct LinkCount(watch::Sender<usize>);

/// One of them, until it is dropped.
pub(crate) struct PredecessorAlive(watch::Sender<usize>);

impl LinkCount {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Whether there is one.
    pub(crate) fn are_alive(&self) -> bool {
        *self.0.borrow() > 0
    }

    pub(crate) fn count_alive(&self) -> PredecessorAlive {
        self.0.send_modify(|count| *count += 1);
        PredecessorAlive(self.0.clone())
    }
}

impl Drop for PredecessorAlive {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl HandoverOffer {
    /// Listens on `socket_path`. From then on successors reach this process instead of an earlier one.
    pub(crate) fn new(
        socket_path: &Path,
        context: HandoverContext,
        links: &LinkCount,
    ) -> io::Result<Self> {
        let temporary = PathBuf::from(format!("{}.{}", socket_path.display(), std::process::id()));
        // What a process of the same number has left.
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        std::fs::rename(&temporary, socket_path)?;
        Ok(Self { listener, context: Arc::new(context), predecessors: links.0.subscribe() })
    }

    /// Returns when a successor counts and accepts connections on our sockets.
    pub(crate) async fn handed_over(mut self) {
        let mut successor: Option<UnixStream> = None;
        // Set by a QUIT; fires when that QUIT expires.
        let mut quit_timer: Option<Pin<Box<Sleep>>> = None;
        let context = Arc::clone(&self.context);
        let (tell, mut greeted) = mpsc::channel(1);
        let greeting = tokio::spawn(greet_all(self.listener, Arc::clone(&context), tell));
        let _until_the_end = AbortOnDrop(greeting.abort_handle());
        loop {
            tokio::select! {
                Some(stream) = greeted.recv() => match successor {
                    // The first stays; the other is told by the end of the conversation.
                    Some(_) => log::warn!("another successor is waiting already"),
                    None => {
                        log::info!("a successor is waiting; QUIT hands over to it");
                        successor = Some(stream);
                    }
                },
                () = disconnected(&mut successor) => {
                    log::info!("the successor has gone");
                    successor = None;
                }
                () = context.requests.hand_over.notified() => {
                    quit_timer = Some(Box::pin(sleep(QUIT_VALIDITY)));
                    if successor.is_none() {
                        log::info!("QUIT: serving on until a successor comes (run --upgrade)");
                    } else if *self.predecessors.borrow() > 0 {
                        log::info!("QUIT: handing over when the process before has ended");
                    }
                }
                () = expired(&mut quit_timer) => {
                    match &successor {
                        None => log::warn!("QUIT: no successor came; serving on"),
                        Some(_) => log::warn!(
                            "QUIT: the process before has not ended; serving on: send another QUIT when it has"
                        ),
                    }
                    quit_timer = None;
                }
                _ = self.predecessors.changed() => {}
            }
            if quit_timer.is_none() || *self.predecessors.borrow() > 0 {
                continue;
            }
            let Some(stream) = successor.take() else {
                continue;
            };
            quit_timer = None;
            match hand_over(&context, stream).await {
                Ok(()) => return,
                Err(error) => log::error!("the successor does not take over: {error}; serving on"),
            }
        }
    }
}

/// Hands over on the keeper's thread. That may wait for a disk: if it does for too long, the successor is told so by the end
/// of the conversation, and the task finds nothing to do.
async fn hand_over(context: &Arc<HandoverContext>, stream: UnixStream) -> io::Result<()> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let given = Arc::new(Mutex::new(Some((Arc::clone(context), stream))));
    let (for_task, (tell, told)) = (Arc::clone(&given), oneshot::channel());
    let (begin, has_begun) = oneshot::channel();
    (context.keeper)(Box::new(move |keeper| {
        let Some((own, stream)) = for_task.lock().take() else {
            return AfterTask::GoOn;
        };
        // Whoever waits ends only with the process.
        let _is_heard = begin.send(());
        let given = Giving::new(&own, keeper, stream).and_then(Giving::run);
        let after = if given.is_ok() { AfterTask::HandedOver } else { AfterTask::GoOn };
        drop(tell.send(given));
        after
    }))?;
    if timeout(KEEPER_PATIENCE, has_begun).await.is_err() && given.lock().take().is_some() {
        let reason = "the state directory does not answer: a write to it does not end";
        return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
    }
    told.await.map_err(io::Error::other)?
}

/// The stream, if the peer runs as this user or as root and introduces itself as a successor of a version that this one
/// can talk to. It is told what it must know before QUIT. Other users get no secret, whatever the directory's
/// permissions are.
async fn greeted(context: &HandoverContext, mut stream: UnixStream) -> Option<UnixStream> {
    let own = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
        log::warn!("a process of another user connected to take over; it gets nothing");
        return None;
    }
    let line = timeout(MESSAGE_TIMEOUT, first_line(&mut stream)).await;
    match line.ok().and_then(Result::ok).as_deref().and_then(version_of) {
        Some(version) if version >= VERSION => {}
        Some(version) => {
            log::error!(
                "a successor speaks version {version} of the handover, this process {VERSION}; end this process and start that one anew"
            );
            return None;
        }
        None => {
            log::warn!("a peer connected to take over, but is no successor");
            return None;
        }
    }
    let hello = Packet::Hello(Box::new(hello(context)));
    let bytes = packet_bytes(&hello).ok()?;
    timeout(MESSAGE_TIMEOUT, stream.write_all(&bytes)).await.ok()?.ok()?;
    Some(stream)
}

fn hello(context: &HandoverContext) -> Hello {
    Hello {
        version: VERSION,
        secret: context.engine.secret_bytes(),
        mark: context.clock.mark(),
        has_state: context.has_state,
        run_id: run_id(),
    }
}

/// Greets peers side by side, and passes on the successors among them.
async fn greet_all(
    listener: UnixListener,
    context: Arc<HandoverContext>,
    tell: mpsc::Sender<UnixStream>,
) {
    let free = Arc::new(Semaphore::new(MAX_GREETED));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left, most likely.
            sleep(POLL_INTERVAL).await;
            continue;
        };
        let (context, tell) = (Arc::clone(&context), tell.clone());
        tokio::spawn(async move {
            if let Some(stream) = greeted(&context, stream).await {
                // Nobody takes it once this process has handed over.
                let _is_taken = tell.send(stream).await;
            }
            drop(permit);
        });
    }
}

/// Ends a task.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The first line of a peer, without its line feed.
async fn first_line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    while line.len() < MAX_WAIT_LINE {
        match stream.read_u8().await? {
            b'\n' => break,
            byte => line.push(byte),
        }
    }
    String::from_utf8(line).map_err(io::Error::other)
}

/// Returns when the QUIT expires; never without a QUIT.
async fn expired(quit_timer: &mut Option<Pin<Box<Sleep>>>) {
    match quit_timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}

/// Returns when the successor disconnects or violates the protocol; never without a successor.
async fn disconnected(successor: &mut Option<UnixStream>) {
    match successor {
        Some(stream) => {
            // A waiting successor sends nothing, so any readable byte or end ends the wait.
            while stream.readable().await.is_ok() {
                let read = stream.try_read(&mut [0; 1]);
                if !matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                    return;
                }
            }
        }
        None => std::future::pending().await,
    }
}
