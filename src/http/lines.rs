//! Header fields as lines of HTTP/1.
//!
//! Fields are written once, as bytes. HTTP/1 sends these bytes; for HTTP/2 they are read back into a map. In the
//! framework's map a field costs about three allocations and a thousand instructions, most of them for its name, and a
//! refusal has ten fields. What must always hold: no name and no value contains a line end.

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::clock::Nanos;

/// Lines `Name: value`, each with its line end. Names and values contain no line end: they are constants, numbers, or
/// texts that were checked when the configuration was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    /// No lines, with space for those of a refusal.
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(512))
    }

    /// Adds a field. `begin` is the beginning of its line: `Name: `.
    #[inline]
    pub(crate) fn add(&mut self, begin: &str, value: &[u8]) {
        field(&mut self.0, begin, |out| out.extend_from_slice(value));
    }

    /// Adds a field whose value is a number.
    #[inline]
    pub(crate) fn add_number(&mut self, begin: &str, value: u64) {
        field(&mut self.0, begin, |out| number(out, value));
    }

    /// Whether there is a field of this name, which is in lower case.
    pub(crate) fn contains(&self, lower: &str) -> bool {
        line_spans(&self.0).any(|line| is_of(&self.0[line], lower))
    }

    /// Removes the fields of this name, which is in lower case.
    pub(crate) fn remove(&mut self, lower: &str) {
        if self.contains(lower) {
            let others = line_spans(&self.0).map(|line| &self.0[line]);
            let others = others.filter(|line| !is_of(line, lower));
            self.0 = others.flat_map(|line| [line, b"\r\n"].concat()).collect();
        }
    }

    /// The buffer, for a caller that writes several fields.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The lines as HTTP/1 sends them.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same fields as a map.
    pub(crate) fn into_headers(self) -> Result<HeaderMap, InvalidField> {
        let mut headers = HeaderMap::with_capacity(FIELD_CAPACITY);
        self.append_to(&mut headers)?;
        Ok(headers)
    }

    /// Appends the fields to a map.
    pub(crate) fn append_to(self, headers: &mut HeaderMap) -> Result<(), InvalidField> {
        append(&Bytes::from(self.0), headers)
    }

    /// Each field: its name in the case in which it is written, and its value.
    pub(crate) fn fields(self) -> impl Iterator<Item = Result<(Bytes, HeaderValue), InvalidField>> {
        let all = Bytes::from(self.0);
        let lines: Vec<_> = line_spans(&all).collect();
        lines.into_iter().map(move |line| {
            let (name, value) = name_and_value(&all, line);
            Ok((all.slice(name), shared_value(all.slice(value))?))
        })
    }
}

/// A field of tollgate's own is not a valid field. Its text came from the configuration, which should have refused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a response field written by tollgate is not valid")]
pub struct InvalidField;

/// Appends the lines to a map. Names in a map have no case, so a name that tollgate writes often is a constant there,
/// which needs no parsing.
fn append(all: &Bytes, headers: &mut HeaderMap) -> Result<(), InvalidField> {
    // Fields are written in the order of `OWN_NAMES`, so the search begins after the last name that was found.
    let mut next = 0;
    for line in line_spans(all) {
        let begins = |known: &&Name| all[line.clone()].starts_with(known.begin.as_bytes());
        let mut candidates = OWN_NAMES[next..].iter().chain(&OWN_NAMES[..next]).enumerate();
        let (name, value) = match candidates.find(|(_, name)| begins(name)) {
            Some((skipped, known)) => {
                next = (next + skipped + 1) % OWN_NAMES.len();
                (known.name.clone(), line.start + known.begin.len()..line.end)
            }
            None => {
                let (name, value) = name_and_value(all, line);
                (HeaderName::from_bytes(&all[name]).map_err(|_| InvalidField)?, value)
            }
        };
        headers.append(name, shared_value(all.slice(value))?);
    }
    Ok(())
}

/// The number of fields that a map has space for from the start: those of a refusal.
pub(crate) const FIELD_CAPACITY: usize = 16;

/// The position of each line, without its end.
fn line_spans(all: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let end = from + memchr::memchr(b'\n', &all[from..])?;
        let line = from..end.saturating_sub(1);
        from = end + 1;
        Some(line)
    })
}

/// Whether a line is of the field of this name.
fn is_of(line: &[u8], lower: &str) -> bool {
    let name = line.get(..lower.len());
    name.is_some_and(|name| name.eq_ignore_ascii_case(lower.as_bytes()))
        && line.get(lower.len()) == Some(&b':')
}

