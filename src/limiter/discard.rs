//! The body of a refused request, in a Pingora server: it is read and dropped within bounds.
//!
//! Closing a connection while bytes arrive makes the kernel reset it, and the client loses the answer that it has not read.

use std::time::Duration;

use http::header;
use pingora_proxy::Session;

/// Bounds of what is read of a body that is not forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiscardBounds {
    /// The most bytes that are read.
    pub(crate) bytes: usize,
    /// The longest time that is spent on it.
    pub(crate) time: Duration,
}

/// Whether the client waits for a 100 before it sends its body. It gets the refusal instead, and sends no body.
pub(crate) fn expects_continue(session: &Session) -> bool {
    session.get_header(header::EXPECT).is_some()
}

/// Reads and drops the rest of the body within the bounds. Returns whether the body ended.
pub(crate) async fn discard(session: &mut Session, bounds: DiscardBounds) -> bool {
    let read = tokio::time::timeout(bounds.time, read_some(session, bounds.bytes)).await;
    read.is_ok_and(|read| read == DiscardResult::Complete)
}

/// Keeps a connection open whose answer is sent and whose body continues. No more than the bound is read: a client whose
/// writes stall looks for an answer.
pub(crate) async fn linger(session: &mut Session, bounds: DiscardBounds) {
    let lingering = async {
        if read_some(session, bounds.bytes).await == DiscardResult::TooMuch {
            std::future::pending::<()>().await;
        }
    };
    // The time is over or the client has gone; either way the connection closes now.
    let _ = tokio::time::timeout(bounds.time, lingering).await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiscardResult {
    /// The body ended.
    Complete,
    /// The body is longer than the bound.
    TooMuch,
    /// The body cannot be read any more.
    Broken,
}

async fn read_some(session: &mut Session, max: usize) -> DiscardResult {
    let mut left = max;
    loop {
        match session.downstream_session.read_request_body().await {
            Ok(None) => return DiscardResult::Complete,
            Ok(Some(read)) => match left.checked_sub(read.len()) {
                Some(rest) => left = rest,
                None => return DiscardResult::TooMuch,
            },
            Err(_) => return DiscardResult::Broken,
        }
    }
}
