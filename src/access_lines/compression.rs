//! Decompresses logs. Each decoder has a window of its own and writes into the buffer of the reader, so that a small file
//! that unpacks to a large one takes time but no memory.

use std::fmt;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

/// The first bytes of a file by gzip (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The first bytes of a frame of zstd (RFC 8878, section 3.1.1).
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Programs whose files are not read, by the first bytes of what they write, each with the command that decompresses it.
const UNREAD: [(&[u8], &str); 4] = [
    (b"\xfd7zXZ", "xz -dc"),
    (b"BZh", "bzip2 -dc"),
    (b"\x04\x22\x4d\x18", "lz4 -dc"),
    (b"PK\x03\x04", "unzip -p"),
];

/// The command that decompresses a file which begins with this line and is not read here.
pub fn unread_compression(first_line: &[u8]) -> Option<&'static str> {
    let found = UNREAD.iter().find(|(magic, _)| first_line.starts_with(magic));
    found.map(|(_, command)| *command)
}

/// The largest window of zstd that is accepted, as a power of two: 128 MiB, which `zstd --ultra` stays within.
const MAX_ZSTD_WINDOW: u32 = 27;

/// How a log is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// It is plain text.
    None,
    /// By gzip, as a sequence of members.
    Gzip,
    /// By zstd, as a sequence of frames.
    Zstd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

/// Looks at the first bytes, and decompresses if they ask for it.
pub(super) fn open<'r>(
    mut input: impl Read + Send + 'r,
) -> io::Result<(Compression, Box<dyn Read + Send + 'r>)> {
    let mut magic = [0; ZSTD.len()];
    let length = read_full(&mut input, &mut magic)?;
    let input = io::Cursor::new(magic).take(length as u64).chain(input);
    Ok(if magic[..length].starts_with(&GZIP) {
        (Compression::Gzip, Box::new(MultiGzDecoder::new(input)))
    } else if magic[..length].starts_with(&ZSTD) {
        let mut decoder = zstd::stream::read::Decoder::new(input)?;
        decoder.window_log_max(MAX_ZSTD_WINDOW)?;
        (Compression::Zstd, Box::new(decoder))
    } else {
        (Compression::None, Box::new(input))
    })
}

/// Reads until the buffer is full or the input ends.
fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match input.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(bytes) => length += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
