//! Reads the record of a refused request back, or the few words of it that a search needs.
//!
//! What must always hold: reading accepts any words, because a reader may see a mixture of two records before it notices.

use std::net::{IpAddr, Ipv6Addr};

use super::layout::{
    AUTHENTICATED, CellFlags, DEGRADED, FoundWord, ID, LIMIT_WORDS, LIMITS, MAX_ID_BYTES,
    MAX_RECORDED_LIMITS, META, ROUTE, RefusalSlot, halves, text_word,
};
use super::names::{AlgorithmNumber, NameNumber};
use super::reason::RefusalReason;
use crate::clock::Nanos;
use crate::engine::VerdictKind;
use crate::limit::Rate;
use crate::policy::client::unmapped;
use crate::policy::{KeyHash, Tier};

/// A refusal as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRefusal {
    /// The identifier of the request.
    pub request_id: String,
    /// When it arrived, since the Unix epoch.
    pub date: Nanos,
    /// The number of the configuration that decided.
    pub generation: u64,
    /// Its client.
    pub client: IpAddr,
    /// The status of the answer.
    pub status: u16,
    /// Why it was refused.
    pub reason: RefusalReason,
    /// Its route.
    pub route: NameNumber,
    /// Whether the key that decided came from a credential.
    pub authenticated: bool,
    /// Whether a limit was judged while the shared store failed.
    pub degraded: bool,
    /// What its limits found, in the order of the route; of more than [`MAX_RECORDED_LIMITS`] those that refuse first.
    pub limits: Vec<RecordedLimit>,
    /// Limits for which there was no room.
    pub left_out: u8,
}

/// What one limit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedLimit {
    /// The limit.
    pub name: NameNumber,
    /// Its tier.
    pub tier: Tier,
    /// How it counts.
    pub algorithm: AlgorithmNumber,
    /// What it found for the key. `None`: the request has no key that it can judge.
    pub cell: Option<RecordedCell>,
}

/// What one limit found for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCell {
    /// The key.
    pub key: KeyHash,
    /// The verdict, as metrics count it.
    pub kind: VerdictKind,
    /// Units that a key which spent nothing can spend at once.
    pub size: u32,
    /// Units that are left. `None`: nothing was counted, because a ban, an override or a lack of room refused.
    pub remaining: Option<u32>,
    /// The cost of the request.
    pub cost: u32,
    /// The rate; requests in flight have none.
    pub rate: Option<Rate>,
    /// Which terms gave that rate.
    pub source: RecordedSource,
    /// The time from its arrival until the request can pass this limit; `None`: never.
    pub retry_after: Option<Nanos>,
    /// Whether the limit is in shadow mode for the key.
    pub is_shadow: bool,
    /// Whether a ban of the key refuses.
    pub is_banned: bool,
    /// Whether the key is the client's address.
    pub is_address: bool,
}

/// Which terms gave a key its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedSource {
    /// The limit's own.
    Own,
    /// A plan.
    Plan(NameNumber),
    /// An override of the configuration, by its index there.
    Override(u32),
    /// A rule that an operator made for the key.
    KeyRule,
}

/// Which refusals are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordFilter {
    /// Those of requests that arrived at this date or later.
    pub(super) since: Nanos,
    pub(super) route: Option<NameNumber>,
    pub(super) limit: Option<NameNumber>,
}

impl RecordFilter {
    /// Whether the record in a slot is looked for.
    pub(super) fn admits(&self, slot: &RefusalSlot) -> bool {
        let is_refused_by = |wanted: NameNumber| {
            let at = |index| LIMITS + index * LIMIT_WORDS;
            let is_wanted = |at: usize| halves(slot.word(at + 2)).0 == wanted.0;
            (0..limits(slot))
                .map(at)
                .any(|at| is_wanted(at) && FoundWord::of(slot.word(at + 6)).refuses())
        };
        slot.word(0) >= self.since.get()
            && self.route.is_none_or(|route| slot.word(ROUTE) == u64::from(route.0))
            && self.limit.is_none_or(is_refused_by)
    }
}

