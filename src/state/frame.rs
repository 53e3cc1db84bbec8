//! A frame: the unit that a log is written and read in.
//!
//! ```text
//!   0      4      5       6         8        12         20         24
//!   │ tgs1 │ kind │ group │ version │ length │ sequence │ CRC-32   │ payload
//! ```
//!
//! Numbers are little-endian. The checksum (CRC-32 of IEEE 802.3) covers the 20 bytes before it and the payload.
//! Sequence numbers ascend through all logs of a directory, so a frame that is doubled or left over from an older file is
//! noticed.

use std::io;

/// The version of the format. A directory of another version is refused.
pub(super) const VERSION: u16 = 1;

pub(super) const HEADER_BYTES: usize = 24;

pub(super) const MAGIC: [u8; 4] = *b"tgs1";

/// The largest payload, in bytes. The largest cell is a log of 12,500 charges; it takes 200 KB.
pub const MAX_PAYLOAD: usize = 4 * 1024 * 1024;

/// The largest sequence number. No directory gets there; a larger one would leave none for the frames after it.
const MAX_SEQUENCE: u64 = u64::MAX / 2;

/// Groups of shards. A frame of cells belongs to one group, so that groups can be restored side by side.
pub const GROUPS: u8 = 8;

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of a log: the fingerprint of the key secret.
    Start = 1,
    /// The instant at which the frames after it were collected.
    Time = 2,
    /// The numbers of quotas that cells name from here on.
    Quotas = 3,
    /// Cells of one group of shards.
    Cells = 4,
    /// All rules that operators made for keys.
    Rules = 5,
    /// Bans and denials of keys.
    Bans = 6,
    /// Minutes of the traffic history.
    History = 7,
    /// Everything has been written since the start of this log.
    Complete = 8,
    /// The process ended in an orderly way: nothing was lost.
    CleanStop = 9,
    /// Cells of the confirm table; only on the way to a successor.
    Confirm = 10,
    /// Requests in flight; only on the way to a successor.
    InFlight = 11,
    /// Which node of a fleet the process is, and its time; only on the way to a successor.
    Fleet = 12,
}

impl FrameKind {
    const ALL: [Self; 12] = [
        Self::Start,
        Self::Time,
        Self::Quotas,
        Self::Cells,
        Self::Rules,
        Self::Bans,
        Self::History,
        Self::Complete,
        Self::CleanStop,
        Self::Confirm,
        Self::InFlight,
        Self::Fleet,
    ];
}

impl FrameKind {
    /// The kind of a number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Checks that a payload can be read again.
    ///
    /// # Errors
    /// It is larger than [`MAX_PAYLOAD`]: readers take such a frame for damage.
    pub fn check_payload(self, payload: &[u8]) -> io::Result<()> {
        let bytes = payload.len();
        if bytes <= MAX_PAYLOAD {
            return Ok(());
        }
        let what = format!(
            "a frame ({self:?}) of {bytes} bytes, of which at most {MAX_PAYLOAD} can be read again; this is a defect of tollgate"
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) group: u8,
    pub(super) length: usize,
    pub(super) sequence: u64,
    checksum: u32,
}

/// Why bytes are not the head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// It is not a frame.
    NoFrame,
    /// It is a frame of another version.
    OtherVersion(u16),
}

impl FrameHeader {
    /// Appends a frame to `out`.
    pub(super) fn write(
        out: &mut Vec<u8>,
        kind: FrameKind,
        group: u8,
        sequence: u64,
        payload: &[u8],
    ) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[kind as u8, group]);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&sequence.to_le_bytes());
        let checksum = checksum(&out[start..], payload);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(payload);
    }

    pub(super) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        if bytes[..4] != MAGIC {
            return Err(HeaderError::NoFrame);
        }
        let version = u16::from_le_bytes([bytes[6], bytes[7]]);
        if version != VERSION {
            return Err(HeaderError::OtherVersion(version));
        }
        let kind = FrameKind::of_number(bytes[4]);
        let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        let mut sequence = [0; 8];
        sequence.copy_from_slice(&bytes[12..20]);
        let sequence = u64::from_le_bytes(sequence);
        let checksum = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        match kind {
            Some(kind)
                if length <= MAX_PAYLOAD && bytes[5] < GROUPS && sequence <= MAX_SEQUENCE =>
            {
                Ok(Self { kind, group: bytes[5], length, sequence, checksum })
            }
            Some(_) | None => Err(HeaderError::NoFrame),
        }
    }

    /// Whether this head and the payload behind it are as they were written.
    pub(super) fn fits(&self, bytes: &[u8; HEADER_BYTES], payload: &[u8]) -> bool {
        checksum(&bytes[..20], payload) == self.checksum
    }
}

fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(payload);
    hasher.finalize()
}
