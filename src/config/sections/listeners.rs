//! `listeners`, `admin` and `clients`.

use std::net::SocketAddr;
use std::path::Path;

use http::HeaderName;
use ipnet::IpNet;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::files::{MAX_NAMED, read_bounded};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::{boolean, whole};
use crate::config::{Admin, Certificate, Listener};
use crate::policy::client::{AddressHeader, ClientRules, unmapped};

/// Most listeners: all are handed over to a successor in one message.
const MAX_LISTENERS: usize = 32;

/// `listeners`: at least one.
pub(crate) fn listeners(root: &mut Mapping<'_>, folder: &Path) -> Vec<Listener> {
    let cure = "write listeners: [{ address: 0.0.0.0:8080 }]";
    let Some(at) = root.require("listeners", cure) else {
        return Vec::new();
    };
    let items = at.list();
    if items.is_empty() && !at.is_map() {
        at.error_with("no listener", cure);
    }
    if items.len() > MAX_LISTENERS {
        at.error(format!("{} listeners, more than {MAX_LISTENERS}", items.len()));
    }
    let mut listeners: Vec<Listener> = Vec::new();
    for item in items {
        if let Some((listener, place)) = listener(&item, folder) {
            if listeners.iter().any(|other| other.address == listener.address) {
                place.error(format!("{} stands twice", listener.address));
            }
            listeners.push(listener);
        }
    }
    listeners
}

fn listener<'n>(at: &Located<'n>, folder: &Path) -> Option<(Listener, Located<'n>)> {
    let mut map = at.map()?;
    let address = map.require("address", "write address: 0.0.0.0:8080");
    let certificates = map.get("tls").map(|tls| {
        let pairs = tls.one_or_more();
        if pairs.is_empty() {
            tls.error("no certificate");
        }
        pairs.iter().filter_map(|pair| certificate(pair, folder)).collect()
    });
    let proxy_protocol = map.get("proxy_protocol").and_then(|at| at.parse(boolean));
    map.finish();
    let place = address?;
    let address = place.parse(socket)?;
    let listener = Listener {
        address,
        certificates: certificates.unwrap_or_default(),
        proxy_protocol: proxy_protocol.unwrap_or_default(),
    };
    Some((listener, place))
}

fn certificate(at: &Located<'_>, folder: &Path) -> Option<Certificate> {
    let mut map = at.map()?;
    let certificate = map.require("certificate", "write certificate: tls/site.crt");
    let private_key = map.require("private_key", "write private_key: tls/site.key");
    map.finish();
    let (certificate_at, key_at) = (certificate?, private_key?);
    let certificate = folder.join(certificate_at.text()?);
    let private_key = folder.join(key_at.text()?);
    if let Err(why) = certificates_in(&certificate) {
        certificate_at.error(why);
    }
    if let Err(error) = PrivateKeyDer::from_pem_file(&private_key) {
        key_at.error(format!("{}: {error}", private_key.display()));
    }
    Some(Certificate { certificate, private_key })
}

/// Says what is wrong with a file of certificates.
pub(crate) fn certificates_in(file: &Path) -> Result<(), String> {
    let of_file = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let found = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| of_file(&error))?;
    if found.is_empty() { Err(of_file(&"holds no certificate")) } else { Ok(()) }
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not an address with a port; write 0.0.0.0:8080 or \"[::]:8080\"")
    })
}

/// `admin`: none unless it is written.
pub(crate) fn admin(root: &mut Mapping<'_>, folder: &Path) -> Option<Admin> {
    let mut map = root.get("admin")?.map()?;
    let place = map.require("address", "write address: 127.0.0.1:9900");
    let token_at = map.get("token_file");
    let hosts = map.get("hosts").map(|at| at.one_or_more()).unwrap_or_default();
    let hosts = hosts.iter().filter_map(|at| at.parse(admin_host)).collect();
    map.finish();
    let token = token_at.as_ref().and_then(|at| token(at, &folder.join(at.text()?)));
    let place = place?;
    let address = place.parse(socket)?;
    if !address.ip().is_loopback() && token_at.is_none() {
        let cure = "add token_file, or listen on 127.0.0.1";
        place.error_with(format!("{address} can be reached from elsewhere"), cure);
    }
    Some(Admin { address, token, hosts })
}

/// A name or an address without a port, in lower case.
fn admin_host(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not a host; write admin.example, without scheme and port");
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<std::net::IpAddr>().is_ok() {
        return Ok(bare.to_ascii_lowercase());
    }
    let authority: http::uri::Authority = text.parse().map_err(|_| wrong())?;
    let is_bare = authority.host() == text && !text.starts_with('[') && !text.contains('*');
    is_bare.then(|| text.to_ascii_lowercase()).ok_or_else(wrong)
}

/// The first line of a file. Its value is in no error.
fn token(at: &Located<'_>, file: &Path) -> Option<String> {
    let bytes = read_bounded(file, MAX_NAMED).map_err(|error| at.error(error)).ok()?;
    let Ok(text) = String::from_utf8(bytes) else {
        at.error(format!("{}: is not UTF-8", file.display()));
        return None;
    };
    let token = text.trim();
    if token.len() < 16 {
        at.error(format!("{}: a token has at least 16 characters", file.display()));
        return None;
    }
    Some(token.to_owned())
}

/// `clients`.
pub(crate) fn clients(root: &mut Mapping<'_>) -> ClientRules {
    let mut rules = ClientRules::default();
    let Some(mut map) = root.get("clients").and_then(|at| at.map()) else {
        return rules;
    };
    if let Some(at) = map.get("trusted_proxies") {
        rules.trusted_proxies =
            at.one_or_more().iter().filter_map(|at| at.parse(network)).collect();
    }
    rules.address_header = match map.get("address_header") {
        Some(at) => at.parse(address_header).flatten(),
        // Without it a trusted balancer would be the only client.
        None if rules.trusted_proxies.is_empty() => None,
        None => Some(AddressHeader::XForwardedFor),
    };
    if let Some(bits) = map.get("ipv6_prefix").and_then(|at| at.parse(whole(1, 128))) {
        rules.ipv6_prefix = bits as u8;
    }
    map.finish();
    rules
}

/// `None`: the peer is the client, whatever it says.
fn address_header(text: &str) -> Result<Option<AddressHeader>, String> {
    match text.to_ascii_lowercase().as_str() {
        "none" => Ok(None),
        "x-forwarded-for" => Ok(Some(AddressHeader::XForwardedFor)),
        "forwarded" => Ok(Some(AddressHeader::Forwarded)),
        name => HeaderName::try_from(name)
            .map(|name| Some(AddressHeader::Single(name)))
            .map_err(|_| format!("{text:?} is not the name of a header")),
    }
}

/// `10.0.0.0/8`, `2001:db8::/32`, or one address.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let wrong = || format!("{text:?} is not a network; write 10.0.0.0/8 or 203.0.113.7");
    if let Ok(net) = text.parse::<IpNet>() {
        let cut = net.trunc();
        if cut.addr() != net.addr() {
            return Err(format!("{text:?} has bits beyond its prefix; write {cut}"));
        }
        return Ok(cut);
    }
    text.parse().map(|address| IpNet::from(unmapped(address))).map_err(|_| wrong())
}
