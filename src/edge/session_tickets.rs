//! TLS session tickets: a client that was here before resumes its session without a signature of ours.
//!
//! A ticket is the session itself, sealed with a key that only this process and its successor know
//! (RFC 8446, section 4.6.1; RFC 5077 for TLS 1.2). So nothing is kept for each session, and all
//! threads accept all tickets. One pair of keys serves all listeners, and changes with time: who
//! steals a key can read recorded sessions that were resumed while it was in use (RFC 8446, appendix
//! E.1; RFC 5077, section 5.5).
//!
//! ```text
//! ticket: name of the key (16 bytes) | nonce (12) | session, sealed | tag (16)
//! sealed for: name of the key | binding (32)
//! ```
//!
//! The binding says at which listener, with which certificates, the session began ([`Certificates`]).
//! A ticket is opened nowhere else: otherwise a client would be led to a listener whose certificate
//! it has never seen.
//!
//! Keys are never written to a file or a log. A successor is told them over the private socket of the
//! handover.
//!
//! [`Certificates`]: super::Certificates

use std::fmt::{self, Write as _};
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use super::certificates::CertificateStore;
use crate::clock::Nanos;

/// How long a key seals, and after that still opens. Together half a day, as rustls does.
const PERIOD: Nanos = Nanos::from_secs(6 * 3_600);

/// Seconds for which a client may keep a ticket.
const LIFETIME: u32 = 12 * 3_600;

/// The longest ticket that is opened. A session without a client's certificate takes some hundred bytes,
/// of which most are the server's name.
const MAX_TICKET: usize = 4 * 1024;

const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;

/// No randomness for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no randomness for the keys of session tickets")]
pub struct NoRandomness;

/// The keys of a process. Shared by all listeners.
pub struct TicketKeys(ArcSwap<Pair>);

/// Each opens what it has sealed.
#[derive(Clone)]
struct Pair {
    current: Arc<Key>,
    /// From then on (monotonic) another one seals.
    current_until: Nanos,
    previous: Option<Arc<Key>>,
    /// From then on (monotonic) nothing opens what it has sealed.
    previous_until: Nanos,
}

struct Key {
    /// Says which key sealed a ticket; no secret.
    name: [u8; NAME_LEN],
    secret: Zeroizing<[u8; SECRET_LEN]>,
    cipher: LessSafeKey,
}

impl TicketKeys {
    /// Random keys.
    pub fn new(now: Nanos) -> Result<Self, NoRandomness> {
        Ok(Self(ArcSwap::from_pointee(Pair {
            current: Arc::new(Key::random()?),
            current_until: now.saturating_add(PERIOD),
            previous: None,
            previous_until: Nanos::ZERO,
        })))
    }

    /// Puts a new key in the place of one that has sealed for long enough, and forgets the one before.
    /// To be called all the time.
    pub fn rotate(&self, now: Nanos) {
        let keys = self.0.load();
        let is_due = keys.current_until <= now;
        if !is_due && (keys.previous.is_none() || now < keys.previous_until) {
            return;
        }
        let mut next = Pair::clone(&keys);
        if next.previous_until <= now {
            next.previous = None;
        }
        if is_due {
            let Ok(key) = Key::random() else {
                // The key in use goes on until there is randomness again.
                return;
            };
            next.previous = Some(std::mem::replace(&mut next.current, Arc::new(key)));
            next.previous_until = now.saturating_add(PERIOD);
            next.current_until = now.saturating_add(PERIOD);
        }
        self.0.store(Arc::new(next));
    }

    /// The keys for a successor, as words without a blank in them: name and secret, and for how many
    /// seconds the key is still in use.
    pub fn export(&self, now: Nanos) -> Zeroizing<String> {
        let keys = self.0.load();
        let mut words = Zeroizing::new(String::with_capacity(MAX_EXPORT));
        let previous = keys.previous.iter().map(|key| (key, keys.previous_until));
        for (key, until) in std::iter::once((&keys.current, keys.current_until)).chain(previous) {
            if !words.is_empty() {
                words.push(' ');
            }
            let secret = Zeroizing::new(BASE64.encode(key.secret.as_slice()));
            // Writing to a string cannot fail.
            let left = until.saturating_sub(now).secs();
            let _ = write!(words, "{}:{}:{left}", BASE64.encode(key.name), *secret);
        }
        words
    }

    /// Goes on with the keys of the process before; false if the words are none of [`Self::export`].
    pub fn adopt(&self, words: &str, now: Nanos) -> bool {
        let keys: Option<Vec<_>> = words.split(' ').map(|word| Key::read(word, now)).collect();
        let mut keys = keys.unwrap_or_default().into_iter();
        let (Some((current, current_until)), previous, None) =
            (keys.next(), keys.next(), keys.next())
        else {
            return false;
        };
        let (previous, previous_until) = previous.unzip();
        self.0.store(Arc::new(Pair {
            current: Arc::new(current),
            current_until,
            previous: previous.map(Arc::new),
            previous_until: previous_until.unwrap_or(Nanos::ZERO),
        }));
        true
    }

