//! Makes JSON readable as YAML. YAML 1.2 reads JSON, but for one thing: JSON writes a character beyond U+FFFF as two
//! escapes (`\ud83d\ude00`), and YAML as one (`\U0001f600`).

use std::borrow::Cow;

use super::error::Location;

/// The characters by which two escapes of JSON are longer than the one of YAML.
const SHORTER_BY: usize = 2;

/// A text for a YAML parser, and what that parser needs to know of the text that was typed.
pub(super) struct YamlText<'t> {
    pub(super) text: Cow<'t, str>,
    /// Where an escape ends that was shortened, in the text for the parser.
    shortened: Vec<Location>,
}

impl<'t> YamlText<'t> {
    /// Changes nothing unless the text is JSON with such escapes.
    pub(super) fn new(text: &'t str) -> Self {
        let unchanged = Self { text: Cow::Borrowed(text), shortened: Vec::new() };
        let may_have_pairs =
            text.trim_start().starts_with(['{', '[']) && first_pair(text).is_some();
        if !may_have_pairs || serde_json::from_str::<serde_json::Value>(text).is_err() {
            return unchanged;
        }
        let (mut changed, mut shortened) = (String::with_capacity(text.len()), Vec::new());
        let mut rest = text;
        while let Some((at, character)) = first_pair(rest) {
            changed.push_str(&rest[..at]);
            changed.push_str(&format!("\\U{:08x}", u32::from(character)));
            rest = &rest[at + PAIR_BYTES..];
            shortened.push(end_of(&changed));
        }
        changed.push_str(rest);
        Self { text: Cow::Owned(changed), shortened }
    }

    /// The location in the text that was typed.
    pub(super) fn typed(&self, location: Location) -> Location {
        let before = |end: &&Location| end.line == location.line && end.column <= location.column;
        let shift = SHORTER_BY * self.shortened.iter().filter(before).count();
        Location { column: location.column + shift, ..location }
    }
}

/// The length of `\ud83d\ude00`.
const PAIR_BYTES: usize = 12;

/// The first two escapes that stand for one character, and the character.
fn first_pair(text: &str) -> Option<(usize, char)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &bytes[at..]) {
        let start = at + found;
        if let Some(character) = bytes.get(start..start + PAIR_BYTES).and_then(pair) {
            return Some((start, character));
        }
        // Skips what the backslash escapes, which may be another backslash.
        at = (start + 2).min(bytes.len());
    }
    None
}

fn pair(bytes: &[u8]) -> Option<char> {
    let unit = |bytes: &[u8]| {
        let digits = bytes.strip_prefix(b"\\u")?;
        let text = std::str::from_utf8(digits).ok()?;
        u16::from_str_radix(text, 16).ok()
    };
    let units = [unit(&bytes[..6])?, unit(&bytes[6..])?];
    let mut decoded = char::decode_utf16(units);
    let character = decoded.next()?.ok()?;
    decoded.next().is_none().then_some(character)
}

/// The location after the last character.
fn end_of(text: &str) -> Location {
    let line_start = text.rfind('\n').map_or(0, |at| at + 1);
    let line = 1 + memchr::memchr_iter(b'\n', text.as_bytes()).count();
    Location { line, column: 1 + text[line_start..].chars().count() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_escapes_of_json_become_the_escape_of_yaml() {
        let json = "{\"a\":\n \"\\ud83d\\ude00\", \"b\": \"\\\\ud83d\\\\ude00\"}";
        let yaml = YamlText::new(json);
        assert_eq!(yaml.text, "{\"a\":\n \"\\U0001f600\", \"b\": \"\\\\ud83d\\\\ude00\"}");
        let typed = |line, column| yaml.typed(Location { line, column });
        assert_eq!(typed(2, 2), Location { line: 2, column: 2 });
        assert_eq!(typed(2, 15), Location { line: 2, column: 17 });
        assert_eq!(typed(1, 15), Location { line: 1, column: 15 });
        // Not JSON, a half, and text without escapes.
        for unchanged in ["{'a': '\\ud83d\\ude00'}", "{\"a\": \"\\ud83d\"}", "{\"a\": 1}", "\\", ""]
        {
            assert_eq!(YamlText::new(unchanged).text, unchanged);
        }
    }
}
