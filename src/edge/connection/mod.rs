//! One connection of a client, from its first byte to its last.
//!
//! The framework serves requests; this room does what comes before and between them: the permit, the PROXY header, the
//! TLS handshake, and the bytes of every HTTP/1 head, each with a deadline. (The framework would wait for heads without
//! one, and would answer heads that its parser refuses by itself, uncounted.) It does not know routes or limits. What
//! must always hold: each step before a request has a deadline, and a head is scanned before any parser sees it.

mod admit;
mod head_search;
mod http1;
mod idle_wait;
mod proxy_header;
mod proxy_protocol;
mod server;

pub use proxy_protocol::{
    InvalidProxyHeader, MAX_PROXY_V1_BYTES, MAX_PROXY_V2_BYTES, PROXY_SIGNATURE_BYTES,
    PROXY_V2_FIXED_BYTES, ProxySource, ProxyVersion, parse_proxy_header, proxy_v2_size,
    proxy_version,
};
pub(crate) use server::{ConnectionServer, ListenerContext};
