//! Why the server does not start, where in the configuration the cause stands, and what to do about it.

use std::io::ErrorKind;

use crate::config::{ConfigErrors, Listener, SourceMap};
use crate::edge::{CertificateFileError, ListenError, NoRandomness};
use crate::state::StateError;

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// A certificate cannot be used.
    #[error("{0}")]
    Certificate(CertificateFileError),
    /// The access log cannot be opened.
    #[error("the access log cannot be opened: {0}")]
    AccessLog(std::io::Error),
    /// An address cannot be listened on.
    #[error("{0}")]
    Listen(ListenError),
    /// No randomness for the secret that hashes keys.
    #[error("no randomness for the key secret: {0}")]
    Secret(getrandom::Error),
    /// No randomness for the identifiers of requests.
    #[error("no randomness for the identifiers of requests: {0}")]
    RequestIds(getrandom::Error),
    /// No randomness for the keys of session tickets.
    #[error("{0}")]
    TicketKeys(NoRandomness),
    /// The TLS of a listener cannot be set up.
    #[error("cannot set up TLS: {error}")]
    Tls {
        /// The listener's index.
        listener: usize,
        /// The reason.
        error: rustls::Error,
    },
    /// The runtime for background work cannot be started.
    #[error("cannot start a runtime: {0}")]
    Runtime(std::io::Error),
    /// The state directory cannot be used.
    #[error("{0}")]
    State(Box<StateError>),
    /// A thread for restoring the state cannot be started.
    #[error("no thread to restore the state: {0}")]
    Restore(std::io::Error),
    /// Two processes cannot use one state directory.
    /// The running process did not hand over and keeps serving.
    #[error("cannot take over: {0}; unless the running process has ended, it serves on")]
    TakeOver(std::io::Error),
}

/// The errors at their locations in the file.
pub(super) fn located(
    errors: &[StartError],
    listeners: &[Listener],
    source: &SourceMap,
) -> ConfigErrors {
    let located = errors.iter().map(|error| {
        source.error(&error.path(listeners), error.to_string(), error.cure().map(str::to_owned))
    });
    source.errors(located.collect())
}

impl StartError {
    /// Whether another program listens on the address. Where tollgate is running, that is itself.
    pub(super) fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Listen(listen) if listen.error.kind() == ErrorKind::AddrInUse)
    }

    /// The key with the cause; empty if no key causes it.
    fn path(&self, listeners: &[Listener]) -> String {
        match self {
            Self::Certificate(error) => format!("listeners[{}].tls", error.listener),
            Self::Tls { listener, .. } => format!("listeners[{listener}].tls"),
            Self::AccessLog(_) => "access_log.to".to_owned(),
            Self::Listen(listen) => {
                match listeners.iter().position(|listener| listener.address == listen.address) {
                    Some(index) => format!("listeners[{index}].address"),
                    None => "admin.address".to_owned(),
                }
            }
            Self::State(_) => "store.embedded.state".to_owned(),
            Self::Secret(_)
            | Self::RequestIds(_)
            | Self::TicketKeys(_)
            | Self::Runtime(_)
            | Self::Restore(_)
            | Self::TakeOver(_) => String::new(),
        }
    }

    fn cure(&self) -> Option<&'static str> {
        match self {
            Self::AccessLog(error) => Some(match error.kind() {
                ErrorKind::NotFound => "create the directory, or name a file in one that exists",
                ErrorKind::IsADirectory => "name a file in it",
                ErrorKind::PermissionDenied => {
                    "let the user that runs tollgate write there (check as that user)"
                }
                _ if error.raw_os_error() == Some(NO_READER) => {
                    "start the program that reads this pipe first"
                }
                _ => "write another file, or stdout",
            }),
            Self::Listen(listen) => Some(match listen.error.kind() {
                ErrorKind::AddrInUse => {
                    "end the program that listens there, use another port, or take over with --upgrade"
                }
                ErrorKind::AddrNotAvailable => {
                    "write an address of this machine, or 0.0.0.0 or [::] for all of them"
                }
                ErrorKind::PermissionDenied => {
                    "use a port from 1024 on, or let this user bind it (CAP_NET_BIND_SERVICE)"
                }
                _ => "write an address that this machine can listen on",
            }),
            Self::Certificate(_) | Self::Tls { .. } => Some("write a chain with its own key"),
            // Its text has the cure.
            Self::State(_)
            | Self::Secret(_)
            | Self::RequestIds(_)
            | Self::TicketKeys(_)
            | Self::Runtime(_)
            | Self::Restore(_)
            | Self::TakeOver(_) => None,
        }
    }
}

/// The system's number for opening a pipe that no program reads.
const NO_READER: i32 = rustix::io::Errno::NXIO.raw_os_error();
