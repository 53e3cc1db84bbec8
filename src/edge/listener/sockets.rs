//! The listening sockets of the process: bound here, or inherited from the previous process.
//!
//! It knows addresses and sockets only, neither TLS nor the listeners' other settings. What must always hold: a socket
//! that the configuration still names is never closed and bound again, so its queue of connections survives a handover.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the kernel queues until they are accepted. The kernel applies a lower limit of its own
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's reason.
    pub error: io::Error,
}

/// A socket, and the address that the configuration gives it.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub(crate) address: SocketAddr,
    pub(crate) socket: TcpListener,
}

/// Every listening socket; each address occurs once.
#[derive(Debug, Default)]
pub(crate) struct ListeningSockets(Vec<ListeningSocket>);

impl ListeningSockets {
    /// Sockets inherited from the previous process.
    pub(crate) const fn inherited(sockets: Vec<ListeningSocket>) -> Self {
        Self(sockets)
    }

    /// The addresses of all sockets.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &SocketAddr> {
        self.0.iter().map(|listening| &listening.address)
    }

    /// Duplicates the descriptor of each socket.
    pub(crate) fn try_clone(&self) -> io::Result<Vec<ListeningSocket>> {
        let clone = |listening: &ListeningSocket| {
            let socket = listening.socket.try_clone()?;
            Ok(ListeningSocket { address: listening.address, socket })
        };
        self.0.iter().map(clone).collect()
    }

    /// Closes the sockets that are not in `addresses`, and listens on the missing ones.
    pub(crate) fn complete(mut self, addresses: &[SocketAddr]) -> Result<Self, Vec<ListenError>> {
        self.0.retain(|listening| addresses.contains(&listening.address));
        let mut errors = Vec::new();
        for &address in addresses {
            if self.get(&address).is_none() {
                let listening = bind(address, addresses)
                    .and_then(|socket| socket.listen(BACKLOG).map(|()| socket.into()));
                match listening {
                    Ok(socket) => self.0.push(ListeningSocket { address, socket }),
                    Err(error) => errors.push(ListenError { address, error }),
                }
            }
        }
        if errors.is_empty() { Ok(self) } else { Err(errors) }
    }

    /// Binds every address as [`Self::complete`] does, and releases it again. As nothing listens meanwhile, no client
    /// connects. Returns the addresses that cannot be bound.
    pub(crate) fn rehearse(addresses: &[SocketAddr]) -> Vec<ListenError> {
        let bind = |&address| match bind(address, addresses) {
            Ok(_) => None,
            Err(error) => Some(ListenError { address, error }),
        };
        addresses.iter().filter_map(bind).collect()
    }

    /// The socket of an address.
    pub(crate) fn get(&self, address: &SocketAddr) -> Option<&TcpListener> {
        let listening = self.0.iter().find(|listening| listening.address == *address)?;
        Some(&listening.socket)
    }
}

fn bind(address: SocketAddr, all: &[SocketAddr]) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // `[::]` serves both families, unless IPv4 has its own listener on this port.
        let is_ipv4_twin = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port();
        socket.set_only_v6(all.iter().any(is_ipv4_twin))?;
    }
    // Connections of a process that has just ended would otherwise block the port (TIME_WAIT).
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
