//! The canonical form of a path, and whether readers may differ about it.
//!
//! Readers of paths differ: some merge `//`, some cut `;parameters`, some read `\` as `/`, some decode `%2F` before
//! they split. A proxy cannot know which reader is behind it. So a path that all readers read alike has one canonical
//! form, and any other path has a list of readings ([`super::readings`]): it must match alike under each of them, or it
//! is refused.

use std::borrow::Cow;

use memchr::memmem;

use super::bytes;
use super::reject_reason::RejectReason;

/// Positions of one path that origins may read in different ways, at most: escapes, `//`, `\`, `;`, dot segments. A URL
/// that is escaped into a path has about thirty. More would only cost time, since each position is looked at in every
/// reading.
const MAX_AMBIGUITIES: usize = 64;

/// The longest path, in bytes, that may have several readings: it is written again for each. Browsers and caches stop at
/// half of it.
const MAX_AMBIGUOUS_PATH: usize = 4096;

/// A path that may be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Canonical<'r> {
    /// The path that is matched first, and forwarded. Borrowed exactly when it equals the path as received.
    pub(crate) path: Cow<'r, str>,
    /// Whether origins may read it in more than one way.
    pub(crate) ambiguous: bool,
}

/// The canonical path: escapes of unreserved characters decoded once, other escapes in upper case
/// (RFC 3986, section 6.2.2), everything else as it came.
///
/// Refused, because no client sends them on purpose: control bytes, blanks, `#`, bytes that are not ASCII, broken
/// escapes, escapes of control bytes, encodings of ASCII that are no UTF-8, and more ambiguities than
/// [`MAX_AMBIGUITIES`]. (Segments `..` that climb above the root are refused as readings.)
pub(crate) fn canonical(raw: &str) -> Result<Canonical<'_>, RejectReason> {
    if !raw.starts_with('/') {
        return Err(RejectReason::Path);
    }
    if is_plain(raw.as_bytes()) {
        return Ok(Canonical { path: Cow::Borrowed(raw), ambiguous: false });
    }
    let mut ambiguities = Ambiguities::of_path(raw.len());
    // Decoding adds no slash, so all of them are in the raw path.
    for _ in memmem::find_iter(raw.as_bytes(), b"//") {
        ambiguities.add()?;
    }
    let path = decode_unreserved(raw, &mut ambiguities)?;
    for at in memmem::find_iter(path.as_bytes(), b"/.") {
        if matches!(path.as_bytes()[at + 2..], [] | [b'/', ..] | [b'.'] | [b'.', b'/', ..]) {
            ambiguities.add()?;
        }
    }
    Ok(Canonical { path, ambiguous: ambiguities.found > 0 })
}

/// Counts the positions that origins may read in different ways.
struct Ambiguities {
    found: usize,
    max: usize,
}

impl Ambiguities {
    /// A counter for a path of `size` bytes.
    const fn of_path(size: usize) -> Self {
        Self { found: 0, max: if size > MAX_AMBIGUOUS_PATH { 0 } else { MAX_AMBIGUITIES } }
    }

    fn add(&mut self) -> Result<(), RejectReason> {
        self.found += 1;
        if self.found > self.max { Err(RejectReason::Path) } else { Ok(()) }
    }
}

/// Whether a path is obviously its own canonical form, as nearly all are. The others are examined, and may turn out to
/// be.
fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    path.iter().all(|byte| {
        let after_slash = before == b'/' && matches!(byte, b'/' | b'.');
        before = *byte;
        bytes::of(*byte) & bytes::PLAIN != 0 && !after_slash
    })
}

/// Decodes the escapes that all readers decode alike, and counts the others as ambiguities.
fn decode_unreserved<'r>(
    raw: &'r str,
    ambiguities: &mut Ambiguities,
) -> Result<Cow<'r, str>, RejectReason> {
    let bytes = raw.as_bytes();
    let mut canonical = Vec::new();
    let (mut at, mut copied) = (0, 0);
    loop {
        at += bytes::lead(&bytes[at..], bytes::KEPT_IN_PATH);
        match bytes.get(at) {
            None => break,
            Some(b'%') => {
                let decoded = escape(bytes, at).ok_or(RejectReason::Path)?;
                if matches!(decoded, 0..=0x1f | 0x7f) || is_bad_ascii(bytes, at, decoded) {
                    return Err(RejectReason::Path);
                }
                let is_upper = !bytes[at + 1..at + 3].iter().any(u8::is_ascii_lowercase);
                if is_unreserved(decoded) || !is_upper {
                    if copied == 0 {
                        canonical.reserve(bytes.len());
                    }
                    if copied < at {
                        canonical.extend_from_slice(&bytes[copied..at]);
                    }
                    match is_unreserved(decoded) {
                        true => canonical.push(decoded),
                        false => canonical.extend_from_slice(&escaped(decoded)),
                    }
                    copied = at + 3;
                }
                if may_stand_bare(decoded) {
                    ambiguities.add()?;
                }
                at += 3;
            }
            Some(b'\\' | b';') => {
                ambiguities.add()?;
                at += 1;
            }
            Some(_) => return Err(RejectReason::Path),
        }
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(raw));
    }
    canonical.extend_from_slice(&bytes[copied..]);
    String::from_utf8(canonical).map(Cow::Owned).map_err(|_| RejectReason::Path)
}

/// The escape of a byte, in upper case.
pub(crate) const fn escaped(byte: u8) -> [u8; 3] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [b'%', DIGITS[(byte >> 4) as usize], DIGITS[(byte & 0xf) as usize]]
}

