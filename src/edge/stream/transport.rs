//! What carries a connection's bytes: the socket itself, or TLS over it.
//!
//! TLS uses the framework's socket type, which has buffers of its own, reads the clock when it waits, and queries the
//! kernel before it is dropped. A plain socket needs none of that, because [`ClientStream`](super::ClientStream)
//! gathers writes and has its own deadlines. It does not know HTTP.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use pingora::protocols::{Stream, UniqueIDType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A socket, or TLS over one.
#[derive(Debug)]
pub(in crate::edge) enum Transport {
    /// The socket.
    Plain(TcpStream),
    /// TLS, after its handshake.
    Tls(Stream),
}

impl Transport {
    /// How the framework identifies a connection: by its descriptor.
    pub(super) fn id(&self) -> UniqueIDType {
        match self {
            Self::Plain(tcp) => tcp.as_raw_fd(),
            Self::Tls(tls) => tls.id(),
        }
    }

    /// The TLS stream, if it is one.
    pub(super) const fn tls(&self) -> Option<&Stream> {
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
