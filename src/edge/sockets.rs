//! The sockets that are listened on: bound here, or taken over from the process before.

use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the kernel holds for us until they are accepted; it has a lower bound itself
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 65_535;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's reason.
    pub error: std::io::Error,
}

/// Every socket, by the address that the configuration gives it.
#[derive(Debug, Default)]
pub(crate) struct ListeningSockets(Vec<(SocketAddr, TcpListener)>);

impl ListeningSockets {
    /// Those that were taken over.
    pub(crate) const fn taken_over(sockets: Vec<(SocketAddr, TcpListener)>) -> Self {
        Self(sockets)
    }

    /// What is listened on.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &SocketAddr> {
        self.0.iter().map(|(address, _)| address)
    }

    /// A second descriptor of each.
    pub(crate) fn cloned(&self) -> std::io::Result<Vec<(SocketAddr, TcpListener)>> {
        let sockets = self.0.iter();
        sockets.map(|(address, socket)| Ok((*address, socket.try_clone()?))).collect()
    }

    /// Keeps what is among `addresses`, and binds what is missing.
    pub(crate) fn complete(mut self, addresses: &[SocketAddr]) -> Result<Self, ListenError> {
        self.0.retain(|(address, _)| addresses.contains(address));
        for address in addresses {
            if self.get(address).is_none() {
                let bound = bind(*address, addresses);
                let socket = bound.map_err(|error| ListenError { address: *address, error })?;
                self.0.push((*address, socket));
            }
        }
        Ok(self)
    }

    /// The socket of an address.
    pub(crate) fn get(&self, address: &SocketAddr) -> Option<&TcpListener> {
        self.0.iter().find(|(other, _)| other == address).map(|(_, socket)| socket)
    }
}

fn bind(address: SocketAddr, all: &[SocketAddr]) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // `[::]` serves both families, unless the other one has its own listener on this port.
        let other = |one: &SocketAddr| one.is_ipv4() && one.port() == address.port();
        socket.set_only_v6(all.iter().any(other))?;
    }
    // A process that has just ended leaves connections behind that would block its successor.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