/// The byte that an escape at `at` stands for.
pub(crate) fn escape(bytes: &[u8], at: usize) -> Option<u8> {
    let digits = bytes.get(at + 1..at + 3)?;
    let (high, low) = (DIGITS[usize::from(digits[0])], DIGITS[usize::from(digits[1])]);
    (high | low < 16).then_some(high << 4 | low)
}

/// The value of each byte as a hexadecimal digit; 0xff for a byte that is none.
static DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut value = 0;
    while value < 16 {
        digits[b"0123456789abcdef"[value] as usize] = value as u8;
        digits[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

/// Whether the escape of `byte` at `at` begins an encoding of an ASCII character that is longer than
/// UTF-8 allows (RFC 3629, section 3). Some decoders take `%C1%A1` for `a`.
pub(crate) fn is_bad_ascii(bytes: &[u8], at: usize, byte: u8) -> bool {
    let next = match byte {
        // These bytes begin nothing else.
        0xc0 | 0xc1 => return true,
        0xe0 => 0x80..=0x9f,
        0xf0 => 0x80..=0x8f,
        0xf8 => 0x80..=0x87,
        0xfc => 0x80..=0x83,
        _ => return false,
    };
    bytes.get(at + 3) == Some(&b'%')
        && escape(bytes, at + 3).is_some_and(|byte| next.contains(&byte))
}

/// Characters that mean the same escaped or not (RFC 3986, section 2.3).
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Characters that stand in targets both escaped and bare, and mean the same to some readers only.
const fn may_stand_bare(byte: u8) -> bool {
    byte.is_ascii_graphic() && !is_unreserved(byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{KeySpec, Source};

    fn check(raw: &str, expected: Option<(&str, bool)>) {
        let found = canonical(raw).ok();
        let found = found.as_ref().map(|found| (&*found.path, found.ambiguous));
        assert_eq!(found, expected, "{raw}");
    }

    #[test]
    fn every_spelling_of_a_path_has_the_same_canonical_form() {
        check("/", Some(("/", false)));
        check("/api/track", Some(("/api/track", false)));
        check("/api/track/", Some(("/api/track/", false)));
        check("/%61pi/%7Euser", Some(("/api/~user", false)));
        check("/a%20b/caf%c3%a9", Some(("/a%20b/caf%C3%A9", false)));
        check(
            "/%E3%81%82/%E0%A4%85/%F0%9F%98%80/%E9t%E9",
            Some(("/%E3%81%82/%E0%A4%85/%F0%9F%98%80/%E9t%E9", false)),
        );
        check("/a@b:c,d=e+f!g'(h)*$&", Some(("/a@b:c,d=e+f!g'(h)*$&", false)));
        for raw in [
            "",
            "api",
            "/a%00",
            "/a%0a",
            "/a%7f",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a b",
            "/a#b",
            "/\u{e9}",
            "/%c1%a1",
            "/%C0%AF",
            "/%e0%81%a1",
            "/%F0%80%81%A1",
            "/%f8%80%80%81%a1",
            "/%fc%80%80%80%81%a1",
            "/a%c1b",
        ] {
            check(raw, None);
        }
    }

    #[test]
    fn what_may_be_read_otherwise_is_ambiguous() {
        for (raw, path) in [
            ("//", "//"),
            ("/a//b", "/a//b"),
            ("/.", "/."),
            ("/a/..", "/a/.."),
            ("/a/%2e%2e/b", "/a/../b"),
            ("/a/.%2E", "/a/.."),
            ("/a;b", "/a;b"),
            ("/a\\b", "/a\\b"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%5Cb", "/a%5Cb"),
            ("/a%3bb", "/a%3Bb"),
            ("/a%3ab", "/a%3Ab"),
            ("/a%2561", "/a%2561"),
            ("/a%3fb", "/a%3Fb"),
            ("/a%23b", "/a%23b"),
        ] {
            check(raw, Some((path, true)));
        }
    }
    /// A key of a limit that a person writes is accepted exactly if a request can have it.
    #[test]
    fn written_keys_are_the_paths_and_segments_of_requests() {
        const PIECES: [&str; 36] = [
            "/",
            "/",
            "/",
            "a",
            "b",
            ".",
            "..",
            "%61",
            "%2e",
            "%7E",
            "%20",
            "%2F",
            "%3a",
            "%3A",
            "%25",
            "%c3%a9",
            "%C3%A9",
            "%C1%A1",
            "%E0%80",
            "%e9",
            "%00",
            "%7f",
            "%",
            "%4",
            "\u{e9}",
            " ",
            "?",
            "#",
            "<",
            "\"",
            "`",
            "\\",
            ";",
            "@:,=+!'()*$&",
            "|^[]{}",
            "\u{1}",
        ];
        let key = |source: &Source, text: &str| {
            let spec = KeySpec::new(vec![source.clone()]).unwrap();
            spec.typed_values(&[text], 64).is_ok()
        };
        let mut draw = fastrand::Rng::with_seed(7);
        let (mut keys, mut others) = (0, 0);
        for _ in 0..50_000 {
            let count = draw.usize(..4);
            let segment: String = (0..count).map(|_| PIECES[draw.usize(..PIECES.len())]).collect();
            let text = format!("/{segment}");
            let is_sent = bytes::lead(text.as_bytes(), bytes::IN_PATH) == text.len();
            let read = canonical(&text).ok().filter(|_| is_sent);
            let expected = read.is_some_and(|read| read.path == *text && !read.ambiguous);
            assert_eq!(key(&Source::Path, &text), expected, "{text:?}");
            let is_segment = expected && !segment.is_empty() && !segment.contains('/');
            assert_eq!(key(&Source::PathSegment(1), &segment), is_segment, "{segment:?}");
            *(if expected { &mut keys } else { &mut others }) += 1;
        }
        assert!(keys > 3_000 && others > 10_000, "{keys} {others}");
    }
}
