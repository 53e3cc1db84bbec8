//! Requests that wait for their turn (`max_delay`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

use super::Tollgate;
use crate::clock::Nanos;
use crate::engine::Decision;

/// Most requests that wait at once: each holds its connection, and what is above is refused.
const MOST_WAITING: usize = 10_000;

/// One of those that wait.
struct Waiting<'w>(&'w AtomicUsize);

impl<'w> Waiting<'w> {
    fn enter(waiting: &'w AtomicUsize) -> Option<Self> {
        let entered = Self(waiting);
        (waiting.fetch_add(1, Ordering::Relaxed) < MOST_WAITING).then_some(entered)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for so long, until it is the request's turn. A client that disconnects while waiting still uses
/// up its slot; its request is not forwarded. If the request has a body, a disconnect shows only when the
/// body is read.
pub(super) async fn take(
    gate: &Tollgate,
    session: &mut Session,
    decision: &mut Decision,
    wait: Nanos,
) -> Result<()> {
    let Some(_waiting) = Waiting::enter(&gate.books.waiting) else {
        decision.refuse_to_wait();
        return Ok(());
    };
    let turn = tokio::time::sleep(Duration::from(wait));
    if !session.is_body_empty() {
        turn.await;
        return Ok(());
    }
    tokio::select! {
        biased;
        () = turn => Ok(()),
        left = session.downstream_session.read_body_or_idle(true) => match left {
            Err(error) => Err(error),
            Ok(_) => Error::e_explain(ErrorType::ConnectionClosed, "the client left the line"),
        },
    }
}
