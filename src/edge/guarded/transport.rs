//! What carries a connection's bytes: the socket itself, or TLS over it.
//!
//! The framework's own socket has buffers of its own, reads the clock when it waits and asks the
//! kernel how the socket is before it is dropped. TLS is built upon it; a bare socket needs none
//! of that, since [`super::Guarded`] gathers what is written and knows what it waits for.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora::protocols::{Stream, UniqueIDType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A socket, or TLS over one.
#[derive(Debug)]
pub(crate) enum Transport {
    /// The socket.
    Plain(TcpStream),
    /// TLS, after its handshake.
    Tls(Stream),
}

impl Transport {
    /// What the framework tells connections apart by: the descriptor.
    pub(crate) fn id(&self) -> UniqueIDType {
        match self {
            Self::Plain(tcp) => tcp.as_raw_fd(),
            Self::Tls(tls) => tls.id(),
        }
    }

    /// TLS, if that is what it is.
    pub(crate) const fn tls(&self) -> Option<&Stream> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => Some(tls),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
