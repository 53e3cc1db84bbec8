//! The bytes of one HTTP/1 head, looked at before any parser that forgives.
//!
//! Lines end in CR LF, names are tokens that end at their colon, nothing is folded, and values
//! hold no control bytes (RFC 9112, sections 2.2 and 5.1, read strictly). What the framework's
//! parser would clean up (`Content-Length` beside `Transfer-Encoding`) or answer by itself is
//! found here, so that it is refused with a reason.

use http::Version;
use memchr::memchr;

use super::framing::{self, Length};
use super::{GateBounds, Reason, aim, bytes, is_known};

/// The longest method of the registry has 17 letters.
const MAX_METHOD: usize = 32;

/// What a head says of the bytes around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireHead {
    /// Bytes of the head, the empty line included.
    pub size: usize,
    /// How long the body is.
    pub body: Length,
    /// Whether another protocol is asked for.
    pub upgrade: bool,
}

/// How far a head has been looked at, and what was found. Every byte is looked at once, however
/// they come.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScan {
    /// Where the present line begins.
    line: usize,
    /// Up to where there is no further line end.
    seen: usize,
    /// Lines that ended.
    lines: usize,
    request: RequestLine,
    hosts: Few,
    lengths: Few,
    codings: Few,
    upgrade: bool,
}

/// A part of the head, by its places.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    from: usize,
    to: usize,
}

impl Span {
    fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.from..self.to).unwrap_or_default()
    }
}

/// The first two lines of a field: a second one is all that there is to know of the rest.
#[derive(Clone, Copy, Debug, Default)]
struct Few([Option<Span>; 2]);

impl Few {
    fn add(&mut self, value: Span) {
        let place = usize::from(self.0[0].is_some());
        self.0[place] = Some(value);
    }

    fn iter<'h>(&self, head: &'h [u8]) -> impl Iterator<Item = &'h [u8]> {
        self.0.into_iter().flatten().map(|span| span.of(head))
    }
}

/// The parts of the request line.
#[derive(Clone, Copy, Debug, Default)]
struct RequestLine {
    method: Span,
    target: Span,
    version: Version,
}

impl HeadScan {
    /// Looks at what has come of a head; `bytes` begin with its first byte. `None` while it is not
    /// whole.
    pub fn advance(
        &mut self,
        bytes: &[u8],
        bounds: GateBounds,
    ) -> Result<Option<WireHead>, Reason> {
        if bytes.first().is_some_and(|byte| bytes::of(*byte) & bytes::TOKEN == 0) {
            return Err(Reason::Syntax);
        }
        while let Some(end) = memchr(b'\n', &bytes[self.seen..]) {
            let end = self.seen + end;
            if end >= bounds.header_size {
                return Err(Reason::HeaderSize);
            }
            let line = bytes[self.line..end].strip_suffix(b"\r").ok_or(Reason::Syntax)?;
            match self.lines {
                0 => self.request = request_line(line)?,
                _ if line.is_empty() => return self.whole(&bytes[..=end]).map(Some),
                fields if fields > bounds.header_fields => return Err(Reason::HeaderFields),
                _ => self.field(line)?,
            }
            self.lines += 1;
            self.line = end + 1;
            self.seen = end + 1;
        }
        self.seen = bytes.len();
        if bytes.len() >= bounds.header_size { Err(Reason::HeaderSize) } else { Ok(None) }
    }

    /// Looks at one field's line, and keeps what says where the request ends.
    fn field(&mut self, line: &[u8]) -> Result<(), Reason> {
        let colon = memchr(b':', line).ok_or(Reason::Syntax)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let clean = bytes::all(name, bytes::TOKEN) && bytes::all(value, bytes::VALUE);
        if name.is_empty() || !clean {
            return Err(Reason::Syntax);
        }
        let kept = match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => &mut self.hosts,
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                self.upgrade = true;
                return Ok(());
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => &mut self.lengths,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => &mut self.codings,
            _ => return Ok(()),
        };
        let from = self.line + colon + 1 + (value.len() - value.trim_ascii_start().len());
        kept.add(Span { from, to: from + value.trim_ascii().len() });
        Ok(())
    }

    /// Looks at all lines together, each of which is well formed.
    fn whole(&self, head: &[u8]) -> Result<WireHead, Reason> {
        let RequestLine { method, target, version } = self.request;
        let mut hosts = self.hosts.iter(head);
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(Reason::Host);
        }
        let method = text(method.of(head), Reason::Syntax)?;
        if !is_known(method) {
            return Err(Reason::Method);
        }
        let is_http_11 = version == Version::HTTP_11;
        let (lengths, codings) = (self.lengths.iter(head), self.codings.iter(head));
        let body = framing::length(is_http_11, lengths, codings)?;
        aim(method, text(target.of(head), Reason::Target)?, host, None, version)?;
        Ok(WireHead { size: head.len(), body, upgrade: self.upgrade })
    }
}

