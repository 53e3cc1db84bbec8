//! The scan of one HTTP/1 head, before the framework's lenient parser reads it.
//!
//! Lines end in CR LF, names are tokens that end at their colon, nothing is folded, and values
//! hold no control bytes (RFC 9112, sections 2.2 and 5.1, read strictly). What the framework's
//! parser would repair (`Content-Length` together with `Transfer-Encoding`) or answer by itself is found here, so that it
//! is refused with a reason. The scan knows bytes only: no policy, no connection. However the bytes arrive, the result is
//! the same.

use http::Version;
use memchr::memchr;

use super::bytes;
use super::framing::{self, Length};
use super::reject_reason::RejectReason;
use super::request::{HeadBounds, is_known, nominates_no_end_to_end_field};
use super::scanned_head::{HostCache, ScannedHead};
use super::target::{Span, locate};
use super::uncommon_fields::UncommonFields;

/// The longest method of the registry has 17 letters.
const MAX_METHOD: usize = 32;

/// The longest target, in bytes: the framework keeps it in an `http::Uri`, which has this bound, and would answer a
/// longer one by itself. It matters where `header_size` is larger.
const MAX_TARGET: usize = u16::MAX as usize - 1;

/// A complete head, and where its request ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireHead {
    /// Bytes of the head, the empty line included.
    pub size: usize,
    /// The length of the body.
    pub body: Length,
    /// What the scan found.
    pub scanned: ScannedHead,
}

/// The progress of a scan, and what was found. Each byte is looked at three times at most, however the bytes arrive: in
/// an incomplete line, in the search for its end, and in the complete line.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScan {
    /// Where the current line begins.
    line: usize,
    /// No line end was found before this position.
    seen: usize,
    /// Complete lines.
    lines: usize,
    request: RequestLine,
    hosts: FirstTwo,
    lengths: FirstTwo,
    codings: FirstTwo,
    nominates: bool,
    has_cookies: bool,
    uncommon: UncommonFields,
}

/// The first two lines of a field. Whether there is a second line is all that matters about the others.
#[derive(Clone, Copy, Debug, Default)]
struct FirstTwo([Option<Span>; 2]);

impl FirstTwo {
    fn add(&mut self, value: Span) {
        let index = usize::from(self.0[0].is_some());
        self.0[index] = Some(value);
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
    /// Scans what has arrived of a head; `bytes` begin with its first byte. `None` while the head is incomplete. `last`
    /// is the cache of the connection.
    pub fn advance(
        &mut self,
        bytes: &[u8],
        bounds: HeadBounds,
        last: &mut HostCache,
    ) -> Result<Option<WireHead>, RejectReason> {
        if bytes.first().is_some_and(|byte| bytes::of(*byte) & bytes::TOKEN == 0) {
            return Err(RejectReason::Syntax);
        }
        loop {
            // An incomplete line is scanned again only when its end has arrived.
            if self.seen > self.line && memchr(b'\n', &bytes[self.seen..]).is_none() {
                break;
            }
            let rest = &bytes[self.line..];
            let line = match self.lines {
                0 => request_line(rest)?.map(|(request, size)| {
                    self.request = request;
                    size
                }),
                // The first byte of a field has not arrived.
                _ if rest.len() < 2 && LINE_END.starts_with(rest) => None,
                _ if rest.starts_with(LINE_END) => {
                    let size = self.line + LINE_END.len();
                    if size > bounds.header_size {
                        return Err(RejectReason::HeaderSize);
                    }
                    return self.complete(&bytes[..size], last).map(Some);
                }
                fields if fields > bounds.header_fields => return Err(RejectReason::HeaderFields),
                _ => self.field(rest)?,
            };
            let Some(size) = line else {
                break;
            };
            self.lines += 1;
            self.line += size;
            self.seen = self.line;
        }
        self.seen = bytes.len();
        if bytes.len() >= bounds.header_size { Err(RejectReason::HeaderSize) } else { Ok(None) }
    }

    /// Scans the line of a field at the beginning of `rest`, and keeps the fields that decide where the request ends.
    /// Returns the size of the line; `None` while it is incomplete.
    fn field(&mut self, rest: &[u8]) -> Result<Option<usize>, RejectReason> {
        let (colon, is_usual) = bytes::lead_of_name(rest);
        let (name, after) = rest.split_at(colon);
        let after = match after.split_first() {
            None => return Ok(None),
            Some((b':', after)) if colon > 0 => after,
            Some(_) => return Err(RejectReason::Syntax),
        };
        let value = &after[..bytes::lead_of_value(after)];
        let Some(()) = line_end(&after[value.len()..])? else {
            return Ok(None);
        };
        let size = Some(colon + 1 + value.len() + LINE_END.len());
        if !is_usual {
            self.uncommon |= UncommonFields::ODD_NAME;
        }
        let kept = match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => &mut self.hosts,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                self.nominates |= nominates_no_end_to_end_field(value).is_err();
                return Ok(size);
            }
            6 if name.eq_ignore_ascii_case(b"cookie") => {
                if self.has_cookies {
                    self.uncommon |= UncommonFields::COOKIES;
                }
                self.has_cookies = true;
                return Ok(size);
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => &mut self.lengths,
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => &mut self.codings,
            _ => {
                self.uncommon |= UncommonFields::of_name(name);
                return Ok(size);
            }
        };
        let from = self.line + colon + 1 + (value.len() - value.trim_ascii_start().len());
        kept.add(Span { from, to: from + value.trim_ascii().len() });
        Ok(size)
    }

