//! Connects the ticket keys to rustls, for one listener.
//!
//! It adds the listener's binding to each ticket and knows nothing of keys or their rotation. What must always hold: a
//! ticket is opened only with the binding of its own listener ([`Certificates`](super::Certificates)).

use std::fmt;
use std::sync::Arc;

use rustls::server::ProducesTickets;

use super::certificates::CertificateStore;
use super::ticket_keys::{TICKET_LIFETIME_SECONDS, TicketKeys};

/// Seals and opens the tickets of one listener.
pub(super) struct ListenerTickets {
    pub(super) keys: Arc<TicketKeys>,
    pub(super) certificates: Arc<CertificateStore>,
    /// The listener's index.
    pub(super) listener: usize,
}

impl ProducesTickets for ListenerTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_LIFETIME_SECONDS
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.certificates.binding(self.listener)?, plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.certificates.binding(self.listener)?, cipher)
    }
}

impl fmt::Debug for ListenerTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTickets").field("listener", &self.listener).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Nanos;

    #[test]
    fn debug_output_shows_no_key() {
        let keys = Arc::new(TicketKeys::new(Nanos::ZERO).unwrap());
        let tickets =
            ListenerTickets { keys: Arc::clone(&keys), certificates: Arc::default(), listener: 3 };
        assert_eq!(
            format!("{keys:?} {tickets:?}"),
            "TicketKeys { .. } ListenerTickets { listener: 3, .. }"
        );
    }
}
