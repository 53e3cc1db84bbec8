//! The registry of connections that have waited for their clients to read.
//!
//! A connection registers when it first has to wait. It reports what waits and what it has written, and learns
//! whether it is to be cut. The registry decides nothing. What must always hold: a registration ends with its
//! connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// All registered connections.
#[derive(Debug, Default)]
pub(crate) struct SlowReaders {
    by_number: Mutex<HashMap<u64, Arc<ReaderState>>>,
    next_number: AtomicU64,
}

/// What a connection and the memory watch share.
#[derive(Debug)]
pub(super) struct ReaderState {
    pub(super) client: IpAddr,
    /// Bytes of responses that wait for the client.
    waiting: AtomicUsize,
    /// Bytes written since the connection began.
    written: AtomicU64,
    is_cut: AtomicBool,
    waker: AtomicWaker,
}

/// A connection's registration; removed when dropped.
#[derive(Debug)]
pub(super) struct SlowReader {
    readers: Arc<SlowReaders>,
    number: u64,
    state: Arc<ReaderState>,
}

/// A registration with its number.
#[derive(Debug)]
pub(super) struct RegisteredReader {
    pub(super) number: u64,
    pub(super) state: Arc<ReaderState>,
}

impl SlowReaders {
    /// Registers a connection of a client.
    pub(super) fn register(self: &Arc<Self>, client: IpAddr) -> SlowReader {
        let state = Arc::new(ReaderState {
            client,
            waiting: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.by_number.lock().insert(number, Arc::clone(&state));
        SlowReader { readers: Arc::clone(self), number, state }
    }

    /// All registrations, in no order.
    pub(super) fn registered(&self) -> Vec<RegisteredReader> {
        let readers = self.by_number.lock();
        let readers = readers.iter();
        readers
            .map(|(number, state)| RegisteredReader { number: *number, state: Arc::clone(state) })
            .collect()
    }
}

impl ReaderState {
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Tells the connection to end the responses that wait.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl SlowReader {
    /// Reports the bytes of responses that wait, and the bytes written since the connection began.
    pub(super) fn update(&self, waiting: usize, written: u64) {
        self.state.waiting.store(waiting, Ordering::Relaxed);
        self.state.written.store(written, Ordering::Relaxed);
    }

    /// Whether the responses that wait are to be ended.
    pub(super) fn is_cut(&self) -> bool {
        self.state.is_cut()
    }

    /// Reports that they have been ended and are counted no more.
    pub(super) fn clear_cut(&self) {
        self.state.is_cut.store(false, Ordering::Release);
    }

    /// Sets the task to wake when they are to be ended.
    pub(super) fn register_waker(&self, waker: &Waker) {
        self.state.waker.register(waker);
    }
}

impl Drop for SlowReader {
    fn drop(&mut self) {
        self.readers.by_number.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_ends_with_its_connection() {
        let readers = Arc::<SlowReaders>::default();
        let reader = readers.register(IpAddr::from([192, 0, 2, 1]));
        assert!(!reader.is_cut());
        readers.registered().iter().for_each(|registered| registered.state.cut());
        assert!(reader.is_cut());
        reader.clear_cut();
        assert!(!reader.is_cut());
        drop(reader);
        assert!(readers.registered().is_empty());
    }
}
