//! What nodes of a fleet write to each other: a chunk of counts, as text with a checksum.
//!
//! ```text
//!   base64( form, version, time, heard, limits: tag.., records: limit, key, window, current, previous.., checksum )
//! ```
//!
//! Numbers are little-endian. The checksum is keyed by the secret of the keys and covers the node and the number of the
//! chunk, so a store, or a node with another secret, cannot make counts up or pass one node's counts off as another's.
//! What must always hold: whatever a store says, reading it ends in records or in an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::heard::Heard;
use crate::clock::Nanos;
use crate::limit::{MICROSECOND, WindowPair};
use crate::policy::{KeyHash, KeySecret};

/// The first byte of a chunk. A later form has another one.
const FORM: u8 = 2;

/// Bytes of the checksum.
const CHECKSUM: usize = 16;

/// Bytes of one record.
const RECORD: usize = 2 + 16 + 12;

/// The most records of a chunk. With a limit of its own for each, a chunk has 36 KiB of text.
pub(super) const MAX_RECORDS: usize = 700;

/// What a node counted of a key under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountRecord {
    pub(super) name: CountName,
    pub(super) counted: WindowPair,
}

/// The key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CountName {
    /// What nodes call the limit.
    pub(super) tag: u64,
    pub(super) key: KeyHash,
}

/// What a node writes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountChunk {
    /// Grows with each chunk of a node: of two records of a key, the one with the higher version holds.
    pub(super) version: u64,
    /// When it was written, by the node's earliest reading of the shared time, in whole microseconds.
    pub(super) at: Nanos,
    /// What its node had heard of before it counted.
    pub(super) heard: Heard,
    pub(super) records: Vec<CountRecord>,
}

/// Why a chunk is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkError {
    /// The checksum is another one: of a node with another key secret, or made up.
    Checksum,
    /// A later version of this program wrote it.
    Form,
    /// Its contents make no sense.
    Contents,
}

/// Where a chunk is in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkAddress {
    pub(super) node: u64,
    pub(super) number: u16,
}

impl CountChunk {
    /// Its text, at most [`MAX_RECORDS`] records of it.
    pub(super) fn encode(&self, address: ChunkAddress, secret: &KeySecret) -> String {
        let records = &self.records[..self.records.len().min(MAX_RECORDS)];
        let mut tags: Vec<u64> = records.iter().map(|record| record.name.tag).collect();
        tags.sort_unstable();
        tags.dedup();
        let mut bytes = vec![FORM];
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.at.get() / MICROSECOND.get()).to_le_bytes());
        [self.heard.changes, self.heard.bans]
            .iter()
            .for_each(|part| bytes.extend(part.to_le_bytes()));
        bytes.extend((tags.len() as u16).to_le_bytes());
        tags.iter().for_each(|tag| bytes.extend(tag.to_le_bytes()));
        for CountRecord { name, counted } in records {
            // Every tag is in the list.
            let limit = tags.binary_search(&name.tag).unwrap_or_default() as u16;
            let (window, current, previous) = counted.counts();
            bytes.extend(limit.to_le_bytes());
            bytes.extend(name.key.high.to_le_bytes());
            bytes.extend(name.key.low.to_le_bytes());
            [window, current, previous].iter().for_each(|part| bytes.extend(part.to_le_bytes()));
        }
        let checksum = address.checksum(&bytes, secret);
        bytes.extend(checksum);
        STANDARD_NO_PAD.encode(bytes)
    }

    /// Reads a text.
    pub(super) fn decode(
        text: &str,
        address: ChunkAddress,
        secret: &KeySecret,
    ) -> Result<Self, ChunkError> {
        let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| ChunkError::Contents)?;
        let (bytes, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(ChunkError::Contents)?;
        match bytes.first() {
            Some(&FORM) => {}
            Some(_) => return Err(ChunkError::Form),
            None => return Err(ChunkError::Contents),
        }
        if address.checksum(bytes, secret) != *checksum {
            return Err(ChunkError::Checksum);
        }
        let mut reader = Reader(&bytes[1..]);
        reader.chunk().ok_or(ChunkError::Contents)
    }
}

