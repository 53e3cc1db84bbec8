//! Header fields as HTTP/1 carries them: written once, as bytes, for HTTP/1 to send as they are and
//! for HTTP/2 to read back.
//!
//! (A field costs the framework's map about three allocations and a thousand instructions, most of
//! them for its name; a refusal has ten.)

use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header, response};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorType, Result};

use crate::clock::Nanos;

/// `Name: value`, each with its line end. Names and values hold no line ends: they are written
/// down here, or were checked when the configuration was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// None yet, with room for those of a refusal.
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(512))
    }

    /// One more field, whose line begins so: `Name: `.
    #[inline]
    pub(super) fn add(&mut self, begin: &str, value: &[u8]) {
        field(&mut self.0, begin, |out| out.extend_from_slice(value));
    }

    /// One more field, of a number.
    #[inline]
    pub(super) fn add_number(&mut self, begin: &str, value: u64) {
        field(&mut self.0, begin, |out| number(out, value));
    }

    /// For those who write several.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// As they go over the wire.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A head of these fields for the framework.
    pub(super) fn into_head(self, status: StatusCode, version: Version) -> Result<ResponseHeader> {
        let all = Bytes::from(self.0);
        if version != Version::HTTP_2 {
            let mut head = ResponseHeader::build(status, Some(ROOM))?;
            for line in each(&all) {
                let (name, value) = parted(&all, line);
                head.append_header(all.slice(name), value_of(all.slice(value))?)?;
            }
            return Ok(head);
        }
        let mut parts: response::Parts = ResponseHeader::build_no_case(status, Some(ROOM))?.into();
        append(&all, &mut parts.headers)?;
        Ok(parts.into())
    }

    /// Appends them to a head whose names have no case.
    pub(super) fn append_to(self, head: &mut ResponseHeader) -> Result<()> {
        let none = ResponseHeader::build_no_case(head.status, Some(0))?;
        let mut parts: response::Parts = std::mem::replace(head, none).into();
        append(&Bytes::from(self.0), &mut parts.headers)?;
        *head = parts.into();
        Ok(())
    }
}

/// Names of HTTP/2 have no case, so there the map is made of names that are known, which costs next
/// to nothing.
fn append(all: &Bytes, headers: &mut HeaderMap) -> Result<()> {
    // They are written in the order of `OURS`, so the next one is mostly the next one there.
    let mut next = 0;
    for line in each(all) {
        let begins = |one: &&Name| all[line.clone()].starts_with(one.begin.as_bytes());
        let mut known = OURS[next..].iter().chain(&OURS[..next]).enumerate();
        let (name, value) = match known.find(|(_, one)| begins(one)) {
            Some((skipped, one)) => {
                next = (next + skipped + 1) % OURS.len();
                (one.name.clone(), line.start + one.begin.len()..line.end)
            }
            None => {
                let (name, value) = parted(all, line);
                (HeaderName::from_bytes(&all[name]).map_err(not_ours)?, value)
            }
        };
        headers.append(name, value_of(all.slice(value))?);
    }
    Ok(())
}

/// Fields that a map has room for from the start: those of a refusal.
const ROOM: usize = 16;

/// Where each line is, without its end.
fn each(all: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let end = from + memchr::memchr(b'\n', &all[from..])?;
        let line = from..end.saturating_sub(1);
        from = end + 1;
        Some(line)
    })
}

/// Where name and value of a line are.
fn parted(all: &[u8], line: Range<usize>) -> (Range<usize>, Range<usize>) {
    let colon = memchr::memchr(b':', &all[line.clone()]).map_or(line.end, |at| line.start + at);
    (line.start..colon, (colon + ": ".len()).min(line.end)..line.end)
}

fn not_ours(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Box<Error> {
    Error::because(ErrorType::InvalidHTTPHeader, "a field of our own", error)
}

/// A value from bytes that are kept.
fn value_of(bytes: Bytes) -> Result<HeaderValue> {
    HeaderValue::from_maybe_shared(bytes).map_err(not_ours)
}

/// The names of our own fields.
static OURS: [Name; 10] = [
    Name { begin: "Cache-Control: ", name: header::CACHE_CONTROL },
    Name { begin: "Content-Type: ", name: header::CONTENT_TYPE },
    Name { begin: "Content-Length: ", name: header::CONTENT_LENGTH },
    Name { begin: "Retry-After: ", name: header::RETRY_AFTER },
    RATELIMIT_POLICY,
    RATELIMIT,
    LIMIT,
    REMAINING,
    RESET,
    Name { begin: "Vary: ", name: header::VARY },
];

/// A name in the case that people know, and as the maps have it.
pub(super) struct Name {
    /// With which its line begins.
    pub(super) begin: &'static str,
    pub(super) name: HeaderName,
}

impl Name {
    const fn new(begin: &'static str, lower: &'static str) -> Self {
        Self { begin, name: HeaderName::from_static(lower) }
    }

    /// The name as people know it.
    pub(super) const fn shown(&self) -> &'static str {
        self.begin.split_at(self.begin.len() - ": ".len()).0
    }
}

pub(super) const RATELIMIT_POLICY: Name = Name::new("RateLimit-Policy: ", "ratelimit-policy");
pub(super) const RATELIMIT: Name = Name::new("RateLimit: ", "ratelimit");
pub(super) const LIMIT: Name = Name::new("X-RateLimit-Limit: ", "x-ratelimit-limit");
pub(super) const REMAINING: Name = Name::new("X-RateLimit-Remaining: ", "x-ratelimit-remaining");
pub(super) const RESET: Name = Name::new("X-RateLimit-Reset: ", "x-ratelimit-reset");

/// Writes one field, whose line begins so: `Name: `. (Name and colon are one constant, which is
/// written without a call.)
#[inline]
pub(super) fn field(out: &mut Vec<u8>, begin: &str, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(begin.as_bytes());
    value(out);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Bytes of a date (RFC 9110, section 5.6.7).
const DATE: usize = 29;

/// The date of an answer. It changes once a second, and is written as often.
pub(super) fn date(date: Nanos) -> [u8; DATE] {
    thread_local! {
        static LAST: Cell<(u64, [u8; DATE])> = const { Cell::new((u64::MAX, [b' '; DATE])) };
    }
    let second = date.secs();
    let (of, text) = LAST.get();
    if of == second {
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
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let head = lines.clone().into_head(StatusCode::OK, version).unwrap();
            assert_eq!(head.has_case(), version == Version::HTTP_11);
            assert_eq!(head.headers["content-type"], "text/html; a=b");
            assert_eq!(head.headers["retry-after"], "12");
            let vary: Vec<_> = head.headers.get_all("vary").iter().collect();
            assert_eq!(vary, ["Origin", "Accept"]);
            assert_eq!(head.headers["empty"], "");
        }
    }

    #[test]
    fn the_date_is_of_its_second() {
        let at = |secs| date(Nanos::from_secs(secs));
        assert_eq!(&at(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&at(784_111_778), b"Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(&at(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
