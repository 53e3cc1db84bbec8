//! The running process's side.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Sleep, sleep, timeout};

use super::super::sockets::ListeningSockets;
use super::{MESSAGE, QUIT_IS_GOOD_FOR, WORD_IS_DUE, wire};
use crate::clock::Clock;
use crate::edge::session_tickets::TicketKeys;
use crate::signals::OperatorRequests;

/// Waits for a successor and for the order to hand over, in whatever order they come.
pub(crate) struct HandoverOffer {
    listener: UnixListener,
    heritage: HandoverState,
    requests: Arc<OperatorRequests>,
}

/// What a successor is given.
pub(crate) struct HandoverState {
    pub(crate) sockets: Arc<ListeningSockets>,
    pub(crate) ticket_keys: Arc<TicketKeys>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl HandoverOffer {
    /// Listens at a place. A process before that listened there is not found any more.
    pub(crate) fn new(
        place: &Path,
        heritage: HandoverState,
        requests: Arc<OperatorRequests>,
    ) -> io::Result<Self> {
        let fresh = PathBuf::from(format!("{}.{}", place.display(), std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh)?;
        std::fs::rename(&fresh, place)?;
        Ok(Self { listener, heritage, requests })
    }

    /// Returns when a successor accepts connections in our place.
    pub(crate) async fn handed_over(self) {
        let mut successor: Option<UnixStream> = None;
        // Since a QUIT: how long it is still good for.
        let mut told: Option<Pin<Box<Sleep>>> = None;
        loop {
            tokio::select! {
                come = self.listener.accept() => if let Ok((stream, _)) = come {
                    successor = introduced(stream).await.or(successor);
                },
                () = gone(&mut successor) => {
                    log::info!("the successor has gone");
                    successor = None;
                }
                () = self.requests.hand_over.notified() => {
                    told = Some(Box::pin(sleep(QUIT_IS_GOOD_FOR)));
                    if successor.is_none() {
                        log::info!("QUIT: serving on until a successor comes (run --upgrade)");
                    }
                }
                () = over(&mut told) => {
                    log::warn!("QUIT: no successor came; serving on");
                    told = None;
                }
            }
            if told.is_none() {
                continue;
            }
            let Some(stream) = successor.take() else {
                continue;
            };
            told = None;
            match self.hand_over(stream).await {
                Ok(()) => return,
                Err(error) => log::error!("the successor does not accept: {error}; serving on"),
            }
        }
    }

    async fn hand_over(&self, stream: UnixStream) -> io::Result<()> {
        let HandoverState { sockets, ticket_keys, clock } = &self.heritage;
        let sockets = sockets.cloned()?;
        let ticket_keys = ticket_keys.export(clock.now().mono);
        let handed = wire::Handed { sockets, ticket_keys };
        log::info!("QUIT: handing {} sockets over", handed.sockets.len());
        let mut stream = stream.into_std()?;
        let conversation = tokio::task::spawn_blocking(move || {
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(MESSAGE))?;
            stream.set_read_timeout(Some(WORD_IS_DUE))?;
            wire::hand(&stream, &handed)?;
            wire::expect(&mut stream, wire::ACCEPTING)?;
            wire::say(&mut stream, wire::YOURS)
        });
        conversation.await.map_err(io::Error::other)?
    }
}

/// A successor that says what it is, of this user or of root: others are told no keys, whatever the
/// directory lets them do. It may take its time for nothing else.
async fn introduced(mut stream: UnixStream) -> Option<UnixStream> {
    let own = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
        log::warn!("another user came to take over");
        return None;
    }
    let mut said = vec![0; wire::WAIT.len() + 1];
    let read = timeout(MESSAGE, stream.read_exact(&mut said)).await;
    let known = read.is_ok_and(|read| read.is_ok()) && said.starts_with(wire::WAIT.as_bytes());
    if !known {
        log::warn!("somebody who is no successor came to take over");
        return None;
    }
    log::info!("a successor is waiting; QUIT hands over to it");
    Some(stream)
}

/// Returns when a QUIT is not good any more.
async fn over(told: &mut Option<Pin<Box<Sleep>>>) {
    match told {
        Some(left) => left.await,
        None => std::future::pending().await,
    }
}

/// Returns when a successor has gone, or says something out of its turn.
async fn gone(successor: &mut Option<UnixStream>) {
    match successor {
        Some(stream) => {
            // It has nothing to say yet: whatever can be read is an end.
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
