use tollgate::proxy::{Framing, Length, Reason};

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
    // A body that has ended is the shortest one there is; what is refused begins with none.
    let ends = end_of_chunks(bytes);
    match read(Length::Chunked, bytes, bytes.len()) {
        Ok((end, true)) => assert_eq!(Some(end), ends),
        Ok((taken, false)) => assert_eq!((taken, ends), (bytes.len(), None)),
        Err(_) => assert_eq!(ends, None),
    }
}

/// How many bytes a body takes, whether it has ended: told in two pieces.
fn read(length: Length, bytes: &[u8], cut: usize) -> Result<(usize, bool), Reason> {
    let mut framing = Framing::new(length);
    let first = framing.take(&bytes[..cut])?;
    if first < cut {
        assert!(framing.is_done(), "bytes are left of what has not ended");
        return Ok((first, true));
    }
    let second = framing.take(&bytes[cut..])?;
    Ok((first + second, framing.is_done()))
}

/// Where the chunked body ends that these bytes begin with (RFC 9112, section 7.1), if one does.
fn end_of_chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = line(&bytes[at..])?;
        let mut parts = line.splitn(2, |byte| *byte == b';');
        let (digits, extension) = (parts.next()?, parts.next().unwrap_or_default());
        let is_size = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~');
        if !is_size || extension.len() > MAX_EXTENSION || !extension.iter().all(is_text) {
            return None;
        }
        let size = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        // The framework reads the same number, up to the same place.
        let framework = httparse::parse_chunk_size(&bytes[at..]);
        assert_eq!(framework, Ok(httparse::Status::Complete((line.len() + 2, size))));
        at += line.len() + 2;
        if size == 0 {
            break;
        }
        at = at.checked_add(usize::try_from(size).ok()?)?;
        bytes.get(at..)?.strip_prefix(b"\r\n")?;
        at += 2;
    }
    let mut trailer = 0;
    loop {
        let line = line(&bytes[at..])?;
        at += line.len() + 2;
        if line.is_empty() {
            return Some(at);
        }
        trailer += line.len();
        let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        if trailer > MAX_TRAILER || !line.iter().all(is_text) {
            return None;
        }
    }
}

/// What stands before the first CR LF.
fn line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(&bytes[..end])
}
