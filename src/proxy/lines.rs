//! Header fields as HTTP/1 carries them: written once, as bytes, for HTTP/1 to send as they are and
//! for HTTP/2 to read back.
//!
//! (A field costs the framework's map about three allocations and a thousand instructions, most of
//! them for its name; a refusal has ten.)

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Version};
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

    /// One more field.
    pub(super) fn add(&mut self, name: &str, value: &[u8]) {
        field(&mut self.0, name, |out| out.extend_from_slice(value));
    }

    /// One more field, of a number.
    pub(super) fn add_number(&mut self, name: &str, value: u64) {
        field(&mut self.0, name, |out| number(out, value));
    }

    /// For those who write several.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// As they go over the wire.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Puts them into the framework's map.
    pub(super) fn into_map(self, head: &mut ResponseHeader) -> Result<()> {
        let all = Bytes::from(self.0);
        let mut from = 0;
        while let Some(end) = memchr::memchr(b'\n', &all[from..]) {
            let line = all.slice(from..(from + end).saturating_sub(1));
            from += end + 1;
            let Some(colon) = memchr::memchr(b':', &line) else {
                continue;
            };
            let value = HeaderValue::from_maybe_shared(line.slice((colon + 2).min(line.len())..));
            let value = value.map_err(|error| {
                Error::because(ErrorType::InvalidHTTPHeader, "a field of our own", error)
            })?;
            head.append_header(line.slice(..colon), value)?;
        }
        Ok(())
    }
}

/// Writes one field.
pub(super) fn field(out: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    value(out);
    out.extend_from_slice(b"\r\n");
}

/// Writes a number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A head without fields; for HTTP/2, whose names have no case.
pub(super) fn bare_head(status: http::StatusCode, version: Version) -> Result<ResponseHeader> {
    match version {
        Version::HTTP_2 => ResponseHeader::build_no_case(status, Some(16)),
        _ => ResponseHeader::build(status, Some(16)),
    }
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
        lines.add("Content-Type", b"text/html; a=b");
        lines.add_number("Retry-After", 12);
        lines.add("Vary", b"Origin");
        lines.add("Vary", b"Accept");
        lines.add("Empty", b"");
        assert!(
            lines.as_bytes().starts_with(b"Content-Type: text/html; a=b\r\nRetry-After: 12\r\n")
        );
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let mut head = bare_head(http::StatusCode::OK, version).unwrap();
            lines.clone().into_map(&mut head).unwrap();
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
