//! Why a request failed, as a closed list for the log.
//!
//! The operator's log says it in a sentence (`failure_log`). What must always hold: a reason is a word of our own, never a
//! text of a request or an answer.

use pingora::{Error, ErrorSource, ErrorType};

use crate::edge::ShedReason;

/// Why a request was not answered by its origin, or not to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// The shared store was away, and a limit requires it.
    StoreOutage,
    /// The keys that verify tokens have not been fetched, and a limit requires them.
    TokenKeys,
    /// No server of the origin is healthy.
    NoHealthyServer,
    /// No connection to the origin was left for this client.
    OriginConnections,
    /// No memory was left for the exchange.
    Memory,
    /// No server could be connected to.
    Unreachable,
    /// No server accepted a connection in time.
    ConnectTimeout,
    /// The server does not agree on TLS.
    Tls,
    /// The server sent nothing in time.
    ReadTimeout,
    /// The server took nothing in time.
    WriteTimeout,
    /// The server closed the connection before its answer ended.
    Closed,
    /// The server's answer is not HTTP.
    InvalidAnswer,
    /// The client left, or cannot be written to.
    ClientLeft,
    /// The client sent or took nothing in time.
    ClientTimeout,
    /// The process ended before the answer did.
    Shutdown,
    /// Something inside this proxy.
    Internal,
}

impl FailureReason {
    /// Every reason.
    pub const ALL: [Self; 16] = [
        Self::StoreOutage,
        Self::TokenKeys,
        Self::NoHealthyServer,
        Self::OriginConnections,
        Self::Memory,
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::Tls,
        Self::ReadTimeout,
        Self::WriteTimeout,
        Self::Closed,
        Self::InvalidAnswer,
        Self::ClientLeft,
        Self::ClientTimeout,
        Self::Shutdown,
        Self::Internal,
    ];

    /// The word in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::StoreOutage => "store_outage",
            Self::TokenKeys => "token_keys",
            Self::NoHealthyServer => "no_healthy_server",
            Self::OriginConnections => "origin_connections",
            Self::Memory => "memory",
            Self::Unreachable => "origin_unreachable",
            Self::ConnectTimeout => "origin_connect_timeout",
            Self::Tls => "origin_tls",
            Self::ReadTimeout => "origin_read_timeout",
            Self::WriteTimeout => "origin_write_timeout",
            Self::Closed => "origin_closed",
            Self::InvalidAnswer => "origin_invalid_answer",
            Self::ClientLeft => "client_left",
            Self::ClientTimeout => "client_timeout",
            Self::Shutdown => "shutdown",
            Self::Internal => "internal",
        }
    }

    /// The reason of an error. `shed`: what was short. `is_cut`: whether the process ends and has cut its clients.
    pub(super) fn of(error: &Error, shed: Option<ShedReason>, is_cut: bool) -> Self {
        match shed {
            Some(ShedReason::OriginConnections) => return Self::OriginConnections,
            Some(ShedReason::Memory | ShedReason::SlowReader | ShedReason::IdleConnections) => {
                return Self::Memory;
            }
            None => {}
        }
        match error.esource() {
            ErrorSource::Upstream => Self::of_origin(error.root_etype()),
            ErrorSource::Downstream if is_cut => Self::Shutdown,
            ErrorSource::Downstream => match error.etype() {
                ErrorType::ReadTimedout | ErrorType::WriteTimedout => Self::ClientTimeout,
                _ => Self::ClientLeft,
            },
            ErrorSource::Internal | ErrorSource::Unset => Self::Internal,
        }
    }

    const fn of_origin(error: &ErrorType) -> Self {
        use ErrorType::{
            BindError, ConnectError, ConnectNoRoute, ConnectProxyFailure, ConnectRefused,
            ConnectTimedout, H2Downgrade, HTTPStatus, HandshakeError, InvalidCert, InvalidH2,
            InvalidHTTPHeader, ReadTimedout, SocketError, TLSHandshakeFailure,
            TLSHandshakeTimedout, WriteTimedout,
        };
        match error {
            // We gave this status ourselves, so no server was asked.
            HTTPStatus(_) => Self::NoHealthyServer,
            ConnectTimedout => Self::ConnectTimeout,
            TLSHandshakeFailure | TLSHandshakeTimedout | InvalidCert | HandshakeError => Self::Tls,
            ReadTimedout => Self::ReadTimeout,
            WriteTimedout => Self::WriteTimeout,
            InvalidHTTPHeader | InvalidH2 | H2Downgrade => Self::InvalidAnswer,
            ConnectRefused | ConnectNoRoute | ConnectError | ConnectProxyFailure | BindError
            | SocketError => Self::Unreachable,
            // The framework's list is open; everything else ends an exchange that had begun.
            _ => Self::Closed,
        }
    }
}
