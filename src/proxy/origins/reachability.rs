//! Whether the servers of an origin can be used, asked once for `tollgate check --connect`.
//!
//! Each server gets a connection as requests get it: name, TCP, TLS with the origin's files, HTTP/2 where it is configured.
//! No request is sent. What must always hold: every step has a deadline, and not all servers are asked at once.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use pingora::connectors::http::Connector;
use pingora::{Error, ErrorType};
use tokio::time::timeout;

use super::group::{RESOLVE_TIMEOUT, peer};
use super::tls::OriginTlsFiles;
use crate::config::Origin;

/// The largest number of servers that are asked at the same time, so that a check opens few descriptors.
const MAX_ASKED_AT_ONCE: usize = 64;

/// The largest number of addresses of one name that are asked.
const MAX_ADDRESSES_OF_NAME: usize = 16;

/// Added to the timeout of a connection for the first frames of HTTP/2, which that timeout does not include.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(1);

/// The servers that cannot be used, by their indices in the configuration, with the reason. Runs on the current Tokio
/// runtime.
pub async fn unreachable_servers(origin: &Origin) -> Vec<(usize, String)> {
    let files = OriginTlsFiles::read(origin);
    let connector = Connector::new(None);
    let (files, connector) = (&files, &connector);
    let asked = origin.servers.iter().enumerate().map(|(index, server)| async move {
        let why = match resolve(&server.address).await {
            Ok(addresses) => first_reason(origin, &addresses, files, connector).await,
            Err(why) => Some(why),
        };
        (index, why)
    });
    let answers: Vec<_> = stream::iter(asked).buffered(MAX_ASKED_AT_ONCE).collect().await;
    answers.into_iter().filter_map(|(index, why)| why.map(|why| (index, why))).collect()
}

async fn resolve(server: &str) -> Result<Vec<SocketAddr>, String> {
    let found = timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host(server)).await;
    let found = found.map_err(|_| format!("{server} did not resolve in {RESOLVE_TIMEOUT:?}"))?;
    let found = found.map_err(|error| format!("cannot resolve {server}: {error}"))?;
    Ok(found.take(MAX_ADDRESSES_OF_NAME).collect())
}

/// Why the first address that cannot be used cannot.
async fn first_reason(
    origin: &Origin,
    addresses: &[SocketAddr],
    files: &OriginTlsFiles,
    connector: &Connector,
) -> Option<String> {
    let limit = origin.timeouts.connect + PREFACE_TIMEOUT;
    for &address in addresses {
        let peer = peer(origin, address, files);
        let why = match timeout(limit, connector.get_http_session(&peer)).await {
            Ok(Ok((session, _))) if origin.http2 && session.as_http2().is_none() => {
                "the server does not speak HTTP/2".to_owned()
            }
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => reason(&error),
            Err(_) => format!("no connection in {limit:?}"),
        };
        return Some(format!("{address}: {why}"));
    }
    None
}

fn reason(error: &Error) -> String {
    let what = match error.root_etype() {
        ErrorType::ConnectRefused => "the connection is refused",
        ErrorType::ConnectTimedout => "no connection in time",
        ErrorType::ConnectNoRoute => "there is no route",
        ErrorType::TLSHandshakeFailure | ErrorType::HandshakeError | ErrorType::InvalidCert => {
            "the TLS handshake fails"
        }
        ErrorType::TLSHandshakeTimedout => "no TLS handshake in time",
        ErrorType::H2Downgrade | ErrorType::InvalidH2 => "the server does not speak HTTP/2",
        _ => "no connection",
    };
    let mut root = error;
    while let Some(inner) = root.cause.as_ref().and_then(|cause| cause.downcast_ref::<Box<Error>>())
    {
        root = inner;
    }
    match (&root.cause, &root.context) {
        (Some(cause), _) => format!("{what}: {cause}"),
        (None, Some(context)) => format!("{what}: {}", context.as_str()),
        (None, None) => what.to_owned(),
    }
}
