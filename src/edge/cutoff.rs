//! Cuts all connections of clients at once, when the process ends before their answers do.
//!
//! A connection that is cut ends like one whose client has left, so its requests are settled and logged on their usual
//! way. It does not know why the process ends. What must always hold: once cut, every read and write fails, and the
//! task of every connection is woken.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::task::coop::has_budget_remaining;

/// Shared by the connections of all listeners of clients.
#[derive(Debug, Default)]
pub(crate) struct Cutoff {
    is_cut: AtomicBool,
    connections: Notify,
}

impl Cutoff {
    /// Cuts all connections, now and from now on.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.connections.notify_waiters();
    }

    /// Whether the connections are cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    /// Fails if the connections are cut.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.is_cut() {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// Serves a connection in a task that is woken when it is cut. The task registers once: doing so for each poll would
    /// lock a shared list.
    pub(super) async fn wake_when_cut<T>(&self, connection: impl Future<Output = T>) -> T {
        let mut cut = pin!(self.connections.notified());
        let mut connection = pin!(connection);
        let mut is_registered = false;
        poll_fn(|cx| {
            if !is_registered {
                // It only has to register; being ready wakes the connection too.
                let _ = cut.as_mut().poll(cx);
                // Without budget it has registered nothing and wakes the task again.
                is_registered = has_budget_remaining();
            }
            connection.as_mut().poll(cx)
        })
        .await
    }
}
