//! Requests that `max_delay` holds back, in a Pingora server: in a proxy with the plugin, and in tollgate's own proxy.
//!
//! The engine has charged them and says how long they wait. This file only waits, and notices a client that leaves. It
//! reads no byte of a body.

use std::time::Duration;

use pingora::{Error, ErrorType, Result};
use pingora_proxy::Session;

/// Waits for `delay`. If the client disconnects meanwhile, that is the error: the request still uses up its slot, and is
/// not forwarded. Over HTTP/1 a client is noticed only where no body is unread, because the end of the connection stands
/// behind the body.
pub(crate) async fn wait(session: &mut Session, delay: Duration) -> Result<()> {
    let elapsed = tokio::time::sleep(delay);
    tokio::select! {
        biased;
        () = elapsed => Ok(()),
        error = departure(session) => Err(error.into_down()),
    }
}

/// Returns when the client has left, or has broken the protocol.
async fn departure(session: &mut Session) -> Box<Error> {
    const LEFT: &str = "the client left while it waited";
    if let Some(closed) = session.watch_h2_stream_close() {
        return match closed.await {
            // The code says whether the client left, or was cut for a reason of ours.
            Ok(code) => Error::because(ErrorType::ConnectionClosed, LEFT, h2::Error::from(code)),
            Err(error) => Error::because(ErrorType::ConnectionClosed, LEFT, error),
        };
    }
    if !session.is_body_done() {
        return std::future::pending().await;
    }
    match session.downstream_session.read_body_or_idle(true).await {
        Ok(_) => Error::explain(ErrorType::ConnectionClosed, LEFT),
        Err(error) => error,
    }
}
