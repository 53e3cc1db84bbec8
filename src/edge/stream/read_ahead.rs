//! The buffer of bytes that were received before the framework may read them.
//!
//! The scan of a head looks at it, and later reads take from it before they read the transport. It does not know where
//! requests end. What must always hold: bytes are passed on in the order in which they came, each once.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::{AsyncRead, ReadBuf};

use super::client_stream::ClientStream;

/// Bytes that are read at once while no reader has named a size.
pub(super) const READ_SIZE: usize = 8 * 1024;

impl ClientStream {
    /// Bytes that were received and not yet passed on.
    pub(in crate::edge) fn buffered(&self) -> &[u8] {
        &self.read_ahead
    }

    /// Drops the first `bytes` of them, or all if there are fewer.
    pub(in crate::edge) fn consume(&mut self, bytes: usize) {
        self.read_ahead.advance(bytes.min(self.read_ahead.len()));
    }

    /// Reads more of them. Returns `false` at the end of the stream.
    pub(in crate::edge) async fn fill(&mut self) -> io::Result<bool> {
        std::future::poll_fn(|cx| self.poll_fill(cx)).await.map(|bytes| bytes > 0)
    }

    /// Reads more of them. Returns how many; 0 at the end of the stream.
    pub(in crate::edge) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.context.cutoff.check()?;
        // On the stack, so that a connection that only waits holds no buffer.
        let mut space = [const { MaybeUninit::uninit() }; READ_SIZE];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.transport).poll_read(cx, &mut read))?;
        self.read_ahead.extend_from_slice(read.filled());
        self.context.memory.set_read_ahead(self.read_ahead.len());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Passes on buffered bytes, or else reads the transport. Returns how many bytes were passed on.
    pub(super) fn poll_pass(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.read_ahead.is_empty() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.transport).poll_read(cx, buf))?;
            return Poll::Ready(Ok(buf.filled().len() - before));
        }
        let bytes = self.read_ahead.len().min(buf.remaining());
        buf.put_slice(&self.read_ahead[..bytes]);
        self.read_ahead.advance(bytes);
        Poll::Ready(Ok(bytes))
    }

    /// Like [`Self::poll_pass`], but at most `max` bytes.
    pub(super) fn poll_pass_up_to(
        &mut self,
        max: usize,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        if max >= buf.remaining() {
            return self.poll_pass(cx, buf);
        }
        let mut limited = ReadBuf::new(buf.initialize_unfilled_to(max));
        let bytes = ready!(self.poll_pass(cx, &mut limited))?;
        buf.advance(bytes);
        Poll::Ready(Ok(bytes))
    }
}
