//! `listeners`: the sockets that accept client connections, and their certificates.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::files::{check_certificates, check_key_pair, check_roots};
use crate::config::model::{Certificate, Listener};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{NAME_CURE, boolean, integer, is_name};

/// Largest number of listeners. All their sockets fit into the one message that hands them over to a successor.
const MAX_LISTENERS: usize = 32;

/// `listeners`: at least one.
pub(crate) fn listeners(root: &mut Mapping<'_>, folder: &Path) -> Vec<Listener> {
    let cure = "write listeners: [{ address: 0.0.0.0:8080 }]";
    let Some(at) = root.require("listeners", cure) else {
        return Vec::new();
    };
    let items = at.list();
    if at.is_empty_list() {
        at.error_with("no listener", cure);
    }
    if items.len() > MAX_LISTENERS {
        let cure = "let some of them share a listener, or start another tollgate";
        at.error_with(format!("{} listeners, more than {MAX_LISTENERS}", items.len()), cure);
    }
    let mut listeners: Vec<Listener> = Vec::new();
    for item in items {
        listeners.extend(listener(&item, folder, &listeners));
    }
    listeners
}

fn listener(at: &Located<'_>, folder: &Path, earlier: &[Listener]) -> Option<Listener> {
    let mut map = at.mapping()?;
    let name_at = map.get("name");
    let address_at = map.require("address", "write address: 0.0.0.0:8080");
    let tls = map.get("tls").map(|at| tls(&at, folder)).unwrap_or_default();
    let proxy_protocol = map.get("proxy_protocol").and_then(|at| at.parse(boolean));
    let redirect_at = map.get("redirect");
    map.finish();
    let https_port = redirect_at.as_ref().and_then(redirect);
    if let Some(at) = redirect_at.filter(|_| !tls.certificates.is_empty()) {
        at.error_with("the listener speaks TLS already", "leave redirect out, or tls");
    }
    let address_at = address_at?;
    let address =
        address_at.parse_or_env(socket_address, "an address with a port, as 0.0.0.0:8080")?;
    check_overlap(&address_at, address, earlier);
    let name = name_at.as_ref().and_then(|at| at.text().map(|name| (at, name)));
    if let Some((at, name)) = name {
        if !is_name(name) {
            at.error_with(format!("{name:?} is not a name"), NAME_CURE);
        }
        if earlier.iter().any(|other| other.name.as_deref() == Some(name)) {
            at.error_with(format!("two listeners have the name {name:?}"), "rename one of them");
        }
    }
    Some(Listener {
        name: name.map(|(_, name)| Arc::from(name)),
        address,
        certificates: tls.certificates,
        client_ca: tls.client_ca,
        https_port,
        proxy_protocol: proxy_protocol.unwrap_or_default(),
    })
}

/// `https`, or `{ scheme: https, port: 8443 }`: the port of the target.
fn redirect(at: &Located<'_>) -> Option<u16> {
    const HTTPS: &[(&str, u16)] = &[("https", 443)];
    if !at.is_mapping() {
        return at.choice(HTTPS);
    }
    let mut map = at.mapping()?;
    let scheme = map.require("scheme", "write scheme: https").and_then(|at| at.choice(HTTPS));
    let port = map.get("port").and_then(|at| at.parse(integer(1, u64::from(u16::MAX))));
    map.finish();
    port.and_then(|port| u16::try_from(port).ok()).or(scheme)
}

/// Records an error if a listener has this address already, or one that includes it: only the first of two such addresses
/// can be listened on.
pub(super) fn check_overlap(at: &Located<'_>, address: SocketAddr, listeners: &[Listener]) {
    for other in listeners.iter().map(|listener| listener.address) {
        let cure = "leave one of them out, or use another port";
        if other == address {
            at.error_with(format!("{address} is listed twice"), cure);
        } else if overlap(address, other) {
            at.error_with(format!("{address} and the listener {other} overlap"), cure);
        }
    }
}

