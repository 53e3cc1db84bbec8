//! The sources of key parts. A source reads one part of a request. Its tag and its text ([`fmt::Display`]) never
//! change: both are hashed into keys, so a change would reset counters.

use std::fmt;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

use super::jwt::Claim;
use super::part::KeyPart;
use super::{address, class, cookie, credentials, header, jwt, logged, query, shard, target};
use crate::policy::connection::canonical_client_name;
use crate::policy::{Class, Facts, LogValues, Route};
use crate::tokens::SignatureCheck;

/// Where a part of a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client's address, IPv6 cut to the configured prefix.
    ClientIp,
    /// The value of a header field.
    Header(HeaderName),
    /// The value of the first cookie of that name.
    Cookie(String),
    /// The decoded value of the query parameter of that name.
    Query(String),
    /// The token of `Authorization: Bearer`.
    Bearer,
    /// The user of `Authorization: Basic`.
    BasicUser,
    /// A claim of a signed token; its signature is checked.
    Jwt(Claim),
    /// The requested host.
    Host,
    /// The server name of the TLS handshake.
    TlsSni,
    /// The name in the certificate that the client showed.
    TlsClient,
    /// The canonical path.
    Path,
    /// The method.
    Method,
    /// The route's name.
    Route,
    /// The N-th segment of the path, from 1.
    PathSegment(usize),
    /// The name of this class, if the request is in it.
    Class(Arc<Class>),
    /// The name of the first of these classes that the request is in: every class of the file, or those of plans.
    FirstClass(Arc<[Arc<Class>]>),
    /// Another source, hashed to one of a number of buckets.
    Shard {
        /// What is hashed.
        of: Box<Source>,
        /// How many buckets.
        buckets: u32,
    },
}

impl Source {
    /// The sources that are one word in a configuration.
    pub const WORDS: [Self; 9] = [
        Self::ClientIp,
        Self::Bearer,
        Self::BasicUser,
        Self::Host,
        Self::TlsSni,
        Self::TlsClient,
        Self::Path,
        Self::Method,
        Self::Route,
    ];

    /// Reads this source in a request. If it is a claim, the token's signature is checked, unless it was before.
    pub fn part<'r>(&self, facts: &Facts<'r>, route: &'r Route) -> KeyPart<'r> {
        self.part_with(facts, route, SignatureCheck::Verify)
    }

