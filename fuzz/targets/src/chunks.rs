use tollgate::http::{Framing, Length, RejectReason};

/// Most bytes of a chunk's extension.
const MAX_EXTENSION: usize = 256;

/// Most bytes of the trailer section without line ends.
const MAX_TRAILER: usize = 8 * 1024;

/// The bytes after a head, which begin with its body. It ends where a decoder of whole bodies ends it,
/// however the bytes are cut, and where the framework's decoder does.
pub fn chunks(bytes: &[u8]) {
    let size = bytes.len() as u64;
    for length in [0, 1, size / 2, size.saturating_sub(1), size, size + 1] {
        let whole = read(Length::Bytes(length), bytes, bytes.len());
        assert_eq!(whole, Ok((length.min(size) as usize, length <= size)));
    }
    assert_eq!(read(Length::None, bytes, bytes.len()), Ok((0, true)));
    for length in [Length::Bytes(size / 2), Length::Chunked] {
        let whole = read(length, bytes, bytes.len());
        for cut in super::cuts(bytes.len()) {
            assert_eq!(read(length, bytes, cut), whole, "cut at {cut}");
        }
    }
    let expected = match end_of_chunks(bytes) {
        End::Refused => Err(()),
        End::Open => Ok((bytes.len(), false)),
        End::At(end) => Ok((end, true)),
    };
    assert_eq!(read(Length::Chunked, bytes, bytes.len()).map_err(drop), expected);
}

/// How many bytes a body takes, whether it has ended: told in two pieces.
fn read(length: Length, bytes: &[u8], cut: usize) -> Result<(usize, bool), RejectReason> {
    let mut framing = Framing::new(length);
    let first = framing.take(&bytes[..cut])?;
    if first < cut {
        assert!(framing.is_done(), "bytes are left of what has not ended");
        return Ok((first, true));
    }
    let second = framing.take(&bytes[cut..])?;
    Ok((first + second, framing.is_done()))
}

/// What becomes of a chunked body.
enum End {
    Refused,
    /// It may still become one.
    Open,
    At(usize),
}

/// Where the chunked body ends that these bytes begin with (RFC 9112, section 7.1).
fn end_of_chunks(bytes: &[u8]) -> End {
    let mut at = 0;
    loop {
        let (line, is_whole) = line(&bytes[at..]);
        let Some(size) = size(line, is_whole).filter(|_| !bytes[at..].starts_with(b"\r")) else {
            return End::Refused;
        };
        if !is_whole {
            return End::Open;
        }
        // The framework reads the same number, up to the same place.
        let framework = httparse::parse_chunk_size(&bytes[at..]);
        assert_eq!(framework, Ok(httparse::Status::Complete((line.len() + 2, size))));
        at += line.len() + 2;
        if size == 0 {
            return end_of_trailer(bytes, at);
        }
        let rest = bytes[at..].get(usize::try_from(size).unwrap()..).unwrap_or_default();
        match rest {
            [b'\r', b'\n', ..] => at = bytes.len() - rest.len() + 2,
            [] | [b'\r'] => return End::Open,
            _ => return End::Refused,
        }
    }
}

fn end_of_trailer(bytes: &[u8], mut at: usize) -> End {
    let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    let mut length = 0;
    loop {
        let (line, is_whole) = line(&bytes[at..]);
        length += line.len();
        at += line.len() + 2;
        match (is_whole, line) {
            (true, []) => return End::At(at),
            _ if length > MAX_TRAILER || !line.iter().all(is_text) => return End::Refused,
            (true, _) => {}
            (false, _) => return End::Open,
        }
    }
}

/// The number in a line of digits and, behind a `;`, an extension. `None`: it is no such line, or no
/// beginning of one.
fn size(line: &[u8], is_whole: bool) -> Option<u64> {
    let mut parts = line.splitn(2, |byte| *byte == b';');
    let (digits, extension) = (parts.next()?, parts.next());
    let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~');
    let is_extension = extension
        .is_none_or(|extension| extension.len() <= MAX_EXTENSION && extension.iter().all(is_text));
    let is_begun = digits.is_empty() && extension.is_none() && !is_whole;
    match std::str::from_utf8(digits).ok()? {
        "" => is_begun.then_some(0),
        _ if !is_extension || digits.len() > 15 => None,
        text if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u64::from_str_radix(text, 16).ok()
        }
        _ => None,
    }
}

/// What stands before the first CR LF, or, where there is none yet, before a CR at the end.
fn line(bytes: &[u8]) -> (&[u8], bool) {
    match bytes.windows(2).position(|two| two == b"\r\n") {
        Some(end) => (&bytes[..end], true),
        None => (bytes.strip_suffix(b"\r").unwrap_or(bytes), false),
    }
}