impl ChunkAddress {
    fn checksum(self, bytes: &[u8], secret: &KeySecret) -> [u8; CHECKSUM] {
        let parts = [&self.node.to_le_bytes()[..], &self.number.to_le_bytes()[..], bytes];
        secret.fleet_checksum(&parts).to_le_bytes()
    }
}

/// Reads numbers from the front.
struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn chunk(&mut self) -> Option<CountChunk> {
        let version = self.u64()?;
        let at = MICROSECOND.saturating_mul(self.u64()?);
        let heard = Heard { changes: self.u64()?, bans: self.u64()? };
        let limits = self.u16()?;
        let tags: Vec<u64> = (0..limits).map(|_| self.u64()).collect::<Option<_>>()?;
        let mut records = Vec::with_capacity(self.0.len() / RECORD);
        while !self.0.is_empty() {
            let tag = *tags.get(usize::from(self.u16()?))?;
            let key = KeyHash { high: self.u64()?, low: self.u64()? };
            let counted = WindowPair::of_counts((self.u32()?, self.u32()?, self.u32()?));
            records.push(CountRecord { name: CountName { tag, key }, counted });
        }
        (records.len() <= MAX_RECORDS).then_some(CountChunk { version, at, heard, records })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: ChunkAddress = ChunkAddress { node: 7, number: 3 };

    fn secret(byte: u8) -> KeySecret {
        KeySecret::new([byte; 16])
    }

    fn chunk(records: usize) -> CountChunk {
        let record = |n: usize| CountRecord {
            name: CountName {
                tag: n as u64 % 5,
                key: KeyHash { high: n as u64, low: u64::MAX - n as u64 },
            },
            counted: WindowPair::of_counts((n as u32, u32::MAX - n as u32, 3)),
        };
        let records = (0..records).map(record).collect();
        let at = MICROSECOND.saturating_mul(1_234_567);
        CountChunk { version: 9, at, heard: Heard { changes: 1 << 40, bans: 1 << 50 }, records }
    }

    #[test]
    fn a_chunk_is_read_as_it_was_written() {
        for records in [0, 1, 5, MAX_RECORDS] {
            let chunk = chunk(records);
            let text = chunk.encode(ADDRESS, &secret(1));
            assert_eq!(CountChunk::decode(&text, ADDRESS, &secret(1)), Ok(chunk));
            assert!(text.len() <= 36 * 1024, "{}", text.len());
        }
    }

    #[test]
    fn a_chunk_of_another_node_number_or_secret_is_left_out() {
        let text = chunk(3).encode(ADDRESS, &secret(1));
        for (address, secret) in [
            (ChunkAddress { node: 8, ..ADDRESS }, secret(1)),
            (ChunkAddress { number: 4, ..ADDRESS }, secret(1)),
            (ADDRESS, secret(2)),
        ] {
            let read = CountChunk::decode(&text, address, &secret);
            assert_eq!(read, Err(ChunkError::Checksum));
        }
    }

    proptest! {
        #[test]
        fn a_changed_text_gives_no_other_counts(at in 0usize..200, byte in any::<u8>()) {
            let written = chunk(3);
            let mut text = written.encode(ADDRESS, &secret(1)).into_bytes();
            let at = at % text.len();
            text[at] = byte;
            if let Ok(text) = String::from_utf8(text)
                && let Ok(read) = CountChunk::decode(&text, ADDRESS, &secret(1))
            {
                prop_assert_eq!(read, written);
            }
        }

        #[test]
        fn bytes_with_a_true_checksum_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = [vec![FORM], bytes].concat();
            bytes.extend(ADDRESS.checksum(&bytes, &secret(1)));
            // It ends, which is what is tested.
            let _read = CountChunk::decode(&STANDARD_NO_PAD.encode(bytes), ADDRESS, &secret(1));
        }
    }
}
