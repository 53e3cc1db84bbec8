//! A connection of HTTP/1 between two requests.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pingora::server::ShutdownWatch;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Sleep, sleep};

use super::guarded::Guarded;
use super::idle_mark::IdleMark;
use crate::clock::Clock;

/// A connection between two requests. Its timer is kept, and set forward when it fires before its
/// time: a new one for each wait would be entered into the runtime's wheel and taken out again. So
/// is the wait for the end of the process, which is entered into a list under a lock.
pub(crate) struct Waiting {
    /// One timer for all waits: their length is the same for as long as the process lives (a reload
    /// that changes `idle_timeout` is refused).
    idle: Option<Pin<Box<Sleep>>>,
    shutdown: ShutdownWatch,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    mark: Option<Arc<IdleMark>>,
    /// Whether `idle` and `stopping` know whom to wake: the connection's task, which is one and the
    /// same as long as it lives, so that a look at their state is enough from then on.
    is_listed: bool,
}

impl Waiting {
    /// `mark`: of a connection that may be closed to make room for another one.
    pub(crate) fn new(shutdown: ShutdownWatch, mark: Option<Arc<IdleMark>>) -> Self {
        let mut watched = shutdown.clone();
        let stopping = Box::pin(async move {
            // An error means that whoever could say so has gone.
            let _ = watched.wait_for(|stopping| *stopping).await;
        });
        Self { idle: None, shutdown, stopping, mark, is_listed: false }
    }

    /// Waits for bytes. False when none come in time, or never will, or nobody is to be served, or the
    /// connection is to make room for another one.
    pub(crate) async fn hears(
        &mut self,
        stream: &mut Guarded,
        most: Duration,
        clock: &dyn Clock,
    ) -> bool {
        let began = clock.now().mono;
        if let Some(mark) = &self.mark {
            mark.idle(began);
        }
        std::future::poll_fn(|cx| {
            if let Poll::Ready(more) = stream.poll_ahead(cx) {
                return Poll::Ready(matches!(more, Ok(1..)));
            }
            let waited = || Duration::from(clock.now().mono.saturating_sub(began));
            let is_over = self.is_late(most, waited, cx) || self.is_stopped(cx) || self.is_shed(cx);
            // A task that has had its share of the thread is woken again, and nothing is listed.
            self.is_listed = has_budget_remaining();
            if is_over { Poll::Ready(false) } else { Poll::Pending }
        })
        .await
    }

    /// A request has come.
    pub(crate) fn ends(&self) {
        if let Some(mark) = &self.mark {
            mark.busy();
        }
    }

    /// Where the connection notes what it waits for, if it may be closed to make room for another one.
    pub(crate) fn mark(&self) -> Option<Arc<IdleMark>> {
        self.mark.clone()
    }

    fn is_late(
        &mut self,
        most: Duration,
        waited: impl Fn() -> Duration,
        cx: &mut Context<'_>,
    ) -> bool {
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(most)));
        if self.is_listed && !idle.is_elapsed() {
            return false;
        }
        while idle.as_mut().poll(cx).is_ready() {
            let left = most.saturating_sub(waited());
            if left.is_zero() {
                return true;
            }
            // It was set for a wait that bytes ended.
            idle.set(sleep(left));
        }
        false
    }

    /// Listed each time: who told the connection to close once, when its request had just come, has used up the
    /// entry.
    fn is_shed(&self, cx: &mut Context<'_>) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.poll_shed(cx).is_ready())
    }

    fn is_stopped(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_listed {
            return self.stopping.as_mut().poll(cx).is_ready();
        }
        match self.shutdown.has_changed() {
            Ok(changed) => changed && *self.shutdown.borrow_and_update(),
            Err(_) => true,
        }
    }
}
