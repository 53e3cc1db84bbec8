//! The wait of an HTTP/1 connection for its next request.
//!
//! The timer and the wait for a shutdown are kept for the whole connection: a new timer for each request would be
//! entered into the runtime's wheel and taken out again, and a new wait for a shutdown would lock a shared list. The
//! timer is set again only when it fires too early. It does not know requests. What must always hold: a connection
//! that receives nothing ends at its idle timeout, at a shutdown, or when it is to make room.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pingora::server::ShutdownWatch;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Sleep, sleep};

use crate::clock::Clock;
use crate::edge::admission::IdleMark;
use crate::edge::stream::ClientStream;

/// Waits between two requests of a connection.
pub(super) struct IdleWait {
    /// One timer for all waits: the idle timeout never changes while the process runs (a reload that changes
    /// `idle_timeout` is refused).
    timer: Option<Pin<Box<Sleep>>>,
    shutdown: ShutdownWatch,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    mark: Option<Arc<IdleMark>>,
    /// Whether `timer` and `stopping` have registered the connection's task. It is the same task for the whole
    /// connection, so from then on reading their state is enough.
    is_registered: bool,
}

impl IdleWait {
    /// `mark`: where the connection reports that it is idle, if it may be closed to make room.
    pub(super) fn new(shutdown: ShutdownWatch, mark: Option<Arc<IdleMark>>) -> Self {
        let mut watched = shutdown.clone();
        let stopping = Box::pin(async move {
            // An error means that the sender is gone, which is a shutdown as well.
            let _ = watched.wait_for(|is_stopping| *is_stopping).await;
        });
        Self { timer: None, shutdown, stopping, mark, is_registered: false }
    }

    /// Waits for bytes. Returns `false` if the client leaves, none arrive in time, the process stops, or the
    /// connection is to make room for another one.
    pub(super) async fn wait_for_bytes(
        &mut self,
        stream: &mut ClientStream,
        idle_timeout: Duration,
        clock: &dyn Clock,
    ) -> bool {
        let began = clock.now().mono;
        if let Some(mark) = &self.mark {
            mark.set_idle(began);
        }
        std::future::poll_fn(|cx| {
            if let Poll::Ready(read) = stream.poll_fill(cx) {
                return Poll::Ready(matches!(read, Ok(1..)));
            }
            let waited = || Duration::from(clock.now().mono.saturating_sub(began));
            let is_over = self.poll_timeout(idle_timeout, waited, cx).is_ready()
                || self.poll_stopping(cx).is_ready()
                || self.poll_shed(cx).is_ready();
            // Without budget the runtime's types are not polled: they register nothing and wake the task again.
            self.is_registered = has_budget_remaining();
            if is_over { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    /// A request has arrived.
    pub(super) fn end(&self) {
        if let Some(mark) = &self.mark {
            mark.set_busy();
        }
    }

    /// Where the connection reports what it waits for, if it may be closed to make room.
    pub(super) fn mark(&self) -> Option<Arc<IdleMark>> {
        self.mark.clone()
    }

    fn poll_timeout(
        &mut self,
        idle_timeout: Duration,
        waited: impl Fn() -> Duration,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(idle_timeout)));
        if self.is_registered && !timer.is_elapsed() {
            return Poll::Pending;
        }
        while timer.as_mut().poll(cx).is_ready() {
            let left = idle_timeout.saturating_sub(waited());
            if left.is_zero() {
                return Poll::Ready(());
            }
            // It was set for an earlier wait, which bytes ended.
            timer.set(sleep(left));
        }
        Poll::Pending
    }

    /// Registers the task at each call: a connection that was told to close and then received a request has used up its
    /// registration.
    fn poll_shed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.mark.as_ref().map_or(Poll::Pending, |mark| mark.poll_shed(cx))
    }

    fn poll_stopping(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_registered {
            return self.stopping.as_mut().poll(cx);
        }
        let is_stopping = match self.shutdown.has_changed() {
            Ok(has_changed) => has_changed && *self.shutdown.borrow_and_update(),
            Err(_) => true,
        };
        if is_stopping { Poll::Ready(()) } else { Poll::Pending }
    }
}
