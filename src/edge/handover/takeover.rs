//! The successor's side of a handover.
//!
//! It waits for the sockets of the running process, adopts the session ticket keys, and later reports that connections
//! are accepted. It does not know how they are served. What must always hold: the report is sent only after all
//! listeners accept.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::timeouts::{MESSAGE_TIMEOUT, POLL_INTERVAL, SUCCESSOR_PATIENCE};
use super::wire;
use crate::clock::Nanos;
use crate::edge::listener::ListeningSockets;
use crate::edge::tls::TicketKeys;
use crate::signals::OperatorRequests;

/// What this process received from the running process.
#[derive(Default)]
pub(crate) struct TakenOver {
    /// Empty if nothing was taken over.
    pub(crate) sockets: ListeningSockets,
    /// Set if sockets were taken over: its report is still to be sent.
    pub(crate) successor: Option<Successor>,
}

/// This process after it received the sockets and before it has reported that it accepts.
pub(crate) struct Successor(UnixStream);

/// Waits until the running process hands over its sockets and session ticket keys, or this process is told to end.
/// Returns no sockets if no process is running or this one is told to end.
pub(crate) fn take_over(
    socket_path: &Path,
    requests: &OperatorRequests,
    ticket_keys: &TicketKeys,
    now: impl Fn() -> Nanos,
) -> io::Result<TakenOver> {
    let mut stream = match UnixStream::connect(socket_path) {
        Ok(stream) => stream,
        Err(error) if means_not_running(&error) => {
            log::info!("no process serves this file; starting without one");
            return Ok(TakenOver::default());
        }
        Err(error) => return Err(error),
    };
    stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    wire::send_line(&mut stream, wire::WAIT)?;
    let pid = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero();
    log::info!("waiting for process {pid} to hand over: send it QUIT (kill -QUIT {pid})");
    for _ in 0..SUCCESSOR_PATIENCE.as_millis() / POLL_INTERVAL.as_millis() {
        if requests.is_ending() {
            return Ok(TakenOver::default());
        }
        match wire::receive_message(&stream) {
            Ok(message) => {
                log::info!("{} sockets were handed over", message.sockets.len());
                if !ticket_keys.adopt(&message.ticket_keys, now()) {
                    log::warn!("no keys of session tickets were handed over: sessions begin anew");
                }
                let sockets = ListeningSockets::inherited(message.sockets);
                return Ok(TakenOver { sockets, successor: Some(Successor(stream)) });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "it was not sent QUIT"))
}

/// Whether connecting failed because no process listens on the path.
fn means_not_running(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

impl Successor {
    /// Reports that this process accepts connections, and waits until the other one stops accepting.
    pub(crate) async fn confirm_accepting(self) -> io::Result<()> {
        let Self(mut stream) = self;
        let exchange = tokio::task::spawn_blocking(move || {
            stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
            wire::send_line(&mut stream, wire::ACCEPTING)?;
            wire::expect_line(&mut stream, wire::YOURS)
        });
        exchange.await.map_err(io::Error::other)?
    }
}
