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
    client_name: Option<Box<str>>,
    /// The name of the listener that accepted it, if the listener has one.
    pub listener: Option<Arc<str>>,
    /// The port of https that its requests are redirected to.
    pub https_port: Option<u16>,
}

impl ConnectionFacts {
    /// A connection of which nothing is known: without TLS, or of another server that uses the library.
    pub const NONE: Self = Self {
        is_tls: false,
        server_name: None,
        client_name: None,
        listener: None,
        https_port: None,
    };

    /// A connection with TLS. `server_name`: what the client sent in its handshake (RFC 6066, section 3), at most 255
    /// bytes. One spelling is kept: lower case, without trailing dot. An address is no name.
    pub fn tls(server_name: Option<&str>) -> Self {
        let name = server_name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let name = name.filter(|name| !name.is_empty() && !is_address(name));
        Self {
            is_tls: true,
            server_name: name.map(|name| name.to_ascii_lowercase().into()),
            client_name: None,
            listener: None,
            https_port: None,
        }
    }

    /// The same, with the name in the certificate that the client showed ([`canonical_client_name`]).
    pub fn with_client_name(self, client_name: Option<String>) -> Self {
        Self { client_name: client_name.map(String::into_boxed_str), ..self }
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

    /// The name in the client's certificate, as [`canonical_client_name`] writes it. `None` if the client showed no
    /// certificate, or one that names nobody.
    pub fn client_name(&self) -> Option<&str> {
        self.client_name.as_deref()
    }
}

/// What a client's certificate can be named by: a kind of name, and how it is written.
///
/// A name carries its kind, so that no name of one kind can pose as a name of another one: authorities check a DNS name
/// in other ways than a common name.
pub const CLIENT_NAME_KINDS: [&str; 5] = ["uri:", "dns:", "email:", "ip:", "subject:"];

/// The one spelling of the name of a client's certificate: its kind, a colon, and the name. DNS names, and the domains of
/// e-mail addresses, are in lower case and without trailing dot; addresses as RFC 5952 writes them. `None` if the text has
/// none of the [kinds](CLIENT_NAME_KINDS), or no name.
pub fn canonical_client_name(text: &str) -> Option<String> {
    let kind = CLIENT_NAME_KINDS.into_iter().find(|kind| text.starts_with(kind))?;
    let name = &text[kind.len()..];
    let host = |host: &str| host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let name = match kind {
        "dns:" => host(name),
        "email:" => match name.rsplit_once('@') {
            Some((user, domain)) => format!("{user}@{}", host(domain)),
            None => name.to_owned(),
        },
        "ip:" => name.parse::<IpAddr>().ok()?.to_string(),
        // A URI is compared as it stands (SPIFFE IDs are), a subject too.
        _ => name.to_owned(),
    };
    (!name.is_empty()).then(|| format!("{kind}{name}"))
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
    fn a_client_name_has_a_single_spelling_and_kind() {
        for (text, expected) in [
            ("dns:A.Example.", Some("dns:a.example")),
            ("dns:a.example", Some("dns:a.example")),
            ("uri:spiffe://prod/ns/Web", Some("uri:spiffe://prod/ns/Web")),
            ("email:Ann.B@Example.COM", Some("email:Ann.B@example.com")),
            ("email:nobody", Some("email:nobody")),
            ("ip:2001:DB8:0:0::1", Some("ip:2001:db8::1")),
            ("ip:one", None),
            ("subject:CN=Ann,O=Acme", Some("subject:CN=Ann,O=Acme")),
            ("a.example", None),
            ("DNS:a.example", None),
            ("dns:", None),
            ("dns:.", None),
            ("", None),
        ] {
            assert_eq!(canonical_client_name(text).as_deref(), expected, "{text}");
            if let Some(once) = canonical_client_name(text) {
                assert_eq!(canonical_client_name(&once).as_ref(), Some(&once), "{text}");
            }
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
