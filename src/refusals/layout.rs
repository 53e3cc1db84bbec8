//! How a refusal is laid out in the words of the ring.
//!
//! ```text
//!   word 0        the date of arrival
//!        1        the generation
//!        2, 3     the client's address, as one of IPv6
//!        4        status 16 | identifier's length 8 | reason 8 | flags 8 | prefix 8 | limits 8 | left out 8
//!        5        the route's number
//!        6..22    the identifier
//!        22..     seven words for each limit: key (two), limit and its size, remaining and cost,
//!                 rate and its plan or override, period, retry time and what the limit found
//! ```
//!
//! It stores numbers, and of texts only the identifier of the request. What must always hold: reading accepts any words,
//! because a reader may see a mixture of two records before it notices; no value of a request but its identifier and its
//! address is in a record, keys are hashes.

use super::names::AlgorithmNumber;
use super::record_ring::RingSlot;
use crate::clock::Nanos;
use crate::engine::VerdictKind;
use crate::policy::Tier;

/// The longest identifier in bytes: that of a trusted peer.
pub const MAX_ID_BYTES: usize = 128;

/// Limits of one record. A request with more is rare; those that refuse it come first, and the others are counted.
pub const MAX_RECORDED_LIMITS: usize = 4;

pub(super) const ID_WORDS: usize = MAX_ID_BYTES / 8;
pub(super) const META: usize = 4;
pub(super) const ROUTE: usize = 5;
pub(super) const ID: usize = 6;
pub(super) const LIMITS: usize = ID + ID_WORDS;
pub(super) const LIMIT_WORDS: usize = 7;

/// Words of a record.
pub(super) const RECORD_WORDS: usize = LIMITS + MAX_RECORDED_LIMITS * LIMIT_WORDS;

/// A slot that holds one refusal.
pub(super) type RefusalSlot = RingSlot<RECORD_WORDS>;

/// What else holds of a verdict, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CellFlags(u64);

impl CellFlags {
    /// A limit in shadow mode.
    pub(super) const SHADOW: Self = Self(1);
    /// A ban refuses, and nothing was counted.
    pub(super) const BANNED: Self = Self(1 << 1);
    /// The key is the client's address.
    pub(super) const ADDRESS: Self = Self(1 << 2);
    /// The numbers are those of a key that spent nothing, because nothing was counted.
    pub(super) const UNCOUNTED: Self = Self(1 << 3);
    /// The same request is refused for ever.
    const NEVER: Self = Self(1 << 4);
    /// The request has no key of the limit.
    pub(super) const KEYLESS: Self = Self(1 << 5);

    pub(super) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    pub(super) const fn with(self, flag: Self, holds: bool) -> Self {
        Self(if holds { self.0 | flag.0 } else { self.0 })
    }
}

/// Flags of a record.
pub(super) const AUTHENTICATED: u64 = 1;
pub(super) const DEGRADED: u64 = 1 << 1;

/// The last word of a limit: the retry time in milliseconds, and what the limit found.
pub(super) struct FoundWord {
    pub(super) kind: VerdictKind,
    pub(super) flags: CellFlags,
    pub(super) retry_after: Option<Nanos>,
}

/// Bits of the retry time. Milliseconds of 34 years fit; a rate has a period of a year at most.
const RETRY_BITS: u32 = 40;
const MAX_RETRY_MILLIS: u64 = (1 << RETRY_BITS) - 1;
const NANOS_PER_MILLI: u64 = 1_000_000;

impl FoundWord {
    /// retry 40 | unused 3 | flags 8 | source 2 | tier 1 | algorithm 4 | kind 6
    pub(super) fn word(&self, tier: Tier, algorithm: AlgorithmNumber, source: u64) -> u64 {
        let retry = self.retry_after.map_or(0, |left| left.get().div_ceil(NANOS_PER_MILLI));
        let flags = self.flags.with(CellFlags::NEVER, self.retry_after.is_none());
        let tier = u64::from(tier == Tier::Exact);
        let algorithm = u64::from(algorithm.0 & 0xf);
        retry.min(MAX_RETRY_MILLIS) << (64 - RETRY_BITS)
            | flags.0 << 13
            | source << 11
            | tier << 10
            | algorithm << 6
            | self.kind as u64
    }

    /// Whether the limit refuses: by its verdict, or because the request has no key of it. (A limit in shadow mode has a
    /// verdict of its own.)
    pub(super) fn refuses(&self) -> bool {
        matches!(
            self.kind,
            VerdictKind::Denied | VerdictKind::OverflowDenied | VerdictKind::DegradedDenied
        )
    }

    pub(super) fn of(word: u64) -> Self {
        let flags = CellFlags(word >> 13 & 0xff);
        let kind = VerdictKind::ALL.get((word & 0x3f) as usize).copied();
        let retry = Nanos::from_millis(word >> (64 - RETRY_BITS));
        Self {
            kind: kind.unwrap_or(VerdictKind::Denied),
            flags,
            retry_after: (!flags.has(CellFlags::NEVER)).then_some(retry),
        }
    }
}

/// Up to eight bytes of a text as a word.
pub(super) fn text_word(bytes: &[u8]) -> u64 {
    let padded = || {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(byte, text)| *byte = *text);
        word
    };
    u64::from_le_bytes(bytes.try_into().unwrap_or_else(|_| padded()))
}

pub(super) fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

pub(super) const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}
