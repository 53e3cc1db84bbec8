//! Requests that `max_delay` holds back until they may leave.
//!
//! The engine has charged them and says how long they wait. This file only waits, and notices a client that leaves.

use std::time::Duration;

use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

use crate::clock::Nanos;

/// Waits for `delay`. A client that disconnects meanwhile still uses up its slot, and its request is not forwarded.
/// While a request has an unread body, a disconnect shows only when the body is read.
pub(super) async fn wait(session: &mut Session, delay: Nanos) -> Result<()> {
    let elapsed = tokio::time::sleep(Duration::from(delay));
    if !session.is_body_empty() {
        elapsed.await;
        return Ok(());
    }
    tokio::select! {
        biased;
        () = elapsed => Ok(()),
        closed = session.downstream_session.read_body_or_idle(true) => match closed {
            Err(error) => Err(error),
            Ok(_) => Error::e_explain(ErrorType::ConnectionClosed, "the client left while it waited"),
        },
    }
}
