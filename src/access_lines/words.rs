//! Walks over a line whose fields stand between spaces.

use memchr::{memchr, memchr2};

/// The fields of a line that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'l> {
    rest: &'l [u8],
}

impl<'l> Words<'l> {
    /// Begins at the start of the text.
    pub(super) fn of(text: &'l [u8]) -> Self {
        Self { rest: text }
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'l [u8] {
        self.rest
    }

    /// The bytes up to the next space. `None` at the end of the line.
    pub(super) fn word(&mut self) -> Option<&'l [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr(b' ', self.rest).unwrap_or(self.rest.len());
        Some(self.take(end, end))
    }

    /// The bytes between two quotes, with their escapes. `None` if there is no quote, or no second one.
    pub(super) fn quoted(&mut self) -> Option<&'l [u8]> {
        let inner = self.rest.strip_prefix(b"\"")?;
        let end = closing_quote(inner)?;
        self.rest = inner;
        Some(self.take(end, end + 1))
    }

    /// The next field, with or without quotes.
    pub(super) fn field(&mut self) -> Option<&'l [u8]> {
        if self.rest.first() == Some(&b'"') { self.quoted() } else { self.word() }
    }

    /// The bytes from an opening to the next closing character.
    pub(super) fn enclosed(&mut self, open: u8, close: u8) -> Option<&'l [u8]> {
        let inner = self.rest.strip_prefix(&[open])?;
        let end = memchr(close, inner)?;
        self.rest = inner;
        Some(self.take(end, end + 1))
    }

    /// Takes a field, and skips a space behind it.
    fn take(&mut self, end: usize, next: usize) -> &'l [u8] {
        let field = &self.rest[..end];
        self.rest = &self.rest[next..];
        self.rest = self.rest.strip_prefix(b" ").unwrap_or(self.rest);
        field
    }
}

/// The index of the first quote that no backslash escapes.
pub(super) fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        from = at + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_in_order() {
        let mut words = Words::of(br#"a [b c] "d \" e" "" f"#);
        assert_eq!(words.word(), Some(&b"a"[..]));
        assert_eq!(words.enclosed(b'[', b']'), Some(&b"b c"[..]));
        assert_eq!(words.quoted(), Some(&br#"d \" e"#[..]));
        assert_eq!(words.field(), Some(&b""[..]));
        assert_eq!(words.field(), Some(&b"f"[..]));
        assert_eq!((words.field(), words.rest()), (None, &b""[..]));
        assert_eq!(Words::of(br#""open\"#).quoted(), None);
    }
}
