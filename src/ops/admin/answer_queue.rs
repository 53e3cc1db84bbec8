//! Answers that take long to write wait in a queue: metrics and status.
//!
//! One thread serves all operators, and a client may ask for metrics on each connection that it holds. After such an
//! answer the next one waits for as long as the answer took, so at least half of the thread's time is left for probes and
//! for new connections. They are written in the order in which they were asked for. Time is read through an argument.

use tokio::sync::Mutex;

use crate::clock::Nanos;

/// When the next long answer may be written.
#[derive(Default)]
pub struct AnswerQueue {
    next: Mutex<Nanos>,
}

impl AnswerQueue {
    /// Writes an answer when those before it are written. `now`: the clock.
    pub(super) async fn write<T>(&self, now: impl Fn() -> Nanos, answer: impl FnOnce() -> T) -> T {
        let mut next = self.next.lock().await;
        let wait = next.saturating_sub(now());
        if wait > Nanos::ZERO {
            tokio::time::sleep(wait.into()).await;
        }
        let began = now();
        let answer = answer();
        let ended = now();
        *next = ended.saturating_add(ended.saturating_sub(began));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_long_answer_the_next_waits_as_long() {
        let queue = AnswerQueue::default();
        let clock = Cell::new(Nanos::SECOND);
        let now = || clock.get();
        let long = || clock.set(now().saturating_add(Nanos::from_millis(100)));
        let first = timeout(Duration::from_millis(1), queue.write(now, long)).await;
        assert!(first.is_ok(), "nothing was written before");
        let early = timeout(Duration::from_millis(90), queue.write(now, || ())).await;
        assert!(early.is_err(), "half of the time is for others");
        let waited = timeout(Duration::from_millis(110), queue.write(now, || ())).await;
        assert!(waited.is_ok());
        clock.set(now().saturating_add(Nanos::SECOND));
        let later = timeout(Duration::from_millis(1), queue.write(now, long)).await;
        assert!(later.is_ok(), "a scraper waits for nobody");
    }
}
