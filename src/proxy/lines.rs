//! Header fields as HTTP/1 carries them: written once, as bytes, for HTTP/1 to send as they are and
//! for HTTP/2 to read back.
//!
//! (A field costs the framework's map about three allocations and a thousand instructions, most of
//! them for its name; a refusal has ten.)

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, response};
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

    /// A head of these fields for the framework. Names of HTTP/2 have no case, so there the map is
    /// made of names that are known, which costs next to nothing.
    pub(super) fn into_head(self, status: StatusCode, version: Version) -> Result<ResponseHeader> {
        let all = Bytes::from(self.0);
        let mut head = ResponseHeader::build(status, Some(16))?;
        let mut plain = (version == Version::HTTP_2).then(|| HeaderMap::with_capacity(16));
        let mut from = 0;
        while let Some(end) = memchr::memchr(b'\n', &all[from..]) {
            let line = all.slice(from..(from + end).saturating_sub(1));
            from += end + 1;
            let Some(colon) = memchr::memchr(b':', &line) else {
                continue;
            };
            let value = value_of(line.slice((colon + 2).min(line.len())..))?;
            match &mut plain {
                None => drop(head.append_header(line.slice(..colon), value)?),
                Some(plain) => drop(plain.append(name_of(&line[..colon])?, value)),
            }
        }
        if let Some(plain) = plain {
            let mut parts: response::Parts = head.into();
            parts.headers = plain;
            head = parts.into();
        }
        Ok(head)
    }
}

/// A value from bytes that are kept.
pub(super) fn value_of(bytes: Bytes) -> Result<HeaderValue> {
    HeaderValue::from_maybe_shared(bytes)
        .map_err(|error| Error::because(ErrorType::InvalidHTTPHeader, "a field of our own", error))
}

/// The name of one of our own fields.
fn name_of(shown: &[u8]) -> Result<HeaderName> {
    use http::header as of;
    static OURS: [Name; 10] = [
        Name { begin: "Cache-Control: ", name: of::CACHE_CONTROL },
        Name { begin: "Content-Type: ", name: of::CONTENT_TYPE },
        Name { begin: "Content-Length: ", name: of::CONTENT_LENGTH },
        Name { begin: "Retry-After: ", name: of::RETRY_AFTER },
        RATELIMIT_POLICY,
        RATELIMIT,
        LIMIT,
        REMAINING,
        RESET,
        Name { begin: "Vary: ", name: of::VARY },
    ];
    if let Some(ours) = OURS.iter().find(|ours| ours.shown().as_bytes() == shown) {
        return Ok(ours.name.clone());
    }
    HeaderName::from_bytes(shown)
        .map_err(|error| Error::because(ErrorType::InvalidHTTPHeader, "a field of our own", error))
}

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
pub(super) fn date(wall: Nanos) -> [u8; DATE] {
    thread_local! {
        static LAST: Cell<(u64, [u8; DATE])> = const { Cell::new((u64::MAX, [b' '; DATE])) };
    }
    let second = wall.secs();
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
