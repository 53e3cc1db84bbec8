//! `clients`: which peers may state the address of a client, in which field, and how many bits of
//! an IPv6 address identify one client.

use http::HeaderName;

use crate::config::reader::Mapping;
use crate::config::scalars::{integer, network};
use crate::policy::client::{AddressHeader, ClientRules};

/// `clients`.
pub(crate) fn clients(root: &mut Mapping<'_>) -> ClientRules {
    let mut rules = ClientRules::default();
    let Some(mut map) = root.get("clients").and_then(|at| at.mapping()) else {
        return rules;
    };
    if let Some(at) = map.get("trusted_proxies") {
        rules.trusted_proxies =
            at.list_or_single().iter().filter_map(|at| at.parse(network)).collect();
    }
    rules.address_header = match map.get("address_header") {
        Some(at) => at.parse(address_header).flatten(),
        // Without a field a trusted load balancer would be the only client.
        None if rules.trusted_proxies.is_empty() => None,
        None => Some(AddressHeader::XForwardedFor),
    };
    if let Some(bits) = map.get("ipv6_prefix").and_then(|at| at.parse(integer(1, 128))) {
        rules.ipv6_prefix = bits as u8;
    }
    map.finish();
    rules
}

/// `None`: the peer is the client, whatever fields it sends.
fn address_header(text: &str) -> Result<Option<AddressHeader>, String> {
    match text.to_ascii_lowercase().as_str() {
        "none" => Ok(None),
        "x-forwarded-for" => Ok(Some(AddressHeader::XForwardedFor)),
        "forwarded" => Ok(Some(AddressHeader::Forwarded)),
        name => HeaderName::try_from(name)
            .map(|name| Some(AddressHeader::Single(name)))
            .map_err(|_| format!("{text:?} is not the name of a header; write x-forwarded-for, forwarded, x-real-ip or none")),
    }
}
