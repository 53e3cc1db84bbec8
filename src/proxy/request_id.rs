//! The identifier of a request: the one that a trusted peer sent, or a new random one.

use http::{HeaderName, HeaderValue};
use pingora_proxy::Session;

use super::context::Context;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest identifier of a trusted peer that is passed on, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// The two digits of every byte.
static HEXADECIMAL: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [DIGITS[byte >> 4], DIGITS[byte & 0xf]];
        byte += 1;
    }
    pairs
};

/// The identifier of a request in logs, here and at the origin.
#[derive(Clone, Debug)]
pub(super) enum RequestId {
    /// Taken from a trusted peer.
    FromPeer(HeaderValue),
    /// 128 random bits, in hexadecimal digits.
    Generated([u8; 32]),
}

impl RequestId {
    /// The identifier of a request: the trusted peer's, if it is plain ASCII, else a new one. Once it is in the context
    /// it does not change.
    pub(super) fn of(session: &Session, ctx: &Context) -> Self {
        if let Some(id) = &ctx.request_id {
            return id.clone();
        }
        let plain = |id: &&HeaderValue| {
            let length = 1..=MAX_REQUEST_ID;
            length.contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        let from_peer = if ctx.peer_trusted() { session.get_header(X_REQUEST_ID) } else { None };
        from_peer.filter(plain).map_or_else(Self::generate, |id| Self::FromPeer(id.clone()))
    }

    /// A new random identifier.
    pub(super) fn generate() -> Self {
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(fastrand::u128(..).to_be_bytes()) {
            pair.copy_from_slice(&HEXADECIMAL[usize::from(byte)]);
        }
        Self::Generated(digits)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::FromPeer(id) => id.as_bytes(),
            Self::Generated(digits) => digits,
        }
    }

    /// The identifier as logs show it.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}
