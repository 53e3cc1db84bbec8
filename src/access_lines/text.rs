//! Turns bytes of a log into text: removes the escapes of the server that wrote them. Bytes that are not UTF-8 become
//! U+FFFD.

use std::borrow::Cow;

/// How a format escapes characters that would end a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escapes {
    /// `\"`, `\\`, `\xHH`, `\uHHHH` and the letters of C: Apache, NGINX, Envoy.
    Backslash,
    /// `#HH`: HAProxy.
    Hash,
    /// `%HH`: CloudFront.
    Percent,
    /// `+` for a space: IIS.
    Plus,
}

/// The text of a field.
pub(super) fn decode(raw: &[u8], escapes: Escapes) -> Cow<'_, str> {
    let mark = match escapes {
        Escapes::Backslash => b'\\',
        Escapes::Hash => b'#',
        Escapes::Percent => b'%',
        Escapes::Plus => b'+',
    };
    if memchr::memchr(mark, raw).is_none() {
        return lossy(raw);
    }
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = memchr::memchr(mark, rest) {
        bytes.extend_from_slice(&rest[..at]);
        let escaped = &rest[at + 1..];
        let used = match escapes {
            Escapes::Backslash => backslash(escaped, &mut bytes),
            Escapes::Hash | Escapes::Percent => byte(escaped, &mut bytes),
            Escapes::Plus => {
                bytes.push(b' ');
                Some(0)
            }
        };
        if used.is_none() {
            bytes.push(mark);
        }
        rest = &escaped[used.unwrap_or(0)..];
    }
    bytes.extend_from_slice(rest);
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// Bytes as text. Those that are UTF-8, as nearly all are, are checked in steps of a word.
pub(super) fn lossy(raw: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(raw) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(raw),
    }
}

/// Decodes what follows a backslash; returns the bytes that were used. `None` if it is no escape.
fn backslash(escaped: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let plain = match *escaped.first()? {
        letter @ (b'"' | b'\\' | b'/' | b'\'') => letter,
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 0x08,
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'x' => return byte(&escaped[1..], out).map(|used| used + 1),
        b'u' => return utf16(&escaped[1..], out).map(|used| used + 1),
        _ => return None,
    };
    out.push(plain);
    Some(1)
}

/// Two hexadecimal digits.
fn byte(escaped: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    out.push(u8::try_from(hexadecimal(escaped.get(..2)?)?).ok()?);
    Some(2)
}

/// Four hexadecimal digits. A surrogate becomes U+FFFD: no server writes pairs for bytes of a request.
fn utf16(escaped: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let number = hexadecimal(escaped.get(..4)?)?;
    let character = char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Some(4)
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?))
}

/// A range of a text, borrowed if the text is.
pub(super) fn slice<'l>(text: &Cow<'l, str>, range: std::ops::Range<usize>) -> Cow<'l, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.get(range).unwrap_or_default()),
        Cow::Owned(text) => Cow::Owned(text.get(range).unwrap_or_default().to_owned()),
    }
}

/// Names of header fields that logs often have. They are borrowed, so that a line with them needs no allocation.
const COMMON_HEADERS: &[&str] = &[
    "user-agent",
    "referer",
    "host",
    "x-forwarded-for",
    "x-real-ip",
    "x-api-key",
    "x-request-id",
    "forwarded",
    "authorization",
    "cookie",
    "origin",
    "accept",
    "accept-encoding",
    "accept-language",
    "content-type",
];

/// The name of a header field in lower case.
pub(super) fn header_name(name: &str) -> Cow<'static, str> {
    match COMMON_HEADERS.iter().find(|known| known.eq_ignore_ascii_case(name)) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(name.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_removed() {
        let check = |raw: &str, escapes, expected: &str| {
            assert_eq!(decode(raw.as_bytes(), escapes), expected, "{raw}");
        };
        check(r#"a\"b\\c\x22d"#, Escapes::Backslash, r#"a"b\c"d"#);
        check(r"\xC3\xBC \u00fc \n", Escapes::Backslash, "\u{fc} \u{fc} \n");
        check(r"\x4 \q \", Escapes::Backslash, r"\x4 \q \");
        check("Mozilla/5.0%20%28X11%29 100%", Escapes::Percent, "Mozilla/5.0 (X11) 100%");
        check("a#7Cb#", Escapes::Hash, "a|b#");
        check("Mozilla+5", Escapes::Plus, "Mozilla 5");
        check(r"\xff", Escapes::Backslash, "\u{fffd}");
        assert!(matches!(decode(b"plain", Escapes::Backslash), Cow::Borrowed("plain")));
    }
}
