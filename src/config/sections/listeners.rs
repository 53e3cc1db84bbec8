//! `listeners`: the sockets that accept client connections, and their certificates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::files::{check_certificates, check_private_key, check_roots};
use crate::config::model::{Certificate, Listener};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{NAME_CURE, boolean, is_name};

/// Largest number of listeners. All their sockets fit into the one message that hands them over to a successor.
const MAX_LISTENERS: usize = 32;

/// `listeners`: at least one.
pub(crate) fn listeners(root: &mut Mapping<'_>, folder: &Path) -> Vec<Listener> {
    let cure = "write listeners: [{ address: 0.0.0.0:8080 }]";
    let Some(at) = root.require("listeners", cure) else {
        return Vec::new();
    };
    let items = at.list();
    if items.is_empty() && !at.is_mapping() {
        at.error_with("no listener", cure);
    }
    if items.len() > MAX_LISTENERS {
        at.error(format!("{} listeners, more than {MAX_LISTENERS}", items.len()));
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
    map.finish();
    let address_at = address_at?;
    let address = address_at.parse(socket_address)?;
    if earlier.iter().any(|listener| listener.address == address) {
        address_at.error(format!("{address} is listed twice"));
    }
    let name = name_at.as_ref().and_then(|at| at.text().map(|name| (at, name)));
    if let Some((at, name)) = name {
        if !is_name(name) {
            at.error_with(format!("{name:?} is not a name"), NAME_CURE);
        }
        if earlier.iter().any(|other| other.name.as_deref() == Some(name)) {
            at.error(format!("two listeners have the name {name:?}"));
        }
    }
    Some(Listener {
        name: name.map(|(_, name)| Arc::from(name)),
        address,
        certificates: tls.certificates,
        client_ca: tls.client_ca,
        proxy_protocol: proxy_protocol.unwrap_or_default(),
    })
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
        at.error("no certificate");
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
    if let Err(error) = check_private_key(&private_key) {
        key_at.error(error);
    }
    Some(Certificate { certificate, private_key })
}

/// An IP address with a port.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not an address with a port; write 0.0.0.0:8080 or \"[::]:8080\"")
    })
}
