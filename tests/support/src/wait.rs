//! Every way in which a test waits. No other file of the tests calls `sleep`.
//!
//! A test waits for a condition ([`eventually`]) or lets virtual time pass ([`virtual_time`], which takes no
//! real time). Real pauses are left where the pause itself is the subject: a slow peer, the pace of a load,
//! a span in which nothing may happen. Each of these has its own name, so that a search finds them.

use std::time::{Duration, Instant};

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(20);

/// Beyond this time a condition has failed even if each look takes long.
const MAX_WAIT: Duration = Duration::from_secs(90);

#[expect(clippy::disallowed_methods, reason = "a test waits for other processes in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// The patience of one wait, measured by the clock and by the pauses between looks: a machine that
/// stopped for some seconds made no look meanwhile.
struct Patience {
    allowed: Duration,
    began: Instant,
    paused: Duration,
}

impl Patience {
    fn new(allowed: Duration) -> Self {
        Self { allowed, began: now(), paused: Duration::ZERO }
    }

    fn is_over(&self) -> bool {
        let waited = self.began.elapsed();
        waited >= self.allowed
            && (self.paused >= self.allowed || waited >= self.allowed.max(MAX_WAIT))
    }
}

/// Looks until the condition holds; `false` when it does not within `patience`.
pub async fn eventually<F: Future<Output = bool>>(
    patience: Duration,
    mut holds: impl FnMut() -> F,
) -> bool {
    let found = eventually_some(patience, || {
        let look = holds();
        async move { look.await.then_some(()) }
    });
    found.await.is_some()
}

/// Looks until there is a value; `None` when there is none within `patience`.
pub async fn eventually_some<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    mut look: impl FnMut() -> F,
) -> Option<T> {
    let mut patience = Patience::new(patience);
    loop {
        let found = look().await;
        if found.is_some() || patience.is_over() {
            return found;
        }
        tokio::time::sleep(LOOK).await;
        patience.paused += LOOK;
    }
}

/// Looks until the value has been the same for so many looks in a row; `false` when it still moves after `patience`.
pub async fn stands_still<T: PartialEq>(
    patience: Duration,
    looks: usize,
    mut look: impl FnMut() -> T,
) -> bool {
    let (mut last, mut same) = (look(), 0);
    eventually(patience, || {
        let seen = look();
        same = if seen == last { same + 1 } else { 0 };
        last = seen;
        std::future::ready(same >= looks)
    })
    .await
}

/// [`eventually_some`] for a thread without a runtime.
pub fn eventually_in_thread<T>(
    patience: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut patience = Patience::new(patience);
    loop {
        let found = look();
        if found.is_some() || patience.is_over() {
            return found;
        }
        std::thread::sleep(LOOK);
        patience.paused += LOOK;
    }
}

/// Lets time pass on the paused clock of a test, with every timer on the way. Takes no real time, and
/// panics where the clock is not paused.
pub async fn virtual_time(span: Duration) {
    tokio::time::advance(Duration::ZERO).await;
    tokio::time::sleep(span).await;
}

/// A client that takes its time: the pause is what the test is about.
pub async fn pause_of_a_slow_client(span: Duration) {
    tokio::time::sleep(span).await;
}

/// An origin that takes its time.
pub async fn pause_of_a_slow_origin(span: Duration) {
    tokio::time::sleep(span).await;
}

/// A link with this delay, on the test's clock.
pub async fn pause_of_a_slow_link(span: Duration) {
    tokio::time::sleep(span).await;
}

/// The pace of requests, connections or signals.
pub async fn pause_between_arrivals(span: Duration) {
    tokio::time::sleep(span).await;
}

/// A span of real time that is observed: load goes on, or nothing may happen.
pub async fn observe_for(span: Duration) {
    tokio::time::sleep(span).await;
}

/// A pause of a peer, a load or a fault that has a thread to itself.
pub fn pause_in_thread(span: Duration) {
    std::thread::sleep(span);
}
