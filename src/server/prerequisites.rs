//! What a start needs of this machine before anything is served: certificates, TLS, a target for the access log.
//!
//! `run` keeps what is obtained here. `check` obtains the same and gives it back ([`rehearse`]), so that it refuses what
//! `run` refuses. Nothing here waits for another machine. What must always hold: all that is wrong is reported at once.

use std::net::SocketAddr;
use std::sync::Arc;

use super::start_error::StartError;
use crate::clock::{Clock, Now};
use crate::config::Config;
use crate::edge::{CertificateStore, ListeningSockets, TicketKeys, TlsAcceptor};
use crate::ops::AccessLogSink;

/// What a start has obtained.
pub(super) struct Prerequisites {
    pub(super) certificates: Arc<CertificateStore>,
    pub(super) ticket_keys: Arc<TicketKeys>,
    pub(super) tls: TlsAcceptors,
    pub(super) access: Arc<AccessLogSink>,
}

/// The TLS of each listener, in the order of the configuration; `None` for plain ones.
pub(super) type TlsAcceptors = Vec<Option<TlsAcceptor>>;

impl Prerequisites {
    /// Obtains everything, or says all that is wrong.
    pub(super) fn obtain(config: &Config, clock: &dyn Clock) -> Result<Self, Vec<StartError>> {
        let now = clock.now();
        let access = AccessLogSink::new(&config.access_log, clock.date(now));
        let access = access.map_err(StartError::AccessLog);
        match (Tls::obtain(config, now), access) {
            (Ok(Tls { certificates, ticket_keys, listeners }), Ok(access)) => {
                Ok(Self { certificates, ticket_keys, tls: listeners, access: Arc::new(access) })
            }
            (tls, access) => Err(tls.err().into_iter().chain(access.err()).collect()),
        }
    }
}

struct Tls {
    certificates: Arc<CertificateStore>,
    ticket_keys: Arc<TicketKeys>,
    listeners: TlsAcceptors,
}

impl Tls {
    fn obtain(config: &Config, now: Now) -> Result<Self, StartError> {
        let certificates = Arc::new(CertificateStore::default());
        let read = CertificateStore::read(&config.listeners).map_err(StartError::Certificate)?;
        certificates.replace(read);
        let ticket_keys = TicketKeys::new(now.mono).map_err(StartError::TicketKeys)?;
        let ticket_keys = Arc::new(ticket_keys);
        let mut listeners = Vec::with_capacity(config.listeners.len());
        for (index, listener) in config.listeners.iter().enumerate() {
            let acceptor = || {
                let asks_clients = listener.client_ca.is_some();
                let (certificates, keys) = (Arc::clone(&certificates), Arc::clone(&ticket_keys));
                TlsAcceptor::new(index, asks_clients, certificates, keys)
                    .map_err(|error| StartError::Tls { listener: index, error })
            };
            let has_tls = !listener.certificates.is_empty();
            listeners.push(has_tls.then(acceptor).transpose()?);
        }
        Ok(Self { certificates, ticket_keys, listeners })
    }
}

/// Every address that is listened on: those of the listeners, then that of the admin listener.
pub(super) fn addresses(config: &Config) -> Vec<SocketAddr> {
    let listeners = config.listeners.iter().map(|listener| listener.address);
    listeners.chain(config.admin.as_ref().map(|admin| admin.address)).collect()
}

/// Obtains what a start needs, and gives it back. The access log is not opened, because that would create its file.
pub(super) fn rehearse(config: &Config, now: Now) -> Vec<StartError> {
    let mut errors = rehearse_files(config, now);
    errors.extend(AccessLogSink::rehearse(&config.access_log).err().map(StartError::AccessLog));
    let sockets = ListeningSockets::rehearse(&addresses(config));
    errors.extend(sockets.into_iter().map(StartError::Listen));
    errors
}

/// The same for what does not depend on this machine.
pub(super) fn rehearse_files(config: &Config, now: Now) -> Vec<StartError> {
    Tls::obtain(config, now).err().into_iter().collect()
}
