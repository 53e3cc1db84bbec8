//! Holds a request back that `max_delay` admits later.
//!
//! The engine has charged the request and says how long it waits. This file only waits, and notices a client that
//! disconnects.

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