/// Whether connections to one address could be connections to the other. `[::]` and an address of IPv4 do not overlap: it
/// is restricted to IPv6 then.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let includes = |a: IpAddr, b: IpAddr| {
        let same_family = a.is_ipv4() == b.is_ipv4();
        same_family && (a == b || a.is_unspecified() || b.is_unspecified())
    };
    let is_same_port = a.port() == b.port() && a.port() != 0;
    let as_typed = includes(a.ip(), b.ip());
    // Addresses such as ::ffff:127.0.0.1 take connections over IPv4.
    is_same_port && (as_typed || includes(a.ip().to_canonical(), b.ip().to_canonical()))
}

/// The certificates of a listener, and the authorities of its clients.
#[derive(Default)]
struct ListenerTls {
    certificates: Vec<Certificate>,
    client_ca: Option<PathBuf>,
}

fn tls(at: &Located<'_>, folder: &Path) -> ListenerTls {
    let items = at.list_or_single();
    if items.is_empty() {
        at.error_with(
            "no certificate",
            "write { certificate: FILE, private_key: FILE }, or leave tls out",
        );
    }
    let mut authorities = Vec::with_capacity(items.len());
    let certificates =
        items.iter().filter_map(|item| certificate(item, folder, &mut authorities)).collect();
    let client_ca = authorities.first().cloned().flatten();
    // A client chooses the pair by the server name that it sends, and so would choose whether it is asked.
    if authorities.iter().any(|other| *other != client_ca) {
        at.error_with(
            "client_ca differs between the pairs of one listener",
            "name the same client_ca in every pair, or use two listeners",
        );
    }
    ListenerTls { certificates, client_ca }
}

/// One pair; what it says about clients is added to `authorities`.
fn certificate(
    at: &Located<'_>,
    folder: &Path,
    authorities: &mut Vec<Option<PathBuf>>,
) -> Option<Certificate> {
    let mut map = at.mapping()?;
    let certificate_at = map.require("certificate", "write certificate: tls/site.crt");
    let key_at = map.require("private_key", "write private_key: tls/site.key");
    let ca_at = map.get("client_ca");
    map.finish();
    let client_ca = ca_at.as_ref().and_then(|at| at.text()).map(|file| folder.join(file));
    if let (Some(at), Some(file)) = (&ca_at, &client_ca)
        && let Err(error) = check_roots(file)
    {
        at.error(error);
    }
    authorities.push(client_ca);
    let (certificate_at, key_at) = (certificate_at?, key_at?);
    let certificate = folder.join(certificate_at.text()?);
    let private_key = folder.join(key_at.text()?);
    if let Err(error) = check_certificates(&certificate) {
        certificate_at.error(error);
    }
    if let Err(error) = check_key_pair(&certificate, &private_key) {
        key_at.error(error);
    }
    Some(Certificate { certificate, private_key })
}

/// An IP address with a port.
pub(in crate::config) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let bare = text.split_once("://").map_or(text, |(_, rest)| rest).trim_end_matches('/');
        let (host, port) = match bare.parse::<u16>() {
            Ok(_) => ("", bare),
            Err(_) => bare.rsplit_once(':').unwrap_or((bare, "8080")),
        };
        let cure = match (host, port.parse::<u16>()) {
            ("" | "*", Ok(port)) => {
                format!("write 0.0.0.0:{port} for all addresses, or 127.0.0.1:{port}")
            }
            ("localhost", Ok(port)) => format!("write 127.0.0.1:{port}: a listener has no name"),
            (host, Ok(port)) if host.parse::<std::net::IpAddr>().is_ok() => {
                match host.contains(':') {
                    true => format!("write \"[{host}]:{port}\""),
                    false => format!("write {host}:{port}, without a scheme"),
                }
            }
            _ => "write 0.0.0.0:8080 or \"[::]:8080\"".to_owned(),
        };
        format!("{text:?} is not an address with a port; {cure}")
    })
}
