//! The wait of a connection that is to close until its client has received the end of the last response.
//!
//! Closing earlier would lose what the client has not acknowledged. It knows TCP acknowledgements only, no frames. What
//! must always hold: the wait ends after [`SHED_PATIENCE`], whatever the client does.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pingora::protocols::l4::ext::TCP_INFO;
use tokio::time::Sleep;

use crate::clock::Nanos;

/// How long the connection waits for a client that goes on acknowledging.
const SHED_PATIENCE: Nanos = Nanos::from_secs(5);

/// How long it waits for a client that acknowledges nothing.
const STALL_PATIENCE: Nanos = Nanos::SECOND;

/// How often acknowledgements are read. Clients acknowledge within 40 ms, plus the round trip.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A connection that is to close and whose client has not acknowledged everything.
pub(super) struct ShedWait {
    since: Nanos,
    /// Bytes that the client's kernel has acknowledged, and when that number last grew.
    acknowledged: u64,
    progressed: Nanos,
    next_poll: Pin<Box<Sleep>>,
}

impl ShedWait {
    pub(super) fn new(acknowledged: u64, now: Nanos) -> Self {
        Self { since: now, acknowledged, progressed: now, next_poll: Self::timer() }
    }

    /// Records how much the client has acknowledged; returns whether its time is over.
    pub(super) fn record(&mut self, acknowledged: u64, now: Nanos) -> bool {
        if std::mem::replace(&mut self.acknowledged, acknowledged) != acknowledged {
            self.progressed = now;
        }
        let lasts = |since: Nanos, patience| now.saturating_sub(since) >= patience;
        lasts(self.progressed, STALL_PATIENCE) || lasts(self.since, SHED_PATIENCE)
    }

    /// Ready when acknowledgements are to be read again.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_ready = self.next_poll.as_mut().poll(cx).is_ready();
        if is_ready {
            self.next_poll = Self::timer();
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn timer() -> Pin<Box<Sleep>> {
        Box::pin(tokio::time::sleep(POLL_INTERVAL))
    }
}

/// Whether the client's kernel has acknowledged everything.
pub(super) const fn is_all_acknowledged(tcp: &TCP_INFO) -> bool {
    tcp.tcpi_unacked == 0 && tcp.tcpi_notsent_bytes == 0
}