    /// Judges all lines together, each of which is well formed.
    fn complete(&self, head: &[u8], last: &mut HostCache) -> Result<WireHead, RejectReason> {
        let RequestLine { method, target, version } = self.request;
        let mut hosts = self.hosts.iter(head);
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(RejectReason::Host);
        }
        let (method, target) = (method.of(head), target.of(head));
        if !is_known(method) {
            return Err(RejectReason::Method);
        }
        let is_http_11 = version == Version::HTTP_11;
        let (lengths, codings) = (self.lengths.iter(head), self.codings.iter(head));
        let body = framing::length(is_http_11, lengths, codings)?;
        let (authority, spans) = locate(method, target, host, None, version)?;
        let (host, target) = (last.of(authority)?, target.len());
        let (nominates, uncommon) = (self.nominates, self.uncommon);
        let scanned = ScannedHead { host, spans, target, body, nominates, uncommon };
        Ok(WireHead { size: head.len(), body, scanned })
    }
}

const LINE_END: &[u8] = b"\r\n";

/// How nearly every request line ends.
const USUAL_END: &[u8] = b"HTTP/1.1\r\n";

/// Whether a line ends here; `None` while that is unknown.
fn line_end(rest: &[u8]) -> Result<Option<()>, RejectReason> {
    if rest.starts_with(LINE_END) {
        Ok(Some(()))
    } else if LINE_END.starts_with(rest) {
        Ok(None)
    } else {
        Err(RejectReason::Syntax)
    }
}

