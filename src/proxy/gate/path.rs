//! One path per meaning, or all the meanings that a path can have.
//!
//! Readers of paths differ: some merge `//`, some cut `;parameters`, some take `\` for `/`, some
//! decode `%2F` before they split. Nobody in front of them can know which. So a path that all read
//! alike has one canonical form, and any other has a list of [`readings`]: whoever matches it must
//! find the same under each of them, or refuse it.

use std::borrow::Cow;

use super::{Reason, bytes};

/// A path that may be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Canonical<'r> {
    /// What is matched first, and forwarded. Borrowed exactly when it is the path as it came.
    pub(super) path: Cow<'r, str>,
    /// Whether origins may read it in more than one way.
    pub(super) ambiguous: bool,
}

/// The canonical path: escapes of unreserved characters decoded once, other escapes in upper case
/// (RFC 3986, section 6.2.2), everything else as it came.
///
/// Refused, since nobody means them: control bytes, blanks, `#`, bytes that are not ASCII, broken
/// escapes, escapes of control bytes, and segments `..` that climb above the root.
pub(super) fn canonical(raw: &str) -> Result<Canonical<'_>, Reason> {
    if !raw.starts_with('/') {
        return Err(Reason::Path);
    }
    if is_plain(raw.as_bytes()) {
        return Ok(Canonical { path: Cow::Borrowed(raw), ambiguous: false });
    }
    let (path, mut ambiguous) = decode_unreserved(raw)?;
    let mut depth = 0_i32;
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "" => ambiguous |= segments.peek().is_some(),
            "." => ambiguous = true,
            ".." => {
                ambiguous = true;
                depth -= 1;
            }
            _ => depth += 1,
        }
        if depth < 0 {
            return Err(Reason::Path);
        }
    }
    Ok(Canonical { path, ambiguous })
}

/// Whether a path is its own canonical form at first sight: most are. (What is not goes the long
/// way, where it may turn out to be.)
fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    path.iter().all(|byte| {
        let after_slash = before == b'/' && matches!(byte, b'/' | b'.');
        before = *byte;
        bytes::of(*byte) & bytes::PLAIN != 0 && !after_slash
    })
}

/// Decodes what is surely meant as written; says whether something is left that is not sure.
fn decode_unreserved(raw: &str) -> Result<(Cow<'_, str>, bool), Reason> {
    let bytes = raw.as_bytes();
    let mut canonical: Option<String> = None;
    let mut ambiguous = false;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let decoded = escape(bytes, at).ok_or(Reason::Path)?;
                let kept = &raw[at..at + 3];
                let lower = kept.bytes().any(|b| b.is_ascii_lowercase());
                match decoded {
                    0..=0x1f | 0x7f => return Err(Reason::Path),
                    b if is_unreserved(b) => {
                        canonical.get_or_insert_with(|| raw[..at].to_owned()).push(char::from(b));
                    }
                    _ if lower => {
                        let text = canonical.get_or_insert_with(|| raw[..at].to_owned());
                        text.push_str(&kept.to_ascii_uppercase());
                    }
                    _ => {
                        if let Some(text) = &mut canonical {
                            text.push_str(kept);
                        }
                    }
                }
                ambiguous |= may_stand_bare(decoded) || decoded == b'%';
                at += 3;
                continue;
            }
            b'#' | 0..=0x20 | 0x7f.. => return Err(Reason::Path),
            b'\\' | b';' => ambiguous = true,
            _ => {}
        }
        if let Some(text) = &mut canonical {
            text.push(char::from(byte));
        }
        at += 1;
    }
    Ok((canonical.map_or(Cow::Borrowed(raw), Cow::Owned), ambiguous))
}

/// Every other path that an origin may take a canonical one for. `Err` where one of them holds
/// a control byte or climbs above the root.
pub(super) fn readings(canonical: &str) -> Result<Vec<String>, Reason> {
    let once = decode_bare(canonical);
    let twice = decode_bare(&once);
    let mut all: Vec<String> = Vec::new();
    let mut bases = vec![canonical.to_owned(), once, twice];
    bases.dedup();
    for base in bases {
        if base.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err(Reason::Path);
        }
        for choice in 0..16_u8 {
            let mut path = base.clone();
            if choice & 1 != 0 {
                path = path.replace('\\', "/");
            }
            if choice & 2 != 0 {
                path = without_parameters(&path);
            }
            if choice & 4 != 0 {
                path = merged(&path);
            }
            if choice & 8 != 0 {
                path = resolved(&path)?;
            }
            if path != canonical && !all.contains(&path) {
                all.push(path);
            }
        }
    }
    Ok(all)
}

