//! A key as a person writes it: in an override, or in a question to the admin API.
//!
//! The values become what the sources of the limit find in a request, so that the key has the same hash. It does not know
//! where the text comes from. No value stands for a key that no request can have.

use std::net::IpAddr;

use ipnet::IpNet;

use super::source::Source;
use super::spec::KeySpec;
use super::{address, credentials};
use crate::policy::{CLIENT_NAME_KINDS, KNOWN_METHODS, KeyValues, canonical_client_name};

/// Why a text is not a key of a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypedKeyError {
    /// There are more or fewer values than the key has sources.
    #[error("{given} values; a key of this limit is {key}, which has {expected}")]
    Count {
        /// The number of values.
        given: usize,
        /// The sources.
        key: String,
        /// Their number.
        expected: usize,
    },
    /// The value for `client_ip` is not an address.
    #[error("{0:?} is not an address; write network: for many")]
    Address(String),
    /// A bucket has no name.
    #[error("a shard cannot have overrides by key")]
    Shard,
    /// The value is no name of a certificate.
    #[error(
        "{0:?} names no certificate; begin it with one of {kinds} (for example dns:a.internal)",
        kinds = CLIENT_NAME_KINDS.join(", ")
    )]
    CertificateName(String),
    /// The value has a form that the source never finds.
    #[error("{text:?} {reason}; {cure}")]
    Form {
        /// The value.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
        /// What to write instead.
        cure: String,
    },
    /// An empty value is absent.
    #[error("an empty value is never a key")]
    Empty,
}

impl KeySpec {
    /// The values of a key, one text for each source. `ipv6_prefix`: the leading bits of an IPv6 address that identify one
    /// client, 1 to 128. Sources read the values as in a request when they are hashed.
    ///
    /// # Errors
    /// A text is not what the source finds.
    pub fn typed_values(
        &self,
        texts: &[&str],
        ipv6_prefix: u8,
    ) -> Result<KeyValues, TypedKeyError> {
        let sources = self.sources();
        if texts.len() != sources.len() {
            let (given, expected) = (texts.len(), sources.len());
            return Err(TypedKeyError::Count { given, key: self.to_string(), expected });
        }
        texts
            .iter()
            .zip(sources)
            .map(|(text, source)| typed_value(text, source, ipv6_prefix))
            .collect()
    }
}

fn typed_value(text: &str, source: &Source, ipv6_prefix: u8) -> Result<Box<[u8]>, TypedKeyError> {
    match source {
        Source::ClientIp => {
            let address = address_of(text, ipv6_prefix);
            let address = address.ok_or_else(|| TypedKeyError::Address(text.to_owned()))?;
            Ok(Box::from(&address::bytes(address, ipv6_prefix)[..]))
        }
        Source::Shard { .. } => Err(TypedKeyError::Shard),
        Source::TlsClient => match canonical_client_name(text) {
            Some(name) => Ok(name.into_bytes().into()),
            None => Err(TypedKeyError::CertificateName(text.to_owned())),
        },
        _ if text.is_empty() => Err(TypedKeyError::Empty),
        _ => match never_found(text, source) {
            Some((reason, cure)) => {
                Err(TypedKeyError::Form { text: without_secret(text, source), reason, cure })
            }
            None => Ok(text.as_bytes().into()),
        },
    }
}

/// A text for a message, which may reach a log. Only what is no secret anywhere is shown: a field, a cookie, a parameter or a
/// claim may hold a key, a URL a password.
fn without_secret(text: &str, source: &Source) -> String {
    match source {
        Source::Method | Source::Path | Source::PathSegment(_) => text.to_owned(),
        Source::BasicUser => format!("{}:..", text.split(':').next().unwrap_or_default()),
        _ => "..".to_owned(),
    }
}

/// Why a source never finds a text, and what to write instead.
fn never_found(text: &str, source: &Source) -> Option<(&'static str, String)> {
    match source {
        Source::Method if text == "HEAD" => Some(("counts as GET", "write GET".to_owned())),
        Source::Method if !KNOWN_METHODS.contains(&text) => {
            let upper = text.to_ascii_uppercase();
            let cure = match KNOWN_METHODS.contains(&&*upper) {
                true => format!("write {upper}"),
                false => format!("write one of {}", KNOWN_METHODS.join(", ")),
            };
            Some(("is no method that is forwarded", cure))
        }
        Source::Path if !text.starts_with('/') => Some(("is no path", format!("write /{text}"))),
        Source::PathSegment(_) if text.contains('/') => {
            let segment = text.split('/').find(|segment| !segment.is_empty()).unwrap_or("api");
            Some(("is no segment: it has a slash", format!("write {segment}")))
        }
        Source::Bearer if !credentials::is_token(text.as_bytes()) => {
            let scheme = text.get(..7);
            let cure = match scheme.is_some_and(|it| it.eq_ignore_ascii_case("bearer ")) {
                true => "write the token alone, without Bearer",
                false => "write the token alone, without blanks, commas and quotes",
            };
            Some(("is no bearer token", cure.to_owned()))
        }
        Source::BasicUser if text.contains(':') => {
            let user = text.split(':').next().unwrap_or_default();
            Some(("is no user: it has a colon", format!("write the user alone: {user}")))
        }
        Source::Header(_) if text.trim_matches([' ', '\t']) != text => {
            let reason = "has blanks around it, which the value of a header never has";
            Some((reason, "leave them out".to_owned()))
        }
        Source::Host | Source::TlsSni if text.contains('/') || is_with_port(text) => {
            let bare = match text.parse::<std::net::Ipv6Addr>() {
                Ok(address) => format!("[{address}]"),
                Err(_) => bare_host(text).to_owned(),
            };
            Some(("is more than a host", format!("write {bare}, without scheme, port and path")))
        }
        Source::ClientIp
        | Source::Header(_)
        | Source::Cookie(_)
        | Source::Query(_)
        | Source::Bearer
        | Source::BasicUser
        | Source::Jwt(_)
        | Source::Host
        | Source::TlsSni
        | Source::TlsClient
        | Source::Path
        | Source::Method
        | Source::Route
        | Source::PathSegment(_)
        | Source::Class(_)
        | Source::FirstClass(_)
        | Source::Shard { .. } => None,
    }
}

/// The host in a URL, or in a host with a port. A user and a password before it are left out.
fn bare_host(text: &str) -> &str {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match host.find(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Whether a host has a port behind it. An address of IPv6 has its colons in brackets.
fn is_with_port(host: &str) -> bool {
    host.rsplit(']').next().is_some_and(|rest| rest.contains(':'))
}

/// An address, or the network of one client as logs and answers show it (`2001:db8:1:2::/64`).
fn address_of(text: &str, ipv6_prefix: u8) -> Option<IpAddr> {
    let network = |network: IpNet| match network {
        IpNet::V4(network) => network.prefix_len() == 32,
        IpNet::V6(network) => network.prefix_len() == ipv6_prefix,
    };
    let of_network = || text.parse::<IpNet>().ok().filter(|parsed| network(*parsed));
    text.parse().ok().or_else(|| of_network().map(|network| network.addr()))
}
