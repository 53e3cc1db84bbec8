//! `origins`: the servers that requests are forwarded to. This module checks addresses and names
//! for their form only; it resolves and connects to nothing.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;

use super::bounds::MAX_CONNECTIONS;
use super::field_edits::header_edits;
use super::keys::{SourceContext, source};
use crate::config::files::{check_certificates, check_key_pair, check_roots};
use crate::config::model::{
    Balance, Certificate, HeaderEdits, HealthCheck, Origin, OriginServer, OriginTimeouts, OriginTls,
};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{MAX_HOST_NAME, NAME_CURE, integer, is_name, positive_duration};

/// Largest number of servers of one origin.
const MAX_SERVERS: usize = 1_000;

/// Largest weight of a server.
const MAX_WEIGHT: u64 = 1_000;

/// Default of `max_connections`.
const DEFAULT_MAX_CONNECTIONS: usize = 1_024;

/// Default of `resolve_every`.
const DEFAULT_RESOLVE_INTERVAL: Duration = Duration::from_secs(30);

/// `origins`: at least one, each with the changes of header fields on its routes.
pub(crate) fn origins(
    root: &mut Mapping<'_>,
    sources: SourceContext<'_>,
) -> Vec<(Origin, HeaderEdits)> {
    let cure = "write origins: { site: { servers: [127.0.0.1:9000] } }";
    let Some(at) = root.require("origins", cure) else {
        return Vec::new();
    };
    let named = at.named_values();
    if named.is_empty() && at.is_mapping() {
        at.error_with("no origin", cure);
    }
    let mut origins = Vec::new();
    for entry in named {
        if !is_name(entry.name) {
            entry.at.error_with(format!("{:?} is not a name", entry.name), NAME_CURE);
        }
        origins.extend(origin(entry.name, &entry.at, entry.at.folder(), sources));
    }
    origins
}

fn origin(
    name: &str,
    at: &Located<'_>,
    folder: &Path,
    sources: SourceContext<'_>,
) -> Option<(Origin, HeaderEdits)> {
    let mut map = at.mapping()?;
    let servers = map.require("servers", "write servers: [127.0.0.1:9000]");
    let balance = map.get("balance").and_then(|at| balance(&at, sources));
    let host = map.get("host").and_then(|at| at.parse(host_field)).flatten();
    let tls = map.get("tls").and_then(|at| tls(&at, folder));
    let http = map.get("http").and_then(|at| at.choice(&[("1", false), ("2", true)]));
    let health_check = map.get("health_check").and_then(|at| health_check(&at));
    let slow_start = map.get("slow_start").and_then(|at| at.parse(positive_duration));
    let timeouts = timeouts(map.get("timeouts"));
    let max_connections =
        map.get("max_connections").and_then(|at| at.parse(integer(1, MAX_CONNECTIONS)));
    let resolve_every = map.get("resolve_every").and_then(|at| at.parse(positive_duration));
    let edits = header_edits(&mut map);
    map.finish();
    let at = servers?;
    let items = at.list_or_single();
    if items.is_empty() || items.len() > MAX_SERVERS {
        at.error_with(
            format!("{} servers", items.len()),
            format!("write 1 to {MAX_SERVERS} servers"),
        );
    }
    let servers: Vec<OriginServer> = items.iter().filter_map(server).collect();
    refuse_repeated(&at, &servers);
    let origin = Origin {
        name: Arc::from(name),
        servers,
        balance: balance.unwrap_or(Balance::RoundRobin),
        host,
        tls,
        http2: http.unwrap_or(false),
        health_check,
        slow_start,
        timeouts,
        max_connections: max_connections.map_or(DEFAULT_MAX_CONNECTIONS, |max| max as usize),
        resolve_every: resolve_every.unwrap_or(DEFAULT_RESOLVE_INTERVAL),
    };
    Some((origin, edits))
}

/// Refuses a server that is listed twice: it would get twice its share, and each of its entries would have a health of its
/// own.
fn refuse_repeated(at: &Located<'_>, servers: &[OriginServer]) {
    let mut seen = HashSet::new();
    if let Some(repeated) = servers.iter().find(|server| !seen.insert(&*server.address)) {
        let address = &repeated.address;
        at.error_with(
            format!("{address} is listed twice"),
            format!("list it once; for more requests write {{ address: {address}, weight: 2 }}"),
        );
    }
}

fn server(at: &Located<'_>) -> Option<OriginServer> {
    if !at.is_mapping() {
        return Some(OriginServer {
            address: at.parse_or_env(host_and_port, SERVER_FORM)?,
            weight: 1,
        });
    }
    let mut map = at.mapping()?;
    let address = map.require("address", "write address: 127.0.0.1:9000");
    let weight = map.get("weight").and_then(|at| at.parse(integer(1, MAX_WEIGHT)));
    map.finish();
    let weight = weight.and_then(|weight| u16::try_from(weight).ok()).unwrap_or(1);
    Some(OriginServer { address: address?.parse_or_env(host_and_port, SERVER_FORM)?, weight })
}

/// What a server is, in words.
const SERVER_FORM: &str = "host:port, as 127.0.0.1:9000";