impl RecordedRefusal {
    /// The record in a slot, as far as its words say something.
    pub(super) fn read(slot: &RefusalSlot) -> Self {
        let meta = slot.word(META);
        let byte = |at: u32| (meta >> at & 0xff) as usize;
        let flags = meta >> 24;
        let reason = RefusalReason::ALL.get(byte(32));
        Self {
            request_id: id(slot),
            date: Nanos::new(slot.word(0)),
            generation: slot.word(1),
            client: address(slot),
            status: (meta >> 48) as u16,
            reason: reason.copied().unwrap_or(RefusalReason::Limit),
            route: NameNumber(slot.word(ROUTE) as u32),
            authenticated: flags & AUTHENTICATED != 0,
            degraded: flags & DEGRADED != 0,
            limits: (0..limits(slot)).map(|index| RecordedLimit::read(slot, index)).collect(),
            left_out: byte(0) as u8,
        }
    }
}

impl RecordedLimit {
    fn read(slot: &RefusalSlot, index: usize) -> Self {
        let at = LIMITS + index * LIMIT_WORDS;
        let (name, size) = halves(slot.word(at + 2));
        let word = slot.word(at + 6);
        let found = FoundWord::of(word);
        let cell = || {
            let (remaining, cost) = halves(slot.word(at + 3));
            let (rate, source) = halves(slot.word(at + 4));
            RecordedCell {
                key: KeyHash { high: slot.word(at), low: slot.word(at + 1) },
                kind: found.kind,
                size,
                remaining: (!found.flags.has(CellFlags::UNCOUNTED)).then_some(remaining),
                cost,
                rate: Rate::new(rate, Nanos::new(slot.word(at + 5))).ok(),
                source: match word >> 11 & 3 {
                    1 => RecordedSource::Plan(NameNumber(source)),
                    2 => RecordedSource::Override(source),
                    3 => RecordedSource::KeyRule,
                    _ => RecordedSource::Own,
                },
                retry_after: found.retry_after,
                is_shadow: found.flags.has(CellFlags::SHADOW),
                is_banned: found.flags.has(CellFlags::BANNED),
                is_address: found.flags.has(CellFlags::ADDRESS),
            }
        };
        Self {
            name: NameNumber(name),
            tier: if word >> 10 & 1 == 1 { Tier::Exact } else { Tier::Estimate },
            algorithm: AlgorithmNumber((word >> 6 & 0xf) as u8),
            cell: (!found.flags.has(CellFlags::KEYLESS)).then(cell),
        }
    }
}

/// A key that was refused, for the counts of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefusedKey {
    pub(super) limit: NameNumber,
    pub(super) key: KeyHash,
    /// The client's address and the bits of it that are the key, if it is the key.
    pub(super) address: Option<(IpAddr, u8)>,
}

/// The keys that a record names as refused. It reads fewer words than [`RecordedRefusal::read`], because it is called for
/// every record.
pub(super) fn refused_keys(slot: &RefusalSlot) -> [Option<RefusedKey>; MAX_RECORDED_LIMITS] {
    let count = limits(slot);
    std::array::from_fn(|index| {
        if index >= count {
            return None;
        }
        let at = LIMITS + index * LIMIT_WORDS;
        let found = FoundWord::of(slot.word(at + 6));
        let flags = found.flags;
        if !found.refuses() || flags.has(CellFlags::KEYLESS) {
            return None;
        }
        let is_address = flags.has(CellFlags::ADDRESS);
        Some(RefusedKey {
            limit: NameNumber(halves(slot.word(at + 2)).0),
            key: KeyHash { high: slot.word(at), low: slot.word(at + 1) },
            address: is_address.then(|| (address(slot), (slot.word(META) >> 16) as u8)),
        })
    })
}

/// Whether the record in a slot has this identifier.
pub(super) fn has_id(slot: &RefusalSlot, id: &[u8]) -> bool {
    let length = (slot.word(META) >> 40 & 0xff) as usize;
    let mut words = id.chunks(8).enumerate();
    length == id.len() && words.all(|(index, bytes)| slot.word(ID + index) == text_word(bytes))
}

/// How many limits the record in a slot has.
fn limits(slot: &RefusalSlot) -> usize {
    ((slot.word(META) >> 8 & 0xff) as usize).min(MAX_RECORDED_LIMITS)
}

fn id(slot: &RefusalSlot) -> String {
    let length = ((slot.word(META) >> 40 & 0xff) as usize).min(MAX_ID_BYTES);
    let words = (0..length.div_ceil(8)).map(|index| slot.word(ID + index));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn address(slot: &RefusalSlot) -> IpAddr {
    let bits = u128::from(slot.word(2)) << 64 | u128::from(slot.word(3));
    unmapped(IpAddr::V6(Ipv6Addr::from_bits(bits)))
}
