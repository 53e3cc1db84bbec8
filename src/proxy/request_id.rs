//! The identifier of a request: the one that a trusted peer sent, or a new one that no client can predict.
//!
//! An origin may take an identifier for unique and for something that its client could not know before. So a new one is
//! the SipHash-1-3 of 128 bits (Aumasson and Bernstein, 2012) of a number that counts up, under a key that the system's
//! randomness gave the process: whoever has seen any number of identifiers learns nothing about the others. The
//! generator that spreads load has a state of 64 bits, which an identifier of 128 bits would give away.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue};
use pingora_proxy::Session;
use siphasher::sip128::{Hash128, SipHasher13};

use super::context::Context;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Characters of an identifier besides letters and digits: those of UUIDs, of Base64 and of the identifiers of load
/// balancers. None of them has a meaning in a header, in JSON or in HTML.
const MARKS: &[u8] = b"-._~:/+=@";

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

/// Makes the identifiers of requests. One for the process: two of them would not know each other's key.
pub struct RequestIds {
    hasher: SipHasher13,
    /// How many were made.
    made: AtomicU64,
}

/// The identifier of a request in logs, here and at the origin.
#[derive(Clone, Debug)]
pub(super) enum RequestId {
    /// Taken from a trusted peer.
    FromPeer(HeaderValue),
    /// 128 bits, in hexadecimal digits.
    Generated([u8; 32]),
}

impl RequestIds {
    /// With a random key.
    ///
    /// # Errors
    ///
    /// The operating system gives no random bytes.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        Ok(Self::with_key(&key))
    }

    fn with_key(key: &[u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(key), made: AtomicU64::new(0) }
    }

    /// A new identifier.
    pub(super) fn generate(&self) -> RequestId {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let Hash128 { h1, h2 } = self.hasher.hash(&number.to_le_bytes());
        let mut digits = [0; 32];
        let bytes = h1.to_be_bytes().into_iter().chain(h2.to_be_bytes());
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&HEXADECIMAL[usize::from(byte)]);
        }
        RequestId::Generated(digits)
    }
}

impl RequestId {
    /// The identifier of a request: the trusted peer's, if all its characters are usual, else a new one. Once it is in the
    /// context it does not change.
    pub(super) fn of(ids: &RequestIds, session: &Session, ctx: &Context) -> Self {
        if let Some(id) = &ctx.request_id {
            return id.clone();
        }
        let plain = |id: &&HeaderValue| {
            let length = 1..=MAX_REQUEST_ID;
            let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || MARKS.contains(byte);
            length.contains(&id.len()) && id.as_bytes().iter().all(is_usual)
        };
        let from_peer = if ctx.peer_trusted() { session.get_header(X_REQUEST_ID) } else { None };
        from_peer.filter(plain).map_or_else(|| ids.generate(), |id| Self::FromPeer(id.clone()))
    }

    /// Puts the identifier of a request into its context.
    pub(super) fn assign(ids: &RequestIds, session: &Session, ctx: &mut Context) {
        if ctx.request_id.is_none() {
            ctx.request_id = Some(Self::of(ids, session, ctx));
        }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn number(id: &RequestId) -> u128 {
        u128::from_str_radix(id.as_str(), 16).unwrap()
    }

    #[test]
    fn an_identifier_is_32_digits_in_lower_case() {
        let ids = RequestIds::new().unwrap();
        for _ in 0..1_000 {
            let id = ids.generate();
            assert_eq!(id.as_bytes().len(), 32);
            assert!(id.as_bytes().iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b)));
        }
    }

    /// Each is new, no difference between two that follow each other comes twice, and each bit changes half of the time,
    /// whatever its neighbours do.
    #[test]
    fn identifiers_that_follow_each_other_are_in_no_relation() {
        const IDS: u32 = 20_000;
        let ids = RequestIds::with_key(b"0123456789abcdef");
        let all: Vec<u128> = (0..IDS).map(|_| number(&ids.generate())).collect();
        let distinct =
            |values: &mut dyn Iterator<Item = u128>| values.collect::<HashSet<_>>().len();
        assert_eq!(distinct(&mut all.iter().copied()), all.len());
        let pairs = || all.windows(2).map(|pair| (pair[0], pair[1]));
        assert_eq!(distinct(&mut pairs().map(|(a, b)| b.wrapping_sub(a))), all.len() - 1);
        assert_eq!(distinct(&mut pairs().map(|(a, b)| a ^ b)), all.len() - 1);
        for bit in 0..128 {
            let changes = pairs().filter(|(a, b)| (a ^ b) >> bit & 1 == 1).count();
            // Six standard deviations.
            assert!(changes.abs_diff(IDS as usize / 2) < 425, "bit {bit}: {changes}");
        }
    }

    #[test]
    fn identifiers_depend_on_the_key_and_on_no_other_generator() {
        let made = |key| {
            fastrand::seed(7);
            number(&RequestIds::with_key(key).generate())
        };
        assert_ne!(made(b"0123456789abcdef"), made(b"0123456789abcdeg"));
        let random = || {
            fastrand::seed(7);
            number(&RequestIds::new().unwrap().generate())
        };
        assert_ne!(random(), random());
    }
}