/// `127.0.0.1:9000`, `[::1]:9000` or `name:9000`.
fn host_and_port(text: &str) -> Result<String, String> {
    let wrong = || {
        let cure = match text.split_once("://") {
            Some((scheme, rest)) => {
                let bare = rest.split('/').next().unwrap_or(rest);
                let (default, tls) = match scheme {
                    "https" => ("443", ", with tls: { sni: NAME } at the origin"),
                    _ => ("80", ""),
                };
                let port = if bare.contains(':') { String::new() } else { format!(":{default}") };
                format!("write {bare}{port}{tls}")
            }
            None if text.contains([',', ' ']) => {
                "write a list, as [10.0.0.1:80, 10.0.0.2:80]".to_owned()
            }
            None if !text.contains([':', '/']) => format!("name the port, as {text}:80"),
            None => "write for example 127.0.0.1:9000".to_owned(),
        };
        format!("{text:?} is not host:port; {cure}")
    };
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let is_host = !host.is_empty()
        && host.len() <= MAX_HOST_NAME
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    match port.parse::<u16>() {
        Ok(1..) if is_host => Ok(text.to_owned()),
        _ => Err(wrong()),
    }
}

fn balance(at: &Located<'_>, sources: SourceContext<'_>) -> Option<Balance> {
    if !at.is_mapping() {
        return at.choice(&[
            ("round_robin", Balance::RoundRobin),
            ("random", Balance::Random),
            ("least_requests", Balance::LeastRequests),
        ]);
    }
    let mut map = at.mapping()?;
    let hashed = map.require("hash", "write hash: client_ip");
    map.finish();
    source(&hashed?, sources).map(Balance::Hash)
}

/// `keep` (`None`), or the `Host` that the origin receives.
fn host_field(text: &str) -> Result<Option<String>, String> {
    if text == "keep" {
        return Ok(None);
    }
    let authority = text.parse::<http::uri::Authority>();
    let is_host = authority.is_ok_and(|authority| !authority.as_str().contains('@'));
    if is_host {
        Ok(Some(text.to_owned()))
    } else {
        Err(format!("{text:?} is not a host; write site.internal, or keep"))
    }
}

fn tls(at: &Located<'_>, folder: &Path) -> Option<OriginTls> {
    let mut map = at.mapping()?;
    let sni = map.require("sni", "write sni: site.internal, the name in the certificate");
    let ca_at = map.get("ca_file");
    let (certificate_at, key_at) = (map.get("certificate"), map.get("private_key"));
    map.finish();
    let client = client_certificate(at, certificate_at, key_at, folder);
    let ca_file = ca_at.as_ref().and_then(|at| at.text()).map(|file| folder.join(file));
    if let (Some(at), Some(file)) = (&ca_at, &ca_file)
        && let Err(error) = check_roots(file)
    {
        at.error(error);
    }
    Some(OriginTls { sni: sni?.parse(server_name)?, ca_file, client })
}

/// `certificate` and `private_key`: what is shown to an origin that asks for a certificate.
fn client_certificate(
    at: &Located<'_>,
    certificate_at: Option<Located<'_>>,
    key_at: Option<Located<'_>>,
    folder: &Path,
) -> Option<Certificate> {
    let (certificate_at, key_at) = match (certificate_at, key_at) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return None,
        (Some(_), None) => {
            at.error_with("a certificate without its key", "write private_key: client.key");
            return None;
        }
        (None, Some(_)) => {
            at.error_with("a key without its certificate", "write certificate: client.crt");
            return None;
        }
    };
    let certificate = folder.join(certificate_at.text()?);
    let private_key = folder.join(key_at.text()?);
    if let Err(error) = check_certificates(&certificate) {
        certificate_at.error(error);
    } else if let Err(error) = check_key_pair(&certificate, &private_key) {
        key_at.error(error);
    }
    Some(Certificate { certificate, private_key })
}

/// A DNS name or an address. With any other text no handshake could succeed, and with an empty name
/// every certificate would be accepted.
fn server_name(text: &str) -> Result<String, String> {
    let wrong =
        |_| format!("{text:?} is not a name; write site.internal, the one in the certificate");
    ServerName::try_from(text).map(|_| text.to_owned()).map_err(wrong)
}

fn health_check(at: &Located<'_>) -> Option<HealthCheck> {
    let mut map = at.mapping()?;
    let path = map.require("path", "write path: /healthz");
    let every = map.get("every").and_then(|at| at.parse(positive_duration));
    let timeout = map.get("timeout").and_then(|at| at.parse(positive_duration));
    map.finish();
    let path = path?.parse(|text| match text.parse::<http::uri::PathAndQuery>() {
        Ok(path) if text.starts_with('/') => Ok(path.to_string()),
        _ => Err(format!("{text:?} is not a path; write for example /healthz")),
    })?;
    Some(HealthCheck {
        path,
        every: every.unwrap_or(Duration::from_secs(5)),
        timeout: timeout.unwrap_or(Duration::from_secs(1)),
    })
}

fn timeouts(at: Option<Located<'_>>) -> OriginTimeouts {
    let minute = Duration::from_secs(60);
    let mut timeouts = OriginTimeouts {
        connect: Duration::from_secs(1),
        read: minute,
        write: minute,
        idle: minute,
        tunnel: Duration::from_secs(3_600),
    };
    let Some(mut map) = at.and_then(|at| at.mapping()) else {
        return timeouts;
    };
    let mut set = |key, into: &mut Duration| {
        if let Some(value) = map.get(key).and_then(|at| at.parse(positive_duration)) {
            *into = value;
        }
    };
    set("connect", &mut timeouts.connect);
    set("read", &mut timeouts.read);
    set("write", &mut timeouts.write);
    set("idle", &mut timeouts.idle);
    set("tunnel", &mut timeouts.tunnel);
    map.finish();
    timeouts
}