    /// Reads this source in a request. `signatures`: whether the signature of a token that is not remembered is
    /// checked.
    pub fn part_with<'r>(
        &self,
        facts: &Facts<'r>,
        route: &'r Route,
        signatures: SignatureCheck,
    ) -> KeyPart<'r> {
        if let Some(logged) =
            facts.log().and_then(|log| self.logged(log, facts.headers, signatures))
        {
            return logged;
        }
        match self {
            Self::ClientIp => address::part(facts),
            Self::Header(name) => header::part(facts, name),
            Self::Cookie(name) => cookie::part(facts, name),
            Self::Query(name) => query::part(facts, name),
            Self::Bearer => credentials::bearer(facts),
            Self::BasicUser => credentials::basic_user(facts),
            Self::Jwt(claim) => jwt::part(facts, claim, signatures),
            Self::Host => KeyPart::of(facts.host.as_bytes()),
            Self::TlsSni => {
                KeyPart::of(facts.connection.server_name().unwrap_or_default().as_bytes())
            }
            Self::TlsClient => {
                KeyPart::of(facts.connection.client_name().unwrap_or_default().as_bytes())
            }
            Self::Path => {
                let rewrite = route.rewrite.as_ref();
                let path = rewrite.map_or(facts.path, |rewrite| rewrite.key_path(facts.path));
                KeyPart::of(path.as_bytes())
            }
            Self::Method => target::method(facts),
            Self::Route => KeyPart::of(route.name.as_bytes()),
            Self::PathSegment(n) => target::segment(facts, *n),
            Self::Class(_) | Self::FirstClass(_) => class::part(self.classes(), facts),
            Self::Shard { of, buckets } => {
                shard::part(of.part_with(facts, route, signatures), *buckets)
            }
        }
    }

    /// Reads this source in what a log says. `None`: it is in the facts.
    #[cold]
    fn logged<'r>(
        &self,
        log: &LogValues,
        headers: &HeaderMap,
        signatures: SignatureCheck,
    ) -> Option<KeyPart<'r>> {
        if log.token_failed() && signatures == SignatureCheck::Recall && self.claim().is_some() {
            // The proxy had not checked it either when it asked the limits that need no token.
            return Some(KeyPart::Unchecked);
        }
        let is_in_facts = match self {
            Self::Host if log.has_host() => return None,
            Self::Host => false,
            _ if !self.is_kept_out_of_logs() => return None,
            Self::Header(name) => log.has_header(name, headers),
            Self::Query(_) => log.has_query(),
            Self::Cookie(_) => log.has_header(&http::header::COOKIE, headers),
            // What it is of asks for itself.
            Self::Shard { .. } => true,
            _ => false,
        };
        logged::part(&self.to_string(), is_in_facts, log, signatures)
    }

    /// Whether no log of tollgate has the value: it may be a credential.
    pub fn is_kept_out_of_logs(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::TlsSni
            | Self::TlsClient => true,
            Self::Shard { of, .. } => of.is_kept_out_of_logs(),
            Self::ClientIp
            | Self::Host
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => false,
        }
    }

    /// Reads a value of a configuration as this source would read it in a request.
    pub(in crate::policy) fn read_configured<'p>(&self, part: &'p [u8]) -> KeyPart<'p> {
        match self {
            Self::Header(name) if *name == AUTHORIZATION => credentials::normalized(part),
            Self::Cookie(_) => cookie::value(part),
            Self::Host | Self::TlsSni => KeyPart::of(part.to_ascii_lowercase()),
            Self::TlsClient => match str::from_utf8(part).ok().and_then(canonical_client_name) {
                Some(name) => KeyPart::of(name.into_bytes()),
                None => KeyPart::of(part),
            },
            Self::ClientIp
            | Self::Header(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_)
            | Self::Shard { .. } => KeyPart::of(part),
        }
    }

    /// Whether a request can lack it. (A request of HTTP/1.1 or HTTP/2 always has a `host`; one of HTTP/1.0 may
    /// have none, and the part is absent then.)
    pub fn can_be_absent(&self) -> bool {
        match self {
            Self::ClientIp | Self::Path | Self::Method | Self::Route => false,
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::TlsSni
            | Self::TlsClient
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => true,
            Self::Shard { of, .. } => of.can_be_absent(),
        }
    }

    /// The header that the configuration names for it, if any.
    pub fn header_name(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name) => Some(name),
            Self::Jwt(claim) => claim.header_name(),
            Self::Shard { of, .. } => of.header_name(),
            Self::ClientIp
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Host
            | Self::TlsSni
            | Self::TlsClient
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => None,
        }
    }

    /// Whether it reads the path, which origins may read in different ways.
    pub fn reads_path(&self) -> bool {
        match self {
            Self::Path | Self::PathSegment(_) => true,
            Self::Class(_) | Self::FirstClass(_) => {
                self.classes().iter().any(|class| class.matches.reads_path())
            }
            Self::Shard { of, .. } => of.reads_path(),
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::TlsSni
            | Self::TlsClient
            | Self::Method
            | Self::Route => false,
        }
    }

    /// The classes that it asks, in order.
    pub fn classes(&self) -> &[Arc<Class>] {
        match self {
            Self::Class(class) => std::slice::from_ref(class),
            Self::FirstClass(classes) => classes,
            Self::Shard { of, .. } => of.classes(),
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::TlsSni
            | Self::TlsClient
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_) => &[],
        }
    }

    /// The claim of a signed token that it reads, if any.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Jwt(claim) => Some(claim),
            Self::Shard { of, .. } => of.claim(),
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Host
            | Self::TlsSni
            | Self::TlsClient
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => None,
        }
    }

    /// Whether it reads the certificate that a client showed.
    pub fn is_client_certificate(&self) -> bool {
        match self {
            Self::TlsClient => true,
            Self::Shard { of, .. } => of.is_client_certificate(),
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::TlsSni
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => false,
        }
    }

    /// Whether a client can freely choose the value.
    pub fn is_written_by_clients(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::BasicUser
            | Self::Bearer
            | Self::TlsSni => true,
            Self::Shard { of, .. } => of.is_written_by_clients(),
            Self::Jwt(_)
            | Self::TlsClient
            | Self::ClientIp
            | Self::Host
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => false,
        }
    }

    /// Whether an invented value is as good as a true one: each is a budget of its own, and origins do not check it as
    /// they check credentials.
    pub fn is_invented_freely(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::TlsSni => true,
            Self::ClientIp
            | Self::Bearer
            | Self::BasicUser
            | Self::Jwt(_)
            | Self::Host
            | Self::TlsClient
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_)
            | Self::Shard { .. } => false,
        }
    }

    /// Whether many clients have the same value.
    pub fn is_shared_by_clients(&self) -> bool {
        match self {
            Self::Host
            | Self::TlsSni
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_)
            | Self::Shard { .. } => true,
            Self::ClientIp
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Bearer
            | Self::BasicUser
            | Self::TlsClient
            | Self::Jwt(_) => false,
        }
    }

    pub(super) fn is_credential(&self) -> bool {
        match self {
            Self::Bearer | Self::BasicUser | Self::Jwt(_) | Self::TlsClient => true,
            Self::Header(name) => {
                let name = name.as_str();
                name == "authorization" || name.contains("api-key") || name.contains("token")
            }
            Self::Cookie(_) => true,
            Self::Shard { of, .. } => of.is_credential(),
            Self::ClientIp
            | Self::Query(_)
            | Self::Host
            | Self::TlsSni
            | Self::Path
            | Self::Method
            | Self::Route
            | Self::PathSegment(_)
            | Self::Class(_)
            | Self::FirstClass(_) => false,
        }
    }

    /// The kind of the source. It is hashed with each part, so that a cookie `203.0.113.9` is another key than
    /// that address.
    pub(super) const fn tag(&self) -> u8 {
        match self {
            Self::ClientIp => 1,
            Self::Header(_) => 2,
            Self::Cookie(_) => 3,
            Self::Query(_) => 4,
            Self::Bearer => 5,
            Self::BasicUser => 6,
            Self::Host => 7,
            Self::Path => 8,
            Self::Method => 9,
            Self::Route => 10,
            Self::PathSegment(_) => 11,
            Self::Shard { .. } => 12,
            Self::Jwt(_) => 13,
            Self::TlsSni => 14,
            Self::Class(_) => 15,
            Self::FirstClass(_) => 16,
            Self::TlsClient => 17,
        }
    }
}

/// The source as written in a configuration.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client_ip"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Bearer => f.write_str("bearer"),
            Self::BasicUser => f.write_str("basic_user"),
            Self::Jwt(claim) => write!(f, "jwt:{}", claim.wanted.name),
            Self::Host => f.write_str("host"),
            Self::TlsSni => f.write_str("tls_sni"),
            Self::TlsClient => f.write_str("tls_client"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::PathSegment(n) => write!(f, "path_segment:{n}"),
            Self::Class(class) => write!(f, "class:{}", class.name),
            Self::FirstClass(_) => f.write_str("class"),
            Self::Shard { of, buckets } => write!(f, "{{ shard: {of}, of: {buckets} }}"),
        }
    }
}
