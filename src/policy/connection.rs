//! What the connection of a request says about its client. It is known before any request, and every request on the
//! connection has the same facts.

use std::net::IpAddr;
use std::sync::Arc;

use http::uri::Authority;

/// The facts of a connection. The room that accepts connections fills them; keys and routes read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// Whether the client speaks TLS to this proxy.
    pub is_tls: bool,
    server_name: Option<Box<str>>,
    /// The name of the listener that accepted it, if the listener has one.
    pub listener: Option<Arc<str>>,
}

impl ConnectionFacts {
    /// A connection of which nothing is known: without TLS, or of another server that uses the library.
    pub const NONE: Self = Self { is_tls: false, server_name: None, listener: None };

    /// A connection with TLS. `server_name`: what the client sent in its handshake (RFC 6066, section 3), at most 255
    /// bytes. One spelling is kept: lower case, without trailing dot. An address is no name.
    pub fn tls(server_name: Option<&str>) -> Self {
        let name = server_name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let name = name.filter(|name| !name.is_empty() && !is_address(name));
        Self {
            is_tls: true,
            server_name: name.map(|name| name.to_ascii_lowercase().into()),
            listener: None,
        }
    }

    /// The same, accepted by the listener of this name.
    pub fn with_listener(self, listener: Option<Arc<str>>) -> Self {
        Self { listener, ..self }
    }

    /// The connection that a client opens for a URL of this scheme and authority: `https` is TLS, with the host as the
    /// server name.
    pub fn for_url(scheme: &str, authority: &str) -> Self {
        if !scheme.eq_ignore_ascii_case("https") {
            return Self::NONE;
        }
        let authority = authority.parse::<Authority>().ok();
        Self::tls(authority.as_ref().map(Authority::host))
    }

    /// The server name of the TLS handshake: lower case, without trailing dot. `None` without TLS or without a name.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }
}

/// Whether a name is an IP address, with or without the brackets of a URL.
fn is_address(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_server_name_are_equal() {
        for (sent, expected) in [
            (None, None),
            (Some(""), None),
            (Some("."), None),
            (Some("one.example"), Some("one.example")),
            (Some("ONE.example."), Some("one.example")),
            (Some("192.0.2.1"), None),
            (Some("2001:db8::1"), None),
            (Some("[2001:db8::1]"), None),
        ] {
            let facts = ConnectionFacts::tls(sent);
            assert_eq!((facts.is_tls, facts.server_name()), (true, expected), "{sent:?}");
        }
    }

    #[test]
    fn a_url_says_what_its_client_sends() {
        for (scheme, authority, expected) in [
            ("https", "One.example:8443", (true, Some("one.example"))),
            ("HTTPS", "one.example.", (true, Some("one.example"))),
            ("https", "192.0.2.1:8443", (true, None)),
            ("https", "[2001:db8::1]:8443", (true, None)),
            ("https", "not a host", (true, None)),
            ("http", "one.example", (false, None)),
            ("", "", (false, None)),
        ] {
            let facts = ConnectionFacts::for_url(scheme, authority);
            assert_eq!((facts.is_tls, facts.server_name()), expected, "{scheme}://{authority}");
        }
    }
}
