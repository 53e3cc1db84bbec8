//! Writes JSON objects. It does not know what they mean.
//!
//! What must always hold: every text is escaped, so that an object is one line of printable characters: control
//! characters (C0, DEL and C1, which terminals obey) and the line separators of Unicode are escaped as well.

use std::fmt::{self, Write};

/// An object that is being written. Members come in the order of the calls.
pub(in crate::ops) struct JsonObject<'o> {
    out: &'o mut String,
    is_empty: bool,
}

impl<'o> JsonObject<'o> {
    /// Begins an object.
    pub(in crate::ops) fn begin(out: &'o mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    /// Ends the object.
    pub(in crate::ops) fn end(self) {
        self.out.push('}');
    }

    /// A text of ours, in which nothing has to be escaped.
    pub(in crate::ops) fn word(&mut self, name: &str, word: &str) {
        self.name(name);
        self.out.push('"');
        self.out.push_str(word);
        self.out.push('"');
    }

    /// A text from outside.
    pub(in crate::ops) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        quoted(self.out, text);
    }

    /// A value whose text needs no escapes, as a string.
    pub(in crate::ops) fn display(&mut self, name: &str, value: impl fmt::Display) {
        self.name(name);
        // Writing to a string never fails.
        let _ = write!(self.out, "\"{value}\"");
    }

    /// A number.
    pub(in crate::ops) fn number(&mut self, name: &str, number: impl itoa::Integer) {
        self.name(name);
        self.out.push_str(itoa::Buffer::new().format(number));
    }

    /// `true` or `false`.
    pub(in crate::ops) fn boolean(&mut self, name: &str, value: bool) {
        self.name(name);
        self.out.push_str(if value { "true" } else { "false" });
    }

    /// A text from outside, or `null`.
    pub(in crate::ops) fn text_or_null(&mut self, name: &str, text: Option<&str>) {
        match text {
            Some(text) => self.text(name, text),
            None => self.null(name),
        }
    }

    /// A number, or `null`.
    pub(in crate::ops) fn number_or_null(
        &mut self,
        name: &str,
        number: Option<impl itoa::Integer>,
    ) {
        match number {
            Some(number) => self.number(name, number),
            None => self.null(name),
        }
    }

    fn null(&mut self, name: &str) {
        self.name(name);
        self.out.push_str("null");
    }

    /// A list of texts; nothing if there are none.
    pub(in crate::ops) fn texts<'t>(&mut self, name: &str, texts: impl Iterator<Item = &'t str>) {
        let mut is_first = true;
        for text in texts {
            if is_first {
                self.name(name);
                self.out.push('[');
            } else {
                self.out.push(',');
            }
            quoted(self.out, text);
            is_first = false;
        }
        if !is_first {
            self.out.push(']');
        }
    }

    /// An object inside of this one; nothing if it has no member.
    pub(in crate::ops) fn object(&mut self, name: &str, write: impl FnOnce(&mut JsonObject<'_>)) {
        let (start, was_empty) = (self.out.len(), self.is_empty);
        self.name(name);
        let mut inner = JsonObject::begin(self.out);
        write(&mut inner);
        let is_empty = inner.is_empty;
        inner.end();
        if is_empty {
            self.out.truncate(start);
            self.is_empty = was_empty;
        }
    }

    /// A value that is JSON already, without line ends.
    pub(in crate::ops) fn json(&mut self, name: &str, value: &str) {
        self.name(name);
        self.out.push_str(value);
    }

    /// `name` is one of ours, so nothing in it has to be escaped.
    fn name(&mut self, name: &str) {
        self.out.push_str(if self.is_empty { "\"" } else { ",\"" });
        self.is_empty = false;
        self.out.push_str(name);
        self.out.push_str("\":");
    }
}

/// Writes a JSON string (RFC 8259, section 7).
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    // Nearly every text is plain ASCII.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        out.push_str(text);
    } else {
        text.chars().for_each(|letter| escaped(out, letter));
    }
    out.push('"');
}

fn escaped(out: &mut String, letter: char) {
    match letter {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(letter));
        }
        letter => out.push(letter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_json_without_line_ends() {
        let mut out = String::new();
        let mut object = JsonObject::begin(&mut out);
        object.object("nothing", |_| {});
        object.number("n", 7_u64);
        object.text("t", "a\"\\\n\u{1b}[2J\u{9b}\u{2028}\u{fc}");
        object.text_or_null("none", None);
        object.object("o", |inner| {
            inner.boolean("b", true);
            inner.texts("l", ["x", "y"].into_iter());
            inner.texts("empty", std::iter::empty());
        });
        object.end();
        assert!(out.chars().all(|letter| !letter.is_control() && letter != '\u{2028}'), "{out}");
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        let expected = serde_json::json!({
            "n": 7, "t": "a\"\\\n\u{1b}[2J\u{9b}\u{2028}\u{fc}", "none": null,
            "o": { "b": true, "l": ["x", "y"] },
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn every_character_comes_back() {
        for letter in (0..0x3000).chain(0x1f300..0x1f310).filter_map(char::from_u32) {
            let mut out = String::new();
            quoted(&mut out, &letter.to_string());
            let read: String = serde_json::from_str(&out).unwrap();
            assert_eq!(read, letter.to_string());
        }
    }
}
