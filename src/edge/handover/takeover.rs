//! The successor's side.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::super::sockets::ListeningSockets;
use super::{LOOK, MESSAGE, SUCCESSOR_WAITS, wire};
use crate::clock::Nanos;
use crate::edge::session_tickets::TicketKeys;
use crate::signals::OperatorRequests;

/// A successor that has sockets and has not said yet that it accepts.
pub(crate) struct Successor(UnixStream);

/// Waits until the running process hands over its sockets and the keys of session tickets, or this
/// one is told to end. Without a running process there is nothing to take over.
pub(crate) fn take_over(
    place: &Path,
    requests: &OperatorRequests,
    ticket_keys: &TicketKeys,
    now: impl Fn() -> Nanos,
) -> io::Result<(ListeningSockets, Option<Successor>)> {
    let mut stream = match UnixStream::connect(place) {
        Ok(stream) => stream,
        Err(error) if is_of_nobody(&error) => {
            log::info!("no process serves this file; starting without one");
            return Ok((ListeningSockets::default(), None));
        }
        Err(error) => return Err(error),
    };
    stream.set_write_timeout(Some(MESSAGE))?;
    stream.set_read_timeout(Some(LOOK))?;
    wire::say(&mut stream, wire::WAIT)?;
    let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero();
    log::info!("waiting for process {pid} to hand over: send it QUIT (kill -QUIT {pid})");
    for _ in 0..SUCCESSOR_WAITS.as_millis() / LOOK.as_millis() {
        if requests.is_ending() {
            return Ok((ListeningSockets::default(), None));
        }
        match wire::receive(&stream) {
            Ok(handed) => {
                log::info!("{} sockets were handed over", handed.sockets.len());
                if !ticket_keys.adopt(&handed.ticket_keys, now()) {
                    log::warn!("no keys of session tickets were handed over: sessions begin anew");
                }
                return Ok((ListeningSockets::taken_over(handed.sockets), Some(Successor(stream))));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "it was not sent QUIT"))
}

/// Whether nobody listens at a place.
fn is_of_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

impl Successor {
    /// Says that connections are accepted here, and waits until the other process stops.
    pub(crate) async fn confirm_accepting(self) -> io::Result<()> {
        let Self(mut stream) = self;
        let conversation = tokio::task::spawn_blocking(move || {
            stream.set_read_timeout(Some(MESSAGE))?;
            wire::say(&mut stream, wire::ACCEPTING)?;
            wire::expect(&mut stream, wire::YOURS)
        });
        conversation.await.map_err(io::Error::other)?
    }
}
