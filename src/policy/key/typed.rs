//! A key as a person writes it: in an override, or in a question to the admin API.
//!
//! The values become what the sources of the limit find in a request, so that the key has the same hash. It does not know
//! where the text comes from. No value stands for a key that no request can have (`never_found.rs`).

use std::net::IpAddr;

use ipnet::IpNet;

use super::part::KeyPart;
use super::source::Source;
use super::spec::KeySpec;
use super::{address, never_found};
use crate::policy::{CLIENT_NAME_KINDS, KeyValues, canonical_client_name};

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
    #[error("an empty value is never a key; leave it out")]
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
        _ if source.read_configured(text.as_bytes()) == KeyPart::Absent => {
            Err(TypedKeyError::Empty)
        }
        _ => match never_found::mistake(text, source) {
            Some((reason, cure)) => {
                let text = never_found::without_secret(text, source);
                Err(TypedKeyError::Form { text, reason, cure })
            }
            None => Ok(text.as_bytes().into()),
        },
    }
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
