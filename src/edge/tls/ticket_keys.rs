//! The keys of TLS session tickets: sealing, opening, rotation, and the export to a successor.
//!
//! A ticket is the session itself, sealed with a key that only this process and its successor know (RFC 8446, section
//! 4.6.1; RFC 5077 for TLS 1.2). A client that returns resumes its session, which saves the server a signature, and
//! the server stores no sessions. One pair of keys serves all listeners. It changes with time, because a stolen key can
//! decrypt recorded sessions that were resumed while it was in use (RFC 8446, appendix E.1; RFC 5077, section 5.5).
//!
//! ```text
//! ticket:          name of the key (16 bytes) | nonce (12) | session, sealed | tag (16)
//! authenticated:   name of the key (16 bytes) | binding (32)
//! ```
//!
//! The binding identifies the listener and its certificates ([`Certificates`](super::Certificates)); the keys do not
//! know what it means. What must always hold: a ticket opens only with the binding it was sealed with. Otherwise a
//! client could be led to a listener whose certificate it has never seen. Keys are never written to a file or a log;
//! a successor receives them over the private socket of the handover.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::clock::Nanos;

/// How long a key seals tickets, and how long after that it still opens them. Together half a day, as in rustls.
const KEY_PERIOD: Nanos = Nanos::from_secs(6 * 3_600);

/// How long a client may keep a ticket.
pub(super) const TICKET_LIFETIME_SECONDS: u32 = 12 * 3_600;

/// The longest ticket that is opened. A session without a client certificate takes some hundred bytes, most of them the
/// server name.
const MAX_TICKET: usize = 4 * 1024;

/// The longest text that [`TicketKeys::export`] returns: two keys of at most 100 bytes.
const MAX_EXPORT: usize = 256;

const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;

/// The system provides no randomness for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no randomness for the keys of session tickets")]
pub struct NoRandomness;

/// The ticket keys of the process. Shared by all listeners.
pub struct TicketKeys(ArcSwap<TicketKeyPair>);

/// The key that seals, and the one before it, which still opens. Times are monotonic.
#[derive(Clone)]
struct TicketKeyPair {
    current: Arc<TicketKey>,
    /// At this time another key takes over sealing.
    current_until: Nanos,
    previous: Option<Arc<TicketKey>>,
    /// At this time the previous key stops opening tickets.
    previous_until: Nanos,
}

struct TicketKey {
    /// Identifies the key in a ticket; not secret.
    name: [u8; NAME_LEN],
    secret: Zeroizing<[u8; SECRET_LEN]>,
    cipher: LessSafeKey,
}

/// A key as a predecessor exported it.
struct ImportedKey {
    key: TicketKey,
    until: Nanos,
}

impl TicketKeys {
    /// Random keys.
    pub fn new(now: Nanos) -> Result<Self, NoRandomness> {
        Ok(Self(ArcSwap::from_pointee(TicketKeyPair {
            current: Arc::new(TicketKey::random()?),
            current_until: now.saturating_add(KEY_PERIOD),
            previous: None,
            previous_until: Nanos::ZERO,
        })))
    }

    /// Replaces a key that has sealed for [`KEY_PERIOD`], and drops the previous key at its end. Call it periodically.
    pub fn rotate(&self, now: Nanos) {
        let keys = self.0.load();
        let is_expired = keys.current_until <= now;
        if !is_expired && (keys.previous.is_none() || now < keys.previous_until) {
            return;
        }
        let mut next = TicketKeyPair::clone(&keys);
        if next.previous_until <= now {
            next.previous = None;
        }
        if is_expired {
            let Ok(key) = TicketKey::random() else {
                // The current key stays in use until the system has randomness again.
                return;
            };
            next.previous = Some(std::mem::replace(&mut next.current, Arc::new(key)));
            next.previous_until = now.saturating_add(KEY_PERIOD);
            next.current_until = now.saturating_add(KEY_PERIOD);
        }
        self.0.store(Arc::new(next));
    }

