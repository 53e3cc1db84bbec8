//! The running process's side of a handover.
//!
//! It waits for a successor and for QUIT, in either order, and then hands the sockets over. It does not know when the
//! process ends. What must always hold: only a successor of this user or of root receives sockets and keys, and a
//! handover that fails leaves the process serving.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep, timeout};

use super::timeouts::{MESSAGE_TIMEOUT, QUIT_VALIDITY, REPORT_TIMEOUT};
use super::wire::{self, HandoverMessage};
use crate::clock::Clock;
use crate::edge::listener::ListeningSockets;
use crate::edge::tls::TicketKeys;
use crate::signals::OperatorRequests;

/// Waits for a successor and for the order to hand over.
pub(crate) struct HandoverOffer {
    listener: UnixListener,
    state: HandoverState,
    requests: Arc<OperatorRequests>,
}

/// What a successor receives.
pub(crate) struct HandoverState {
    pub(crate) sockets: Arc<ListeningSockets>,
    pub(crate) ticket_keys: Arc<TicketKeys>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl HandoverOffer {
    /// Listens on `socket_path`. From then on successors reach this process instead of an earlier one.
    pub(crate) fn new(
        socket_path: &Path,
        state: HandoverState,
        requests: Arc<OperatorRequests>,
    ) -> io::Result<Self> {
        let temporary = PathBuf::from(format!("{}.{}", socket_path.display(), std::process::id()));
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary)?;
        std::fs::rename(&temporary, socket_path)?;
        Ok(Self { listener, state, requests })
    }

    /// Returns when a successor accepts connections on our sockets.
    pub(crate) async fn handed_over(self) {
        let mut successor: Option<UnixStream> = None;
        // Set by a QUIT; fires when that QUIT expires.
        let mut quit_timer: Option<Pin<Box<Sleep>>> = None;
        loop {
            tokio::select! {
                accepted = self.listener.accept() => if let Ok((stream, _)) = accepted {
                    successor = verified(stream).await.or(successor);
                },
                () = disconnected(&mut successor) => {
                    log::info!("the successor has gone");
                    successor = None;
                }
                () = self.requests.hand_over.notified() => {
                    quit_timer = Some(Box::pin(sleep(QUIT_VALIDITY)));
                    if successor.is_none() {
                        log::info!("QUIT: serving on until a successor comes (run --upgrade)");
                    }
                }
                () = expired(&mut quit_timer) => {
                    log::warn!("QUIT: no successor came; serving on");
                    quit_timer = None;
                }
            }
            if quit_timer.is_none() {
                continue;
            }
            let Some(stream) = successor.take() else {
                continue;
            };
            quit_timer = None;
            match self.hand_over(stream).await {
                Ok(()) => return,
                Err(error) => log::error!("the successor does not accept: {error}; serving on"),
            }
        }
    }

    async fn hand_over(&self, stream: UnixStream) -> io::Result<()> {
        let HandoverState { sockets, ticket_keys, clock } = &self.state;
        let sockets = sockets.try_clone()?;
        let ticket_keys = ticket_keys.export(clock.now().mono);
        let message = HandoverMessage { sockets, ticket_keys };
        log::info!("QUIT: handing {} sockets over", message.sockets.len());
        let mut stream = stream.into_std()?;
        let exchange = tokio::task::spawn_blocking(move || {
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
            stream.set_read_timeout(Some(REPORT_TIMEOUT))?;
            wire::send_message(&stream, &message)?;
            wire::expect_line(&mut stream, wire::ACCEPTING)?;
            wire::send_line(&mut stream, wire::YOURS)
        });
        exchange.await.map_err(io::Error::other)?
    }
}

/// The stream, if the peer runs as this user or as root and introduces itself as a successor in time. Other users get no
/// keys, whatever the directory's permissions are.
async fn verified(mut stream: UnixStream) -> Option<UnixStream> {
    let own = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
        log::warn!("a process of another user connected to take over; it gets no sockets");
        return None;
    }
    let mut line = vec![0; wire::WAIT.len() + 1];
    let read = timeout(MESSAGE_TIMEOUT, stream.read_exact(&mut line)).await;
    let is_successor =
        read.is_ok_and(|read| read.is_ok()) && line.starts_with(wire::WAIT.as_bytes());
    if !is_successor {
        log::warn!("a peer connected to take over, but is no successor");
        return None;
    }
    log::info!("a successor is waiting; QUIT hands over to it");
    Some(stream)
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
