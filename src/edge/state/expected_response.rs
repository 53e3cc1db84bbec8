//! Counts how much of the responses in progress may wait for the client of a connection.
//!
//! The sum is an upper bound for the memory that the connection's responses take on their way from the origin. It
//! does not know how much has arrived. What must always hold: a response is counted until its [`ExpectedResponse`] is
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::connection_state::ConnectionState;
use crate::edge::memory::MAX_RESPONSE_BYTES;

/// The sum over a connection's responses in progress.
#[derive(Debug, Default)]
pub(super) struct ExpectedBytes(AtomicUsize);

impl ExpectedBytes {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A response in progress, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ExpectedResponse {
    connection: Arc<ConnectionState>,
    bytes: usize,
}

impl ExpectedResponse {
    /// Counts a response that has begun, with its length if the origin declares one.
    pub(crate) fn begin(connection: &Arc<ConnectionState>, length: Option<u64>) -> Self {
        let length = length.and_then(|length| usize::try_from(length).ok());
        let bytes = length.unwrap_or(usize::MAX).min(MAX_RESPONSE_BYTES);
        connection.expected.0.fetch_add(bytes, Ordering::Relaxed);
        Self { connection: Arc::clone(connection), bytes }
    }
}

impl Drop for ExpectedResponse {
    fn drop(&mut self) {
        self.connection.expected.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