/// Decodes escapes of characters that may also stand bare, and of `%`.
fn decode_bare(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(percent) = rest.find('%') {
        let at = path.len() - rest.len() + percent;
        decoded.push_str(&rest[..percent]);
        match escape(bytes, at) {
            Some(byte) if byte < 0x80 && byte != b' ' && byte != b'?' && byte != b'#' => {
                decoded.push(char::from(byte));
                rest = &path[at + 3..];
            }
            _ => {
                decoded.push('%');
                rest = &path[at + 1..];
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

/// Each segment up to its first `;`.
fn without_parameters(path: &str) -> String {
    let bare = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    path.split('/').map(bare).collect::<Vec<_>>().join("/")
}

/// Runs of slashes as one.
fn merged(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// Without `.` and `..` (RFC 3986, section 5.2.4).
fn resolved(path: &str) -> Result<String, Reason> {
    let mut segments: Vec<&str> = Vec::new();
    let mut open = false;
    for segment in path.split('/').skip(1) {
        open = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => {
                segments.pop().ok_or(Reason::Path)?;
            }
            other => segments.push(other),
        }
    }
    let end = if open { "/" } else { "" };
    let path = format!("/{}{end}", segments.join("/"));
    Ok(if open && segments.is_empty() { "/".to_owned() } else { path })
}

/// The byte that an escape at `at` stands for.
fn escape(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |place: usize| char::from(*bytes.get(place)?).to_digit(16);
    u8::try_from(digit(at + 1)? * 16 + digit(at + 2)?).ok()
}

/// Characters that mean the same escaped or not (RFC 3986, section 2.3).
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Characters that stand in paths both escaped and bare, and mean the same to some readers only.
const fn may_stand_bare(byte: u8) -> bool {
    byte.is_ascii_graphic() && !is_unreserved(byte) && !matches!(byte, b'?' | b'#' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(raw: &str, expected: Option<(&str, bool)>) {
        let found = canonical(raw).ok();
        let found = found.as_ref().map(|found| (&*found.path, found.ambiguous));
        assert_eq!(found, expected, "{raw}");
    }

    #[test]
    fn one_path_per_meaning() {
        check("/", Some(("/", false)));
        check("/api/track", Some(("/api/track", false)));
        check("/api/track/", Some(("/api/track/", false)));
        check("/%61pi/%7Euser", Some(("/api/~user", false)));
        check("/a%20b/caf%c3%a9", Some(("/a%20b/caf%C3%A9", false)));
        check("/a@b:c,d=e+f!g'(h)*$&", Some(("/a@b:c,d=e+f!g'(h)*$&", false)));
        for raw in [
            "", "api", "/..", "/a/../..", "/%2e%2e", "/a%00", "/a%0a", "/a%7f", "/a%", "/a%4",
            "/a%zz", "/a b", "/a#b", "/\u{e9}",
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
        ] {
            check(raw, Some((path, true)));
        }
    }

    #[test]
    fn readings_are_what_origins_make_of_it() {
        for (path, expected) in [
            ("/a//b", "/a/b"),
            ("/x/../a/b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a;v=1/b;w", "/a/b"),
            ("/a\\b", "/a/b"),
            ("/a%2Fb", "/a/b"),
            ("/a%252Fb", "/a/b"),
            ("/a%255Cb", "/a/b"),
            ("/x/..;/a/b", "/a/b"),
            ("/x%2F..%2Fa/b", "/a/b"),
            ("/a/x//../b", "/a/b"),
            ("/a/x//../b", "/a/x/b"),
            ("/x/..", "/"),
            ("/a/b/.", "/a/b/"),
        ] {
            let found = readings(path).unwrap();
            assert!(found.iter().any(|reading| reading == expected), "{path}: {found:?}");
        }
        assert_eq!(readings("/x%2F..%2F..%2Fa"), Err(Reason::Path));
        assert_eq!(readings("/x%2500"), Err(Reason::Path));
    }
}