fn text(bytes: &[u8], or: Reason) -> Result<&str, Reason> {
    std::str::from_utf8(bytes).map_err(|_| or)
}

/// Method, target and version, parted by single blanks.
fn request_line(line: &[u8]) -> Result<RequestLine, Reason> {
    let first = memchr(b' ', line).ok_or(Reason::Syntax)?;
    let second = memchr(b' ', &line[first + 1..]).ok_or(Reason::Syntax)? + first + 1;
    let (method, target) = (&line[..first], &line[first + 1..second]);
    let version = &line[second + 1..];
    let empty = method.is_empty() || target.is_empty() || version.is_empty();
    let more = memchr(b' ', version).is_some();
    if empty || more || method.len() > MAX_METHOD || !bytes::all(method, bytes::TOKEN) {
        return Err(Reason::Syntax);
    }
    let version = match version {
        b"HTTP/1.1" => Version::HTTP_11,
        b"HTTP/1.0" => Version::HTTP_10,
        other if other.strip_prefix(b"HTTP/").is_some_and(is_number) => {
            return Err(Reason::Version);
        }
        _ => return Err(Reason::Syntax),
    };
    if !bytes::all(target, bytes::TARGET) {
        return Err(Reason::Target);
    }
    let method = Span { from: 0, to: first };
    Ok(RequestLine { method, target: Span { from: first + 1, to: second }, version })
}

fn is_number(version: &[u8]) -> bool {
    version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: GateBounds = GateBounds { header_size: 400, header_fields: 5, body_size: None };

    fn scan(bytes: &[u8]) -> Result<Option<WireHead>, Reason> {
        HeadScan::default().advance(bytes, BOUNDS)
    }

    #[test]
    fn a_clean_head_is_measured() {
        let bytes = b"POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        let expected = WireHead { size: 50, body: Length::Bytes(3), upgrade: false };
        assert_eq!(scan(bytes), Ok(Some(expected)));
        for cut in 0..50 {
            let mut scan = HeadScan::default();
            assert_eq!(scan.advance(&bytes[..cut], BOUNDS), Ok(None), "cut at {cut}");
            assert_eq!(scan.advance(bytes, BOUNDS), Ok(Some(expected)), "cut at {cut}");
        }
    }

    #[test]
    fn what_readers_differ_about_is_refused() {
        let head = |text: &str| format!("GET / HTTP/1.1\r\nHost: h\r\n{text}\r\n\r\n");
        for (fields, reason) in [
            ("A: b\nC: d", Reason::Syntax),
            ("A : b", Reason::Syntax),
            (" folded", Reason::Syntax),
            ("A: b\r\n folded", Reason::Syntax),
            ("A: b\0c", Reason::Syntax),
            ("A: b\rc", Reason::Syntax),
            (": b", Reason::Syntax),
            ("no colon", Reason::Syntax),
            ("Host: h", Reason::Host),
            ("Content-Length: 5, 5", Reason::Framing),
            ("Content-Length: 5\r\nContent-Length: 5", Reason::Framing),
            ("Content-Length: +5", Reason::Framing),
            ("Content-Length:", Reason::Framing),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked", Reason::Framing),
            ("Transfer-Encoding: gzip, chunked", Reason::Framing),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Reason::Framing),
            ("Transfer-Encoding: \x0bchunked", Reason::Syntax),
            ("A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1", Reason::HeaderFields),
        ] {
            assert_eq!(scan(head(fields).as_bytes()), Err(reason), "{fields:?}");
        }
        for (bytes, reason) in [
            (&b"\x16\x03\x01"[..], Reason::Syntax),
            (b"GET / HTTP/1.1\nHost: h\n\n", Reason::Syntax),
            (b"GET  / HTTP/1.1\r\n", Reason::Syntax),
            (b"GET /\r\n", Reason::Syntax),
            (b"GET / HTTP/2.0\r\n", Reason::Version),
            (b"GET / http/1.1\r\n", Reason::Syntax),
            (b"PRI * HTTP/2.0\r\n", Reason::Version),
            (b"GET /\t HTTP/1.1\r\n", Reason::Target),
            (b"FOO / HTTP/1.1\r\nHost: h\r\n\r\n", Reason::Method),
            (b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", Reason::Method),
            (b"GET api/x HTTP/1.1\r\nHost: h\r\n\r\n", Reason::Target),
            (b"GET foo:bar://h/admin HTTP/1.1\r\nHost: h\r\n\r\n", Reason::Target),
            (b"GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n", Reason::Host),
            (b"GET / HTTP/1.1\r\n\r\n", Reason::Host),
        ] {
            assert_eq!(scan(bytes), Err(reason), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_head_is_bounded_before_it_is_whole() {
        let long = format!("GET /{} ", "a".repeat(400));
        assert_eq!(scan(long.as_bytes()), Err(Reason::HeaderSize));
    }
}
