//! The successor's first words: it finds the running process and learns what it must know before it builds anything.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::timeouts::MESSAGE_TIMEOUT;
use super::wire::{Hello, Packet, VERSION, read_packet, send, unexpected, wait_line};
use crate::clock::SystemClock;

/// A running process that waits for QUIT.
pub(crate) struct Greeted {
    pub(super) stream: UnixStream,
    hello: Hello,
}

/// Connects to the process that serves the same file. `None`: there is none.
pub(crate) fn greet(socket_path: &Path) -> io::Result<Option<Greeted>> {
    let mut stream = match UnixStream::connect(socket_path) {
        Ok(stream) => stream,
        Err(error) if means_not_running(&error) => {
            let path = socket_path.display();
            log::info!("no process serves this file (none waits at {path}); starting without one");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
    stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    send(&mut stream, wait_line().as_bytes())?;
    let hello = match read_packet(&mut stream) {
        Ok(Packet::Hello(hello)) => *hello,
        Ok(_) => return Err(unexpected()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let reason = format!(
                "it closed the conversation: it is of another version (this one speaks {VERSION}) or of another user; end it and start anew"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        Err(error) => return Err(error),
    };
    if hello.version != VERSION {
        let reason = format!(
            "it speaks version {}, this one {VERSION}; end it and start anew",
            hello.version
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    Ok(Some(Greeted { stream, hello }))
}

impl Greeted {
    /// A clock on the time lines of the running process.
    pub(crate) fn clock(&self) -> SystemClock {
        SystemClock::continuing(&self.hello.mark)
    }

    /// The secret of the keys' hashes there.
    pub(crate) const fn secret(&self) -> &[u8; 16] {
        &self.hello.secret
    }

    /// By which the orderly end of the running process is known in its directory.
    pub(crate) const fn run_id(&self) -> u64 {
        self.hello.run_id
    }

    /// Whether the running process has a state directory.
    pub(crate) const fn has_state(&self) -> bool {
        self.hello.has_state
    }
}

/// Whether connecting failed because no process listens on the path.
fn means_not_running(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
