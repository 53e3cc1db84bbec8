//! The bytes of one HTTP/1 head, looked at before any parser that forgives.
//!
//! Lines end in CR LF, names are tokens that end at their colon, nothing is folded, and values
//! hold no control bytes (RFC 9112, sections 2.2 and 5.1, read strictly). What the framework's
//! parser would clean up (`Content-Length` beside `Transfer-Encoding`) or answer by itself is
//! found here, so that it is refused with a reason.

use http::Version;

use super::framing::{self, Length};
use super::{GateBounds, Reason, aim, is_known};

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

/// How far a head has been looked at. Every byte is looked at once, however they come.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScan {
    /// Where the present line begins.
    line: usize,
    /// Up to where there is no further line end.
    seen: usize,
    /// Lines that ended.
    lines: usize,
}

impl HeadScan {
    /// Looks at what has come of a head; `bytes` begin with its first byte. `None` while it is not
    /// whole.
    pub fn advance(
        &mut self,
        bytes: &[u8],
        bounds: GateBounds,
    ) -> Result<Option<WireHead>, Reason> {
        if !bytes.first().is_none_or(|byte| is_token(*byte)) {
            return Err(Reason::Syntax);
        }
        while let Some(end) = bytes[self.seen..].iter().position(|byte| *byte == b'\n') {
            let end = self.seen + end;
            if end >= bounds.header_size {
                return Err(Reason::HeaderSize);
            }
            let line = bytes[self.line..end].strip_suffix(b"\r").ok_or(Reason::Syntax)?;
            match self.lines {
                0 => drop(request_line(line)?),
                _ if line.is_empty() => {
                    return whole(&bytes[..=end]).map(Some);
                }
                fields if fields > bounds.header_fields => return Err(Reason::HeaderFields),
                _ => drop(field(line)?),
            }
            self.lines += 1;
            self.line = end + 1;
            self.seen = end + 1;
        }
        self.seen = bytes.len();
        if bytes.len() >= bounds.header_size { Err(Reason::HeaderSize) } else { Ok(None) }
    }
}

/// Looks at all lines together, each of which is well formed.
fn whole(head: &[u8]) -> Result<WireHead, Reason> {
    let mut lines =
        head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let (method, target, version) = request_line(lines.next().unwrap_or_default())?;
    let (mut host, mut upgrade) = (None, false);
    let (mut lengths, mut codings) = (Few::default(), Few::default());
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = field(line)?;
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") && host.is_some() => {
                return Err(Reason::Host);
            }
            4 if name.eq_ignore_ascii_case(b"host") => host = Some(value),
            7 if name.eq_ignore_ascii_case(b"upgrade") => upgrade = true,
            14 if name.eq_ignore_ascii_case(b"content-length") => lengths.add(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => codings.add(value),
            _ => {}
        }
    }
    if !is_known(method) {
        return Err(Reason::Method);
    }
    let is_http_11 = version == Version::HTTP_11;
    let body = framing::length(is_http_11, lengths.iter(), codings.iter())?;
    aim(method, target, host, None, version)?;
    Ok(WireHead { size: head.len(), body, upgrade })
}

/// Method, target and version, parted by single blanks.
fn request_line(line: &[u8]) -> Result<(&str, &str, Version), Reason> {
    let line = std::str::from_utf8(line).map_err(|_| Reason::Syntax)?;
    let mut words = line.split(' ');
    let mut word = || words.next().filter(|word| !word.is_empty()).ok_or(Reason::Syntax);
    let (method, target, version) = (word()?, word()?, word()?);
    let more = words.next().is_some();
    if more || method.len() > MAX_METHOD || !method.bytes().all(is_token) {
        return Err(Reason::Syntax);
    }
    let version = match version {
        "HTTP/1.1" => Version::HTTP_11,
        "HTTP/1.0" => Version::HTTP_10,
        other if other.strip_prefix("HTTP/").is_some_and(is_number) => {
            return Err(Reason::Version);
        }
        _ => return Err(Reason::Syntax),
    };
    if target.bytes().any(|byte| !(0x20..0x7f).contains(&byte)) {
        return Err(Reason::Target);
    }
    Ok((method, target, version))
}

fn is_number(version: &str) -> bool {
    version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Name and value of a field's line, without the blanks around the value.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Reason> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Reason::Syntax)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let clean = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    if name.is_empty() || !name.iter().copied().all(is_token) || !value.iter().all(clean) {
        return Err(Reason::Syntax);
    }
    Ok((name, value.trim_ascii()))
}

/// The bytes of names (RFC 9110, section 5.6.2).
const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// The first two lines of a field: a second one is all that there is to know of the rest.
#[derive(Default)]
struct Few<'h>([Option<&'h [u8]>; 2]);

impl<'h> Few<'h> {
    fn add(&mut self, line: &'h [u8]) {
        let place = usize::from(self.0[0].is_some());
        self.0[place] = Some(line);
    }

    fn iter(&self) -> impl Iterator<Item = &'h [u8]> {
        self.0.iter().copied().flatten()
    }
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
