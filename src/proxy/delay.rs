//! Requests that wait for their turn (`max_delay`).

use std::time::Duration;

use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

use crate::clock::Nanos;

/// Waits for so long, until it is the request's turn. A client that disconnects while waiting still uses
/// up its turn; its request is not forwarded. If the request has a body, a disconnect shows only when the
/// body is read.
pub(super) async fn take(session: &mut Session, wait: Nanos) -> Result<()> {
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