    /// The keys for a successor: for each key `NAME:SECRET:SECONDS` (base64, base64, time left in use), separated by a
    /// space.
    pub fn export(&self, now: Nanos) -> Zeroizing<String> {
        let keys = self.0.load();
        let mut text = Zeroizing::new(String::with_capacity(MAX_EXPORT));
        let previous = keys.previous.iter().map(|key| (key, keys.previous_until));
        for (key, until) in std::iter::once((&keys.current, keys.current_until)).chain(previous) {
            if !text.is_empty() {
                text.push(' ');
            }
            let secret = Zeroizing::new(BASE64.encode(key.secret.as_slice()));
            let left = until.saturating_sub(now).secs();
            // Writing to a string cannot fail.
            let _ = write!(text, "{}:{}:{left}", BASE64.encode(key.name), *secret);
        }
        text
    }

    /// Continues with the keys of the previous process. Returns `false` and changes nothing if the text is not from
    /// [`Self::export`].
    pub fn adopt(&self, exported: &str, now: Nanos) -> bool {
        let keys: Option<Vec<_>> =
            exported.split(' ').map(|key| TicketKey::import(key, now)).collect();
        let mut keys = keys.unwrap_or_default().into_iter();
        let (Some(current), previous, None) = (keys.next(), keys.next(), keys.next()) else {
            return false;
        };
        let previous_until = previous.as_ref().map_or(Nanos::ZERO, |previous| previous.until);
        self.0.store(Arc::new(TicketKeyPair {
            current: Arc::new(current.key),
            current_until: current.until,
            previous: previous.map(|previous| Arc::new(previous.key)),
            previous_until,
        }));
        true
    }

    /// Seals a session as a ticket. `None` if the ticket would be too long or the system has no randomness.
    pub(super) fn seal(&self, binding: &[u8], session: &[u8]) -> Option<Vec<u8>> {
        let key = Arc::clone(&self.0.load().current);
        // Random, because a counter would reveal the number of tickets. A key seals far fewer than the 2^32 tickets
        // after which two random 96-bit nonces might be equal.
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let prefix = NAME_LEN + NONCE_LEN;
        let mut ticket = Vec::with_capacity(prefix + session.len() + CHACHA20_POLY1305.tag_len());
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let associated = authenticated_bytes(&key.name, binding);
        let body = ticket.get_mut(prefix..)?;
        let tag = key.cipher.seal_in_place_separate_tag(nonce, associated, body).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        (ticket.len() <= MAX_TICKET).then_some(ticket)
    }

    /// The session in a ticket. `None` if none of our keys sealed it with this binding.
    pub(super) fn open(&self, binding: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > MAX_TICKET {
            return None;
        }
        let (name, rest) = ticket.split_first_chunk::<NAME_LEN>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.0.load();
        let mut both = std::iter::once(&keys.current).chain(&keys.previous);
        let key = both.find(|key| key.name == *name)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut session = sealed.to_vec();
        let opened =
            key.cipher.open_in_place(nonce, authenticated_bytes(name, binding), &mut session);
        let length = opened.ok()?.len();
        session.truncate(length);
        Some(session)
    }
}

fn authenticated_bytes(name: &[u8], binding: &[u8]) -> Aad<Vec<u8>> {
    Aad::from([name, binding].concat())
}

impl TicketKey {
    fn random() -> Result<Self, NoRandomness> {
        let (mut name, mut secret) = ([0; NAME_LEN], Zeroizing::new([0; SECRET_LEN]));
        let random = SystemRandom::new();
        random.fill(&mut name).map_err(|_| NoRandomness)?;
        random.fill(&mut *secret).map_err(|_| NoRandomness)?;
        Self::new(name, secret).ok_or(NoRandomness)
    }

    /// Never `None` in practice: the cipher takes every secret of this length.
    fn new(name: [u8; NAME_LEN], secret: Zeroizing<[u8; SECRET_LEN]>) -> Option<Self> {
        let cipher = UnboundKey::new(&CHACHA20_POLY1305, &*secret).ok()?;
        Some(Self { name, secret, cipher: LessSafeKey::new(cipher) })
    }

    /// Parses one key of [`TicketKeys::export`].
    fn import(text: &str, now: Nanos) -> Option<ImportedKey> {
        let mut fields = text.split(':');
        let (name, secret, left) = (fields.next()?, fields.next()?, fields.next()?);
        let name = BASE64.decode(name).ok()?;
        let decoded = Zeroizing::new(BASE64.decode(secret).ok()?);
        let secret = Zeroizing::new(<[u8; SECRET_LEN]>::try_from(decoded.as_slice()).ok()?);
        let left = Nanos::from_secs(left.parse::<u32>().ok()?.into());
        if fields.next().is_some() || left > KEY_PERIOD {
            return None;
        }
        let key = Self::new(name.try_into().ok()?, secret)?;
        Some(ImportedKey { key, until: now.saturating_add(left) })
    }
}