    fn seal(&self, binding: &[u8], session: &[u8]) -> Option<Vec<u8>> {
        let key = Arc::clone(&self.0.load().current);
        // Random, since a counter would tell how many tickets there are. One key seals far fewer than
        // the 2^32 tickets after which two of 96 bits might be equal.
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let before = NAME_LEN + NONCE_LEN;
        let mut ticket = Vec::with_capacity(before + session.len() + CHACHA20_POLY1305.tag_len());
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed_for = sealed_for(&key.name, binding);
        let body = ticket.get_mut(before..)?;
        let tag = key.cipher.seal_in_place_separate_tag(nonce, sealed_for, body).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        (ticket.len() <= MAX_TICKET).then_some(ticket)
    }

    fn open(&self, binding: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
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
        let opened = key.cipher.open_in_place(nonce, sealed_for(name, binding), &mut session);
        let length = opened.ok()?.len();
        session.truncate(length);
        Some(session)
    }
}

/// The longest text that the keys make: two of at most 100 bytes.
const MAX_EXPORT: usize = 256;

fn sealed_for(name: &[u8], binding: &[u8]) -> Aad<Vec<u8>> {
    Aad::from([name, binding].concat())
}

impl Key {
    fn random() -> Result<Self, NoRandomness> {
        let (mut name, mut secret) = ([0; NAME_LEN], Zeroizing::new([0; SECRET_LEN]));
        let random = SystemRandom::new();
        random.fill(&mut name).map_err(|_| NoRandomness)?;
        random.fill(&mut *secret).map_err(|_| NoRandomness)?;
        Self::new(name, secret).ok_or(NoRandomness)
    }

    /// `None` never: the cipher takes every secret of this length.
    fn new(name: [u8; NAME_LEN], secret: Zeroizing<[u8; SECRET_LEN]>) -> Option<Self> {
        let cipher = UnboundKey::new(&CHACHA20_POLY1305, &*secret).ok()?;
        Some(Self { name, secret, cipher: LessSafeKey::new(cipher) })
    }

    /// A word of [`TicketKeys::export`], and until when the key is in use.
    fn read(word: &str, now: Nanos) -> Option<(Self, Nanos)> {
        let mut parts = word.split(':');
        let (name, secret, left) = (parts.next()?, parts.next()?, parts.next()?);
        let name = BASE64.decode(name).ok()?;
        let decoded = Zeroizing::new(BASE64.decode(secret).ok()?);
        let secret = Zeroizing::new(<[u8; SECRET_LEN]>::try_from(decoded.as_slice()).ok()?);
        let left = Nanos::from_secs(left.parse::<u32>().ok()?.into());
        if parts.next().is_some() || left > PERIOD {
            return None;
        }
        Some((Self::new(name.try_into().ok()?, secret)?, now.saturating_add(left)))
    }
}

/// Tickets of one listener.
pub(super) struct ListenerTickets {
    /// The keys of the process.
    pub keys: Arc<TicketKeys>,
    /// Knows what the tickets of a listener are bound to.
    pub certificates: Arc<CertificateStore>,
    /// Which listener.
    pub listener: usize,
}

impl ProducesTickets for ListenerTickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.certificates.binding(self.listener)?, plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.certificates.binding(self.listener)?, cipher)
    }
}

impl fmt::Debug for ListenerTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTickets").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl fmt::Debug for TicketKeys {
    /// Without the keys.
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
        // A process that stood still for a day.
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
        let words = old.export(hours(8));
        assert!(words.len() <= MAX_EXPORT, "{}", words.len());
        // Its clock began at another time.
        let new = TicketKeys::new(hours(100)).unwrap();
        assert!(new.adopt(&words, hours(100)));
        let opens = |ticket: &[u8]| new.open(HERE, ticket).is_some();
        assert!(opens(&first) && opens(&second));
        assert_eq!(new.seal(HERE, b"3").unwrap()[..NAME_LEN], second[..NAME_LEN]);
        new.rotate(hours(104));
        assert!(!opens(&first) && opens(&second));
        assert_ne!(new.seal(HERE, b"3").unwrap()[..NAME_LEN], second[..NAME_LEN]);
    }

    #[test]
    fn words_that_are_no_keys_change_nothing() {
        let keys = TicketKeys::new(hours(0)).unwrap();
        let ticket = keys.seal(HERE, b"1").unwrap();
        let good = keys.export(hours(0)).to_string();
        let (key, _) = good.rsplit_once(':').unwrap();
        for words in [
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
            assert!(!keys.adopt(words, hours(0)), "{words:?}");
        }
        assert!(keys.open(HERE, &ticket).is_some());
    }

    #[test]
    fn no_key_is_shown() {
        let keys = Arc::new(TicketKeys::new(hours(0)).unwrap());
        let tickets =
            ListenerTickets { keys: Arc::clone(&keys), certificates: Arc::default(), listener: 3 };
        assert_eq!(
            format!("{keys:?} {tickets:?}"),
            "TicketKeys { .. } ListenerTickets { listener: 3, .. }"
        );
    }
}
