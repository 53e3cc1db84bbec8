//! Spellings of names and values that origins read in different ways.
//!
//! Values are decoded strictly, so all spellings of a value give one key. If only some origins read a name as the key's
//! name, the request is refused.

use std::borrow::Cow;

/// Decodes the percent escapes of a value, and `+` as a space if `is_form`. `None` if decoders differ: an escape is
/// broken or encodes a control byte, or the decoded bytes are not UTF-8.
pub(in crate::policy) fn decoded(value: &[u8], is_form: bool) -> Option<Cow<'_, [u8]>> {
    if !value.iter().any(|byte| *byte == b'%' || is_form && *byte == b'+') {
        return Some(Cow::Borrowed(value));
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match byte {
            b'%' => escape(after).filter(|(byte, _)| !byte.is_ascii_control())?,
            b'+' if is_form => (b' ', after),
            other => (other, after),
        };
        bytes.push(byte);
        rest = after;
    }
    std::str::from_utf8(&bytes).is_ok().then_some(Cow::Owned(bytes))
}

/// Whether a name, decoded as in a form, is the key's name.
pub(in crate::policy) fn is_name(found: &[u8], name: &[u8]) -> bool {
    found == name
        || found.len() > name.len()
            && DecodedName { rest: found, overlong: false }.eq(name.iter().copied())
}

/// Whether some origin may read this name as the key's: PHP replaces dots, blanks and brackets by `_`, removes leading
/// blanks and stops at a NUL; qs and Rack read `name[]` as a list of the values of `name`, and `[name]` as `name`; some
/// decoders accept bytes that are not UTF-8.
pub(in crate::policy) fn is_like(found: &[u8], name: &[u8]) -> bool {
    // No origin makes a name longer.
    if found.len() < name.len() {
        return false;
    }
    let letters = DecodedName { rest: found, overlong: true };
    let mut letters = letters.skip_while(|byte| matches!(byte, b' ' | b'[' | b']'));
    let begins_alike = name.iter().all(|byte| letters.next().map(folded) == Some(folded(*byte)));
    begins_alike && matches!(letters.next(), None | Some(0 | b'[' | b']'))
}

const fn folded(byte: u8) -> u8 {
    if matches!(byte, b'.' | b' ' | b'[') { b'_' } else { byte }
}

/// A hash of a name in which all its spellings are equal. Names that differ may have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NameHash(u64);

impl NameHash {
    /// FNV-1a, of 64 bits.
    const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    const fn with(self, byte: u8) -> Self {
        Self((self.0 ^ folded(byte) as u64).wrapping_mul(0x0100_0000_01b3))
    }

    fn of(bytes: impl Iterator<Item = u8>) -> Self {
        bytes.fold(Self::EMPTY, Self::with)
    }
}

/// The hash of a configured name.
pub(super) fn hash(name: &[u8]) -> NameHash {
    NameHash::of(name.iter().copied())
}

/// Calls `add` with the hash of each name for which [`is_name`] or [`is_like`] holds or the bytes are equal, and perhaps
/// with others.
pub(super) fn each_hash(found: &[u8], mut add: impl FnMut(NameHash)) {
    add(hash(found));
    let differs = |byte: &u8| matches!(byte, b'%' | b'+' | b' ' | b'[' | b']' | 0);
    if !found.iter().any(differs) {
        return;
    }
    add(NameHash::of(DecodedName { rest: found, overlong: false }));
    let letters = DecodedName { rest: found, overlong: true };
    let mut hash = NameHash::EMPTY;
    for letter in letters.skip_while(|byte| matches!(byte, b' ' | b'[' | b']')) {
        if matches!(letter, 0 | b'[' | b']') {
            add(hash);
        }
        hash = hash.with(letter);
    }
    add(hash);
}

/// The decoded bytes of a name. A broken escape is read literally.
struct DecodedName<'n> {
    rest: &'n [u8],
    /// Whether to decode overlong encodings of ASCII, which UTF-8 forbids.
    overlong: bool,
}

impl Iterator for DecodedName<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&byte, after) = self.rest.split_first()?;
        self.rest = after;
        match byte {
            b'+' => Some(b' '),
            b'%' => {
                let Some((byte, after)) = escape(after) else {
                    return Some(b'%');
                };
                self.rest = after;
                if self.overlong && matches!(byte, 0xc0 | 0xc1) {
                    let low = after.strip_prefix(b"%").and_then(escape);
                    if let Some((low, after)) = low {
                        self.rest = after;
                        return Some((byte & 1) << 6 | low & 0x3f);
                    }
                }
                Some(byte)
            }
            other => Some(other),
        }
    }
}

/// The byte that the first two hexadecimal digits encode, and the rest.
fn escape(digits: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, rest) = digits.split_first_chunk::<2>()?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()?;
    Some((byte, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_read_alike() {
        for (found, is, like) in [
            ("api_key", true, true),
            ("%61pi_key", true, true),
            ("api%5fkey", true, true),
            ("api.key", false, true),
            ("api+key", false, true),
            ("api%5Bkey", false, true),
            ("[api_key]", false, true),
            ("%5Bapi_key%5D", false, true),
            ("]api_key", false, true),
            ("+%20api_key", false, true),
            ("api_key[]", false, true),
            ("api_key%5b0%5d=", false, true),
            ("api_key%00x", false, true),
            ("api%c1%9fkey", false, true),
            ("api-key", false, false),
            ("apikey", false, false),
            ("api_ke", false, false),
            ("api_keys", false, false),
            ("x_api_key", false, false),
            ("api%key", false, false),
            ("%", false, false),
            ("", false, false),
        ] {
            let (found, name) = (found.as_bytes(), b"api_key");
            assert_eq!((is_name(found, name), is_like(found, name)), (is, like), "{found:?}");
        }
    }

    #[test]
    fn values_are_decoded_strictly() {
        let read = |value: &'static str, is_form| {
            decoded(value.as_bytes(), is_form)
                .map(|value| String::from_utf8_lossy(&value).into_owned())
        };
        assert_eq!(read("a+b%2Bc%c3%A9", true).as_deref(), Some("a b+c\u{e9}"));
        assert_eq!(read("a+b%20c", false).as_deref(), Some("a+b c"));
        for broken in ["%", "%4", "%zz", "a%00", "%0a", "%7f", "%c1%a1", "%e0%81%a1", "%ff", "%c3"]
        {
            assert_eq!(read(broken, true), None, "{broken}");
        }
    }
}
