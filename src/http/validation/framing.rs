//! Where the body of an HTTP/1 request ends: the length that its fields declare, and the state of
//! reading it.
//!
//! It is strict where readers differ: no list of lengths, no coding except a single `chunked`, and chunk lines that end in
//! CR LF. A body that ends for one reader and not for another would hide a request.

use super::reject_reason::RejectReason;

/// The declared length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// No body follows.
    None,
    /// This many bytes.
    Bytes(u64),
    /// Chunks up to an empty one (RFC 9112, section 7.1).
    Chunked,
}

/// The longest body that may be declared, in bytes: readers with signed counters hold no more.
const MAX_LENGTH: u64 = i64::MAX.unsigned_abs();

/// Reads the fields that declare a body, all lines of each.
pub(crate) fn length<'l>(
    is_http_11: bool,
    mut lengths: impl Iterator<Item = &'l [u8]>,
    mut codings: impl Iterator<Item = &'l [u8]>,
) -> Result<Length, RejectReason> {
    let (length, coding) = (lengths.next(), codings.next());
    if lengths.next().is_some() || codings.next().is_some() {
        return Err(RejectReason::Framing);
    }
    match (length, coding) {
        (None, None) => Ok(Length::None),
        (None, Some(coding)) if is_http_11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Length::Chunked)
        }
        (Some(digits), None) if digits.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok())
                .filter(|length| *length <= MAX_LENGTH)
                .map(Length::Bytes)
                .ok_or(RejectReason::Framing)
        }
        _ => Err(RejectReason::Framing),
    }
}

/// Bytes of a chunk's extensions, at most; no client is known to use them.
const MAX_EXTENSION: usize = 256;

/// Bytes of all trailer lines together, at most.
const MAX_TRAILER: usize = 8 * 1024;

/// Digits of a chunk's size: 15 hexadecimal ones stay below 2^60.
const MAX_DIGITS: u8 = 15;

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing(FramingState);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramingState {
    Done,
    Bytes(u64),
    /// In a chunk's size, after `digits` digits.
    Size {
        size: u64,
        digits: u8,
    },
    /// In a chunk's extension, after `length` bytes.
    Extension {
        size: u64,
        length: usize,
    },
    /// The line of a size must end here.
    SizeEnd {
        size: u64,
    },
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// In the trailer section: bytes so far, and bytes of the current line.
    Trailer {
        length: usize,
        line: usize,
    },
    TrailerLf {
        length: usize,
        line: usize,
    },
}

impl Framing {
    /// Before the first byte of a body.
    pub const fn new(length: Length) -> Self {
        Self(match length {
            Length::None | Length::Bytes(0) => FramingState::Done,
            Length::Bytes(bytes) => FramingState::Bytes(bytes),
            Length::Chunked => FramingState::Size { size: 0, digits: 0 },
        })
    }

    /// Whether the body has ended.
    pub const fn is_done(&self) -> bool {
        matches!(self.0, FramingState::Done)
    }

    /// How many of the bytes that follow belong to the body. Fewer than all of them only when the
    /// body ends there.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, RejectReason> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let left = (bytes.len() - at) as u64;
            match &mut self.0 {
                FramingState::Done => break,
                FramingState::Bytes(rest) | FramingState::Chunk(rest) => {
                    let taken = left.min(*rest);
                    *rest -= taken;
                    at += usize::try_from(taken).unwrap_or(usize::MAX);
                    match self.0 {
                        FramingState::Bytes(0) => self.0 = FramingState::Done,
                        FramingState::Chunk(0) => self.0 = FramingState::ChunkCr,
                        _ => {}
                    }
                }
                _ => {
                    self.0 = self.0.next(byte)?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }
}

impl FramingState {
    /// Reads one byte of what is between chunks.
    fn next(self, byte: u8) -> Result<Self, RejectReason> {
        Ok(match (self, byte) {
            (Self::Size { size, digits }, b'\r') if digits > 0 => Self::SizeEnd { size },
            (Self::Size { size, digits }, b';') if digits > 0 => {
                Self::Extension { size, length: 0 }
            }
            (Self::Size { size, digits }, digit) if digits < MAX_DIGITS => {
                let digit = char::from(digit).to_digit(16).ok_or(RejectReason::Framing)?;
                Self::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
            }
            (Self::Extension { size, .. }, b'\r') => Self::SizeEnd { size },
            (Self::Extension { size, length }, b'\t' | b' '..=b'~') if length < MAX_EXTENSION => {
                Self::Extension { size, length: length + 1 }
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Self::Trailer { length: 0, line: 0 },
            (Self::SizeEnd { size }, b'\n') => Self::Chunk(size),
            (Self::ChunkCr, b'\r') => Self::ChunkLf,
            (Self::ChunkLf, b'\n') => Self::Size { size: 0, digits: 0 },
            (Self::Trailer { length, line }, b'\r') => Self::TrailerLf { length, line },
            (Self::Trailer { length, line }, b'\t' | b' '..=b'~' | 0x80..)
                if length < MAX_TRAILER =>
            {
                Self::Trailer { length: length + 1, line: line + 1 }
            }
            (Self::TrailerLf { line: 0, .. }, b'\n') => Self::Done,
            (Self::TrailerLf { length, .. }, b'\n') => Self::Trailer { length, line: 0 },
            _ => return Err(RejectReason::Framing),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(length: Length, bytes: &[u8]) -> Result<(usize, bool), RejectReason> {
        let mut framing = Framing::new(length);
        framing.take(bytes).map(|taken| (taken, framing.is_done()))
    }

    #[test]
    fn a_body_ends_where_it_says() {
        assert_eq!(take(Length::None, b"GET"), Ok((0, true)));
        assert_eq!(take(Length::Bytes(3), b"abcGET"), Ok((3, true)));
        assert_eq!(take(Length::Bytes(3), b"ab"), Ok((2, false)));
        assert_eq!(take(Length::Chunked, b"3\r\nabc\r\n0\r\n\r\nGET"), Ok((13, true)));
        assert_eq!(take(Length::Chunked, b"3;a=b\r\nabc\r\n0\r\nT: x\r\n\r\nGET"), Ok((23, true)));
        assert_eq!(take(Length::Chunked, b"A\r\n0123"), Ok((7, false)));
    }

    #[test]
    fn chunks_that_readers_read_differently_are_refused() {
        for bytes in [
            &b"3\nabc\r\n0\r\n\r\n"[..],
            b"3 \r\nabc\r\n",
            b" 3\r\nabc\r\n",
            b"0x3\r\nabc\r\n",
            b"+3\r\nabc\r\n",
            b"\r\n",
            b"3\r\nabcd\r\n",
            b"3\r\nabc\n0\r\n\r\n",
            b"3\rabc",
            b"10000000000000000\r\n",
            b"0\r\n\n",
            b"0\r\nT: \x00\r\n\r\n",
            b";\r\n",
        ] {
            assert_eq!(take(Length::Chunked, bytes), Err(RejectReason::Framing), "{bytes:?}");
        }
    }

    #[test]
    fn a_body_in_pieces_ends_where_the_complete_body_ends() {
        let bytes = b"3;a\r\nabc\r\n1F\r\n0123456789012345678901234567890\r\n0\r\nT: x\r\n\r\nGET";
        let complete = take(Length::Chunked, bytes).unwrap();
        for cut in 0..bytes.len() {
            let mut framing = Framing::new(Length::Chunked);
            let first = framing.take(&bytes[..cut]).unwrap();
            let second = framing.take(&bytes[first..]).unwrap();
            assert_eq!((first + second, framing.is_done()), complete, "cut at {cut}");
        }
    }
}
