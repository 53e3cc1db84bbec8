//! What the connection of a request says about its client. It is known before any request, and every request on the
//! connection has the same facts.

/// The facts of a connection. The room that accepts connections fills them; keys and routes read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// Whether the client speaks TLS to this proxy.
    pub is_tls: bool,
}

impl ConnectionFacts {
    /// A connection of which nothing is known: without TLS, or of another server that uses the library.
    pub const NONE: Self = Self { is_tls: false };
}
