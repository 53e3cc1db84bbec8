//! Which hosts and which web pages the admin listener answers.
//!
//! A web page can make a browser send requests to a loopback address, through a name of the page's own that resolves to
//! it (DNS rebinding). But a page cannot forge `Host` and `Origin`, so these two are checked.

use std::net::{IpAddr, SocketAddr};

use http::uri::Authority;
use http::{HeaderMap, StatusCode, Uri, header};

use crate::policy::client::unmapped;

/// The hosts under which the admin listener answers.
pub struct AdminAccess {
    /// The address of the admin listener.
    pub address: SocketAddr,
    /// Further names and addresses, in lower case, without ports.
    pub hosts: Vec<String>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    Host,
    Origin,
}

impl Foreign {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
        }
    }

    /// What an operator can do about it.
    pub(super) const fn cure(self) -> &'static str {
        match self {
            Self::Host => "this host is not admin.address, localhost or one of admin.hosts",
            Self::Origin => "a page of another origin may not ask; add its host to admin.hosts",
        }
    }
}

impl AdminAccess {
    /// Checks that no page of another origin sent the request: there is no `Origin`, or it names a host of ours.
    pub(super) fn check_origin(&self, headers: &HeaderMap) -> Result<(), Foreign> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let is_own = |origin: &header::HeaderValue| {
            let text = origin.to_str().ok()?;
            let authority =
                text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
            let named = bare_host(authority)?;
            Some(authority.eq_ignore_ascii_case(host) || self.is_listed(&named))
        };
        let all =
            headers.get_all(header::ORIGIN).iter().all(|origin| is_own(origin).unwrap_or(false));
        all.then_some(()).ok_or(Foreign::Origin)
    }

    /// Checks that every host that the request names is ours.
    pub(super) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Foreign> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let named = hosts.next().and_then(|host| host.to_str().ok()).is_some_and(|h| self.is_us(h));
        let absolute = uri.authority().is_none_or(|authority| self.is_us(authority.as_str()));
        if named && absolute && hosts.next().is_none() { Ok(()) } else { Err(Foreign::Host) }
    }

    /// Whether an authority names the admin listener. Ports are not compared: behind a forwarded port the client names
    /// another one, and a page that rebinds a name uses the right one anyway.
    fn is_us(&self, authority: &str) -> bool {
        let Some(host) = bare_host(authority) else {
            return false;
        };
        let address = host.parse::<IpAddr>().ok().map(unmapped);
        // A listener on every address cannot list its own. Any address is safe, because only names can be rebound.
        let is_address = address.is_some_and(|address| {
            let own = unmapped(self.address.ip());
            own.is_unspecified() || own == address
        });
        is_address || host == "localhost" || self.is_listed(&host)
    }

    fn is_listed(&self, host: &str) -> bool {
        self.hosts.iter().any(|listed| listed == host)
    }
}

/// The host of an authority in lower case, without port and brackets.
fn bare_host(authority: &str) -> Option<String> {
    let authority: Authority = authority.parse().ok().filter(|_| !authority.contains('@'))?;
    let host = authority.host();
    // `Authority` accepts any text as a port.
    let port = authority.as_str().get(host.len()..).unwrap_or_default();
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
        return None;
    }
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    Some(bare.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_ours_where_all_are_listened_on() {
        let access = |address: &str| AdminAccess {
            address: address.parse().unwrap(),
            hosts: vec!["admin.example".to_owned()],
        };
        for (address, host, expected) in [
            ("0.0.0.0:9900", "192.0.2.7:9900", true),
            ("[::]:9900", "[2001:db8::1]", true),
            ("[::]:9900", "192.0.2.7", true),
            ("0.0.0.0:9900", "rebound.example:9900", false),
            ("0.0.0.0:9900", "192.0.2.7.example", false),
            ("192.0.2.7:9900", "192.0.2.7", true),
            ("192.0.2.7:9900", "[::ffff:192.0.2.7]:1", true),
            ("192.0.2.7:9900", "192.0.2.8", false),
            ("192.0.2.7:9900", "localhost:8080", true),
            ("192.0.2.7:9900", "ADMIN.example:443", true),
            ("192.0.2.7:9900", "user@admin.example", false),
            ("192.0.2.7:9900", "", false),
            ("192.0.2.7:9900", "192.0.2.7:x", false),
        ] {
            assert_eq!(access(address).is_us(host), expected, "{host} at {address}");
        }
    }
}
