//! Why the proxy itself refuses: the closed list of the reasons in metrics and logs.

/// Why a request or a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The head violates the syntax of HTTP/1: line ends, names, control bytes.
    Syntax,
    /// A version of HTTP other than 1.0, 1.1 and 2.
    Version,
    /// A target other than origin form, absolute form with the host of `Host`, or `OPTIONS *`.
    Target,
    /// A path that origins may read in different ways, or that is not valid.
    Path,
    /// No host, two hosts, or a host that is not valid.
    Host,
    /// A host for which a new connection would be served a better certificate.
    Misdirected,
    /// A method that is not in the list of known methods.
    Method,
    /// A length or transfer coding that readers may understand differently, or a broken chunk.
    Framing,
    /// `Connection` nominates a field that belongs to the request.
    ConnectionField,
    /// The name of a field that an origin may read as the name of a field with a meaning here.
    AmbiguousField,
    /// A field names another method than the request's.
    MethodOverride,
    /// A larger head than is allowed.
    HeaderSize,
    /// More header fields than are allowed.
    HeaderFields,
    /// The head did not come in time.
    HeaderTimeout,
    /// A larger body than is allowed.
    BodySize,
    /// The body comes, or the answer is taken, more slowly than is allowed.
    BodyRate,
    /// No key where the policy insists on one.
    MissingKey,
    /// A key that occurs more than once.
    RepeatedKey,
    /// A key that readers may decode in different ways, or not at all.
    UnreadableKey,
    /// A parameter or cookie that decides the route, and that readers may decode in different ways, or not at all.
    UnreadableCondition,
    /// No route matches.
    NoRoute,
    /// More connections than are allowed, in all or of this client.
    Connections,
    /// The client is banned, by a penalty that refuses connections.
    Banned,
    /// No PROXY header where one is required, a broken one, or one from a peer that is not trusted.
    ProxyProtocol,
    /// The client begins more TLS handshakes than is allowed.
    Handshakes,
    /// TLS could not be agreed on in time.
    TlsHandshake,
    /// The client's certificate is missing or not to be trusted, or a reload has replaced who signs it.
    ClientCertificate,
    /// The client has reset more HTTP/2 streams than is allowed.
    H2Resets,
    /// The client does not read its answer, whose memory is needed.
    Memory,
}

impl RejectReason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 29] = [
        Self::Syntax,
        Self::Version,
        Self::Target,
        Self::Path,
        Self::Host,
        Self::Misdirected,
        Self::Method,
        Self::Framing,
        Self::ConnectionField,
        Self::AmbiguousField,
        Self::MethodOverride,
        Self::HeaderSize,
        Self::HeaderFields,
        Self::HeaderTimeout,
        Self::BodySize,
        Self::BodyRate,
        Self::MissingKey,
        Self::RepeatedKey,
        Self::UnreadableKey,
        Self::UnreadableCondition,
        Self::NoRoute,
        Self::Connections,
        Self::Banned,
        Self::ProxyProtocol,
        Self::Handshakes,
        Self::TlsHandshake,
        Self::ClientCertificate,
        Self::H2Resets,
        Self::Memory,
    ];

    /// The word in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syntax => "syntax",
            Self::Version => "version",
            Self::Target => "target",
            Self::Path => "path",
            Self::Host => "host",
            Self::Misdirected => "misdirected",
            Self::Method => "method",
            Self::Framing => "framing",
            Self::ConnectionField => "connection_field",
            Self::AmbiguousField => "ambiguous_field",
            Self::MethodOverride => "method_override",
            Self::HeaderSize => "header_size",
            Self::HeaderFields => "header_fields",
            Self::HeaderTimeout => "header_timeout",
            Self::BodySize => "body_size",
            Self::BodyRate => "body_rate",
            Self::MissingKey => "missing_key",
            Self::RepeatedKey => "repeated_key",
            Self::UnreadableKey => "unreadable_key",
            Self::UnreadableCondition => "unreadable_condition",
            Self::NoRoute => "no_route",
            Self::Connections => "connections",
            Self::Banned => "banned",
            Self::ProxyProtocol => "proxy_protocol",
            Self::Handshakes => "handshakes",
            Self::TlsHandshake => "tls_handshake",
            Self::ClientCertificate => "client_certificate",
            Self::H2Resets => "h2_resets",
            Self::Memory => "memory",
        }
    }

    /// The status of the answer, unless the policy sets another one. A connection that is refused as a whole is closed
    /// without an answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::Method => 501,
            Self::Version => 505,
            Self::HeaderSize | Self::HeaderFields => 431,
            Self::HeaderTimeout | Self::BodyRate => 408,
            Self::BodySize => 413,
            Self::NoRoute => 404,
            Self::Connections | Self::Memory => 503,
            // A new connection shows its certificate again, or gets a better one.
            Self::Misdirected | Self::ClientCertificate => 421,
            Self::Banned | Self::Handshakes => 429,
            Self::Syntax
            | Self::Target
            | Self::Path
            | Self::Host
            | Self::Framing
            | Self::ConnectionField
            | Self::AmbiguousField
            | Self::MethodOverride
            | Self::MissingKey
            | Self::RepeatedKey
            | Self::UnreadableKey
            | Self::UnreadableCondition
            | Self::ProxyProtocol
            | Self::TlsHandshake
            | Self::H2Resets => 400,
        }
    }
}