/// The positions of the name and of the value in a line.
fn name_and_value(all: &[u8], line: Range<usize>) -> (Range<usize>, Range<usize>) {
    let colon = memchr::memchr(b':', &all[line.clone()]).map_or(line.end, |at| line.start + at);
    (line.start..colon, (colon + ": ".len()).min(line.end)..line.end)
}

/// A value that shares these bytes.
fn shared_value(bytes: Bytes) -> Result<HeaderValue, InvalidField> {
    HeaderValue::from_maybe_shared(bytes).map_err(|_| InvalidField)
}

/// The names of the fields that tollgate writes, in the order in which it writes them.
static OWN_NAMES: [Name; 11] = [
    Name { begin: "Cache-Control: ", name: header::CACHE_CONTROL },
    Name { begin: "Content-Type: ", name: header::CONTENT_TYPE },
    Name { begin: "Content-Length: ", name: header::CONTENT_LENGTH },
    REQUEST_ID,
    Name { begin: "Retry-After: ", name: header::RETRY_AFTER },
    RATELIMIT_POLICY,
    RATELIMIT,
    LIMIT,
    REMAINING,
    RESET,
    Name { begin: "Vary: ", name: header::VARY },
];

/// The name of a field, as lines have it and as maps have it.
pub(crate) struct Name {
    /// The beginning of its line: `Name: `.
    pub(crate) begin: &'static str,
    pub(crate) name: HeaderName,
}

impl Name {
    const fn new(begin: &'static str, lower: &'static str) -> Self {
        Self { begin, name: HeaderName::from_static(lower) }
    }

    /// The name in its usual case.
    pub(crate) const fn shown(&self) -> &'static str {
        self.begin.split_at(self.begin.len() - ": ".len()).0
    }
}

pub(crate) const REQUEST_ID: Name = Name::new("X-Request-Id: ", "x-request-id");
pub(crate) const RATELIMIT_POLICY: Name = Name::new("RateLimit-Policy: ", "ratelimit-policy");
pub(crate) const RATELIMIT: Name = Name::new("RateLimit: ", "ratelimit");
pub(crate) const LIMIT: Name = Name::new("X-RateLimit-Limit: ", "x-ratelimit-limit");
pub(crate) const REMAINING: Name = Name::new("X-RateLimit-Remaining: ", "x-ratelimit-remaining");
pub(crate) const RESET: Name = Name::new("X-RateLimit-Reset: ", "x-ratelimit-reset");

/// Writes one field. `begin` is the beginning of its line, `Name: `: one constant, which is copied without a call.
#[inline]
pub(crate) fn field(out: &mut Vec<u8>, begin: &str, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(begin.as_bytes());
    value(out);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number.
pub(crate) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// The number of bytes of a date (RFC 9110, section 5.6.7).
const DATE: usize = 29;

/// The text of a date. Each thread keeps the last text, because it changes only once a second.
pub(crate) fn date(date: Nanos) -> [u8; DATE] {
    thread_local! {
        static LAST: Cell<(u64, [u8; DATE])> = const { Cell::new((u64::MAX, [b' '; DATE])) };
    }
    let second = date.secs();
    let (last_second, text) = LAST.get();
    if last_second == second {
        return text;
    }
    let written = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
    let mut text = [b' '; DATE];
    for (to, from) in text.iter_mut().zip(written.bytes()) {
        *to = from;
    }
    LAST.set((second, text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_the_same_fields() {
        let mut lines = Lines::new();
        lines.add("Content-Type: ", b"text/html; a=b");
        lines.add_number("Retry-After: ", 12);
        lines.add("Vary: ", b"Origin");
        lines.add("Vary: ", b"Accept");
        lines.add("Empty: ", b"");
        assert!(
            lines.as_bytes().starts_with(b"Content-Type: text/html; a=b\r\nRetry-After: 12\r\n")
        );
        let headers = lines.clone().into_headers().unwrap();
        assert_eq!(headers["content-type"], "text/html; a=b");
        assert_eq!(headers["retry-after"], "12");
        let vary: Vec<_> = headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["Origin", "Accept"]);
        assert_eq!(headers["empty"], "");
        let fields: Vec<_> = lines.fields().map(Result::unwrap).collect();
        assert_eq!(fields[0].0, "Content-Type");
        assert_eq!(fields[4], (Bytes::from("Empty"), HeaderValue::from_static("")));
    }

    #[test]
    fn the_date_is_of_its_second() {
        let at = |secs| date(Nanos::from_secs(secs));
        assert_eq!(&at(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&at(784_111_778), b"Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(&at(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