impl fmt::Debug for TicketKeys {
    /// Shows no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &[u8] = &[1; 32];
    const ELSEWHERE: &[u8] = &[2; 32];

    fn hours(hours: u64) -> Nanos {
        Nanos::from_secs(hours * 3_600)
    }

    #[test]
    fn a_ticket_opens_where_it_was_sealed_and_nowhere_else() {
        let keys = TicketKeys::new(hours(0)).unwrap();
        let ticket = keys.seal(HERE, b"session").unwrap();
        assert_eq!(keys.open(HERE, &ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(keys.open(ELSEWHERE, &ticket), None);
        assert_eq!(TicketKeys::new(hours(0)).unwrap().open(HERE, &ticket), None, "another process");
        for byte in 0..ticket.len() {
            let mut forged = ticket.clone();
            forged[byte] ^= 1;
            assert_eq!(keys.open(HERE, &forged), None, "byte {byte}");
        }
        for length in 0..ticket.len() {
            assert_eq!(keys.open(HERE, &ticket[..length]), None, "{length} bytes");
        }
        assert_eq!(keys.open(HERE, &vec![0; 100_000]), None);
        assert!(!ticket.windows(7).any(|bytes| bytes == b"session"));
    }

    #[test]
    fn keys_change_every_six_hours_and_open_for_six_more() {
        let keys = TicketKeys::new(hours(0)).unwrap();
        let first = keys.seal(HERE, b"1").unwrap();
        let opens = |ticket: &[u8]| keys.open(HERE, ticket).is_some();
        keys.rotate(hours(5));
        assert_eq!(keys.seal(HERE, b"1").unwrap()[..NAME_LEN], first[..NAME_LEN]);
        keys.rotate(hours(6));
        let second = keys.seal(HERE, b"2").unwrap();
        assert_ne!(second[..NAME_LEN], first[..NAME_LEN]);
        keys.rotate(hours(11));
        assert!(opens(&first) && opens(&second));
        keys.rotate(hours(12));
        assert!(!opens(&first) && opens(&second));
        // The process did not run for a day.
        keys.rotate(hours(36));
        keys.rotate(hours(42));
        assert!(!opens(&second));
    }

    #[test]
    fn a_successor_goes_on_with_the_keys_and_their_time() {
        let old = TicketKeys::new(hours(0)).unwrap();
        let first = old.seal(HERE, b"1").unwrap();
        old.rotate(hours(6));
        let second = old.seal(HERE, b"2").unwrap();
        let exported = old.export(hours(8));
        assert!(exported.len() <= MAX_EXPORT, "{}", exported.len());
        // The successor has another monotonic clock.
        let new = TicketKeys::new(hours(100)).unwrap();
        assert!(new.adopt(&exported, hours(100)));
        let opens = |ticket: &[u8]| new.open(HERE, ticket).is_some();
        assert!(opens(&first) && opens(&second));
        assert_eq!(new.seal(HERE, b"3").unwrap()[..NAME_LEN], second[..NAME_LEN]);
        new.rotate(hours(104));
        assert!(!opens(&first) && opens(&second));
        assert_ne!(new.seal(HERE, b"3").unwrap()[..NAME_LEN], second[..NAME_LEN]);
    }

    #[test]
    fn an_invalid_export_changes_nothing() {
        let keys = TicketKeys::new(hours(0)).unwrap();
        let ticket = keys.seal(HERE, b"1").unwrap();
        let good = keys.export(hours(0)).to_string();
        let (key, _) = good.rsplit_once(':').unwrap();
        for text in [
            "",
            "x",
            ":::",
            &good[1..],
            key,
            &format!("{key}:x"),
            &format!("{key}:-1"),
            &format!("{key}:21601"),
            &format!("{good}:1"),
            &format!("{good} "),
            &format!("{good} {good} {good}"),
        ] {
            assert!(!keys.adopt(text, hours(0)), "{text:?}");
        }
        assert!(keys.open(HERE, &ticket).is_some());
    }
}