/// Reads method, target and version, separated by single spaces, from the beginning of `rest`. Returns them with the size
/// of the line; `None` while it is incomplete.
fn request_line(rest: &[u8]) -> Result<Option<(RequestLine, usize)>, RejectReason> {
    let method = bytes::lead(rest, bytes::TOKEN);
    if method > MAX_METHOD {
        return Err(RejectReason::Syntax);
    }
    let after = match rest[method..].split_first() {
        None => return Ok(None),
        Some((b' ', after)) if method > 0 => after,
        Some(_) => return Err(RejectReason::Syntax),
    };
    let from = method + 1;
    let target = Span { from, to: from + bytes::lead(after, bytes::TARGET) };
    if target.to - from > MAX_TARGET {
        return Err(RejectReason::HeaderSize);
    }
    let after = match rest[target.to..].split_first() {
        None => return Ok(None),
        Some((b' ', after)) if target.to > from => after,
        Some((b' ' | b'\r', _)) => return Err(RejectReason::Syntax),
        Some(_) => return Err(RejectReason::Target),
    };
    let (version, named) = match after.starts_with(USUAL_END) {
        true => (Version::HTTP_11, USUAL_END.len() - LINE_END.len()),
        false => match version(after)? {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let size = target.to + 1 + named + LINE_END.len();
    Ok(Some((RequestLine { method: Span { from: 0, to: method }, target, version }, size)))
}

/// The version that `rest` begins with, and its bytes; `None` while its line is incomplete.
fn version(rest: &[u8]) -> Result<Option<(Version, usize)>, RejectReason> {
    let named = &rest[..bytes::lead(rest, bytes::TARGET)];
    let Some(()) = line_end(&rest[named.len()..])? else {
        return Ok(None);
    };
    let version = match named {
        b"HTTP/1.1" => Version::HTTP_11,
        b"HTTP/1.0" => Version::HTTP_10,
        other if other.strip_prefix(b"HTTP/").is_some_and(is_number) => {
            return Err(RejectReason::Version);
        }
        _ => return Err(RejectReason::Syntax),
    };
    Ok(Some((version, named.len())))
}

fn is_number(version: &[u8]) -> bool {
    version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::super::validate_scanned;
    use super::*;

    const BOUNDS: HeadBounds = HeadBounds { header_size: 400, header_fields: 5, body_size: None };

    fn scan(bytes: &[u8]) -> Result<Option<WireHead>, RejectReason> {
        HeadScan::default().advance(bytes, BOUNDS, &mut HostCache::default())
    }

    #[test]
    fn a_clean_head_is_measured() {
        let bytes = b"POST /a?b HTTP/1.1\r\nHost: H:80\r\nContent-Length: 3\r\n\r\nabc";
        let complete = scan(bytes).unwrap().unwrap();
        assert_eq!((complete.size, complete.body), (53, Length::Bytes(3)));
        let clean = validate_scanned(&complete.scanned, b"/a?b", BOUNDS).unwrap().unwrap();
        assert_eq!((&*clean.host, &*clean.path, clean.query), ("h", "/a", Some("b")));
        assert_eq!(validate_scanned(&complete.scanned, b"/a?bc", BOUNDS), None, "another target");
        let small = HeadBounds { body_size: Some(2), ..BOUNDS };
        assert_eq!(
            validate_scanned(&complete.scanned, b"/a?b", small),
            Some(Err(RejectReason::BodySize))
        );
        for cut in 0..53 {
            let (mut scan, mut last) = (HeadScan::default(), HostCache::default());
            assert_eq!(scan.advance(&bytes[..cut], BOUNDS, &mut last), Ok(None), "cut at {cut}");
            let scanned = scan.advance(bytes, BOUNDS, &mut last);
            assert_eq!(scanned, Ok(Some(complete.clone())), "cut at {cut}");
        }
    }

    #[test]
    fn the_last_host_is_only_that_of_its_authority() {
        let mut last = HostCache::default();
        let mut host_of = |authority: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            let head = HeadScan::default().advance(head.as_bytes(), BOUNDS, &mut last);
            head.map(|head| head.unwrap().scanned.host)
        };
        for (authority, host) in [("A", "a"), ("A", "a"), ("a.", "a"), ("b:1", "b"), ("A", "a")] {
            assert_eq!(host_of(authority).as_deref(), Ok(host));
            assert_eq!(host_of("a b"), Err(RejectReason::Host));
        }
        let old = b"GET / HTTP/1.0\r\n\r\n";
        let old = HeadScan::default().advance(old, BOUNDS, &mut last).unwrap().unwrap();
        assert_eq!(&*old.scanned.host, "");
    }

    #[test]
    fn what_readers_differ_about_is_refused() {
        let head = |text: &str| format!("GET / HTTP/1.1\r\nHost: h\r\n{text}\r\n\r\n");
        for (fields, reason) in [
            ("A: b\nC: d", RejectReason::Syntax),
            ("A : b", RejectReason::Syntax),
            (" folded", RejectReason::Syntax),
            ("A: b\r\n folded", RejectReason::Syntax),
            ("A: b\0c", RejectReason::Syntax),
            ("A: b\rc", RejectReason::Syntax),
            (": b", RejectReason::Syntax),
            ("no colon", RejectReason::Syntax),
            ("Host: h", RejectReason::Host),
            ("Content-Length: 5, 5", RejectReason::Framing),
            ("Content-Length: 5\r\nContent-Length: 5", RejectReason::Framing),
            ("Content-Length: +5", RejectReason::Framing),
            ("Content-Length:", RejectReason::Framing),
            ("Content-Length: 5\r\nTransfer-Encoding: chunked", RejectReason::Framing),
            ("Transfer-Encoding: gzip, chunked", RejectReason::Framing),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", RejectReason::Framing),
            ("Transfer-Encoding: \x0bchunked", RejectReason::Syntax),
            ("A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1", RejectReason::HeaderFields),
        ] {
            assert_eq!(scan(head(fields).as_bytes()), Err(reason), "{fields:?}");
        }
        for (bytes, reason) in [
            (&b"\x16\x03\x01"[..], RejectReason::Syntax),
            (b"GET / HTTP/1.1\nHost: h\n\n", RejectReason::Syntax),
            (b"GET  / HTTP/1.1\r\n", RejectReason::Syntax),
            (b"GET /\r\n", RejectReason::Syntax),
            (b"GET / HTTP/2.0\r\n", RejectReason::Version),
            (b"GET / http/1.1\r\n", RejectReason::Syntax),
            (b"PRI * HTTP/2.0\r\n", RejectReason::Version),
            (b"GET /\t HTTP/1.1\r\n", RejectReason::Target),
            (b"FOO / HTTP/1.1\r\nHost: h\r\n\r\n", RejectReason::Method),
            (b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", RejectReason::Method),
            (b"GET api/x HTTP/1.1\r\nHost: h\r\n\r\n", RejectReason::Target),
            (b"GET /?a=\"b\" HTTP/1.1\r\nHost: h\r\n\r\n", RejectReason::Target),
            (b"GET foo:bar://h/admin HTTP/1.1\r\nHost: h\r\n\r\n", RejectReason::Target),
            (b"GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n", RejectReason::Host),
            (b"GET / HTTP/1.1\r\n\r\n", RejectReason::Host),
        ] {
            assert_eq!(scan(bytes), Err(reason), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_target_is_no_longer_than_the_framework_takes() {
        let bounds = HeadBounds { header_size: 1 << 20, ..BOUNDS };
        for (length, fits) in [(MAX_TARGET, true), (MAX_TARGET + 1, false)] {
            let target = format!("/?{}", "a".repeat(length - 2));
            let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let found =
                HeadScan::default().advance(head.as_bytes(), bounds, &mut HostCache::default());
            assert_eq!(found.is_ok(), fits, "{length}");
            // The framework keeps a target as this type.
            assert_eq!(http::Uri::try_from(target).is_ok(), fits, "{length}");
        }
    }

    #[test]
    fn a_head_is_bounded_before_it_is_complete() {
        let long = format!("GET /{} ", "a".repeat(400));
        assert_eq!(scan(long.as_bytes()), Err(RejectReason::HeaderSize));
    }
}
