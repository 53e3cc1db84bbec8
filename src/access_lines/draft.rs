//! The record of a line while its fields come in, in whatever order the format has them.
//!
//! Several fields may say the same: the host is in an absolute URL, in `Host` and in the name of the virtual server. Each
//! has a rank, and the higher rank stays. Of several times, the finer stays, then the start of the request.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use memchr::{memchr, memrchr};
use serde_json::value::RawValue;

use super::decimal::{self, DecimalNanos, TimeUnit};
use super::record::{AccessLine, LineError, Moment, Stamp};
use super::text::slice;
use super::time_pattern::{CivilFields, TimePattern};
use super::time_reader::{FoundTime, TimeForm, TimeReader};

/// The largest number of header fields that a record holds; servers refuse requests with more.
const MAX_HEADERS: usize = 256;

/// What a field of a line says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meaning {
    Ignored,
    Time(TimeForm, Moment),
    /// A time, or a piece of one, by a pattern of Apache.
    Pattern(TimePattern, Moment),
    Duration(TimeUnit),
    /// An address, with or without a port. The higher rank stays.
    Client(u8),
    Method,
    Host(u8),
    /// `GET /path HTTP/1.1`.
    RequestLine,
    /// The path with the query.
    Target,
    /// The host, and the path right after it.
    HostAndTarget,
    Path,
    /// With or without the `?`.
    Query,
    Status,
    ResponseBytes(u8),
    User,
    /// A header field of the request; its name in lower case.
    Header(Cow<'static, str>),
    /// An object of header fields.
    Headers,
    /// `https` or `http`.
    Scheme,
    /// Something that is there, or `on`, if the connection was encrypted.
    Tls,
    /// tollgate's own member.
    Own,
    /// What tollgate decided.
    OwnDecision,
}

/// A record whose fields come in.
#[derive(Debug)]
pub(super) struct Draft<'l> {
    line: AccessLine<'l>,
    stamp: Option<Stamp>,
    has_bad_time: bool,
    /// Times by patterns: of the start, and of the end. Few formats have any, and the fields are large.
    civil: Option<Box<[CivilFields; 2]>>,
    path: Option<Cow<'l, str>>,
    query: Option<Cow<'l, str>>,
    client_rank: u8,
    host_rank: u8,
    bytes_rank: u8,
}

impl<'l> Draft<'l> {
    /// Nothing is known yet.
    pub(super) fn new() -> Self {
        let line = AccessLine {
            stamp: Stamp { nanos: 0, resolution: 1, moment: Moment::Unknown },
            duration: None,
            duration_step: 1,
            client: None,
            method: None,
            host: None,
            target: None,
            status: None,
            response_bytes: None,
            user_agent: None,
            referer: None,
            user: None,
            headers: Vec::new(),
            is_tls: None,
            own: None,
            is_own: false,
            is_refused_early: false,
        };
        Self {
            line,
            stamp: None,
            has_bad_time: false,
            civil: None,
            path: None,
            query: None,
            client_rank: 0,
            host_rank: 0,
            bytes_rank: 0,
        }
    }

    /// Takes a field. Nothing and `-` say nothing.
    pub(super) fn set(&mut self, meaning: &Meaning, text: Cow<'l, str>, times: &mut TimeReader) {
        match meaning {
            // Apache writes `-` for no bytes.
            Meaning::ResponseBytes(rank) if text == "-" => self.response_bytes("0", *rank),
            _ if matches!(text.as_ref(), "" | "-") => {}
            Meaning::Ignored | Meaning::Headers | Meaning::Own => {}
            Meaning::Time(form, moment) => self.time(times.read(*form, text.as_bytes()), *moment),
            Meaning::Pattern(pattern, moment) => self.pattern(pattern, *moment, text.as_bytes()),
            Meaning::Duration(unit) => self.duration(decimal::duration(&text, *unit)),
            Meaning::Client(rank) => self.client(address(&text), *rank),
            Meaning::Method if text == "_OTHER" => {}
            Meaning::Method => self.line.method = Some(text),
            Meaning::Host(rank) => self.host(text, *rank),
            Meaning::RequestLine => self.request_line(text),
            Meaning::Target => self.line.target = Some(text),
            Meaning::HostAndTarget => self.host_and_target(text),
            Meaning::Path => self.path = Some(text),
            Meaning::Query => self.query = Some(text),
            Meaning::OwnDecision => {
                self.line.is_refused_early = matches!(&*text, "rejected" | "redirected");
                self.line.is_own = self.line.is_refused_early
                    || matches!(&*text, "allowed" | "limited" | "outage");
            }
            Meaning::Status => self.status(&text),
            Meaning::ResponseBytes(rank) => self.response_bytes(&text, *rank),
            Meaning::User => self.user(text),
            Meaning::Header(name) => self.header(name.clone(), text),
            Meaning::Scheme => self.tls(text.starts_with("https") || text.starts_with("wss")),
            Meaning::Tls => self.tls(!matches!(text.as_ref(), "off" | "false" | "none")),
        }
    }

    /// Takes a time. `None` is one that could not be read.
    pub(super) fn time(&mut self, found: Option<FoundTime>, moment: Moment) {
        let Some(FoundTime { nanos, resolution }) = found else {
            self.has_bad_time = true;
            return;
        };
        let is_better = self.stamp.is_none_or(|known| {
            resolution < known.resolution
                || (resolution == known.resolution
                    && moment == Moment::Start
                    && known.moment != Moment::Start)
        });
        if is_better {
            self.stamp = Some(Stamp { nanos, resolution, moment });
        }
    }

    fn pattern(&mut self, pattern: &TimePattern, moment: Moment, text: &[u8]) {
        let civil = self.civil.get_or_insert_default();
        let fields = &mut civil[usize::from(moment == Moment::End)];
        if pattern.read(text, fields).is_none() {
            self.has_bad_time = true;
        }
    }

    /// Takes the duration.
    pub(super) fn duration(&mut self, read: Option<DecimalNanos>) {
        if let Some(DecimalNanos { nanos, resolution }) = read {
            self.line.duration = Some(nanos);
            self.line.duration_step = resolution;
        }
    }

    /// Takes the address of the client.
    pub(super) fn client(&mut self, address: Option<IpAddr>, rank: u8) {
        if address.is_some() && rank >= self.client_rank {
            self.line.client = address;
            self.client_rank = rank;
        }
    }

    /// Takes the host.
    pub(super) fn host(&mut self, text: Cow<'l, str>, rank: u8) {
        if !matches!(text.as_ref(), "" | "-" | "_") && rank >= self.host_rank {
            self.line.host = Some(text);
            self.host_rank = rank;
        }
    }

    /// Takes `GET /path HTTP/1.1`. Text of another shape, such as a TLS handshake on a plain port, says nothing.
    pub(super) fn request_line(&mut self, text: Cow<'l, str>) {
        let Some(space) = memchr(b' ', text.as_bytes()) else {
            return;
        };
        let is_method = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_');
        if space == 0 || space > 32 || !text.as_bytes()[..space].iter().copied().all(is_method) {
            return;
        }
        let end = match memrchr(b' ', text.as_bytes()) {
            Some(last) if last > space && text[last + 1..].starts_with("HTTP/") => last,
            // A client of HTTP/0.9 names no version, and Envoy writes `-` for one that it does not know.
            Some(last) if last > space && &text[last + 1..] == "-" => last,
            _ if text[space + 1..].starts_with('/') => text.len(),
            _ => return,
        };
        // Envoy and AWS write `-` for the method of a request that they cannot read.
        if &text[..space] == "-" {
            return;
        }
        self.line.method = Some(slice(&text, 0..space));
        let target = slice(&text, space + 1..end);
        self.line.target = Some(target).filter(|target| !matches!(target.as_ref(), "" | "-"));
    }

    /// Takes a host with the path right after it. NGINX writes `-` for the path of a request that it cannot read.
    fn host_and_target(&mut self, text: Cow<'l, str>) {
        match memchr(b'/', text.as_bytes()) {
            Some(slash) => {
                self.host(slice(&text, 0..slash), 2);
                self.line.target = Some(slice(&text, slash..text.len()));
            }
            None => {
                let host = text.strip_suffix('-').map_or(text.len(), str::len);
                self.host(slice(&text, 0..host), 2);
            }
        }
    }

    /// Takes the status.
    pub(super) fn status(&mut self, text: &str) {
        let status = text.parse::<u16>().ok();
        self.line.status = status.filter(|status| (100..=999).contains(status));
    }

    /// Takes the bytes of the response.
    pub(super) fn response_bytes(&mut self, text: &str, rank: u8) {
        if let Ok(bytes) = text.trim_start_matches('+').parse()
            && rank >= self.bytes_rank
        {
            self.line.response_bytes = Some(bytes);
            self.bytes_rank = rank;
        }
    }

    /// Takes the user. Apache writes `""` for a name without a character.
    pub(super) fn user(&mut self, text: Cow<'l, str>) {
        self.line.user = Some(text).filter(|user| !matches!(user.as_ref(), "" | "-" | "\"\""));
    }

    /// Takes a header field of the request. A value that the server hid would make all clients equal, so it says nothing.
    pub(super) fn header(&mut self, name: Cow<'l, str>, value: Cow<'l, str>) {
        if matches!(value.as_ref(), "" | "-" | "REDACTED") {
            return;
        }
        match name.as_ref() {
            "user-agent" => self.line.user_agent = Some(value),
            "referer" => self.line.referer = Some(value),
            "host" => self.host(value, 3),
            _ if self.line.headers.len() >= MAX_HEADERS => {}
            // The operator may have named a field that the format knows anyway.
            _ if self.line.headers.iter().any(|known| (&known.0, &known.1) == (&name, &value)) => {}
            _ => self.line.headers.push((name, value)),
        }
    }

    /// Takes whether the connection was encrypted.
    pub(super) fn tls(&mut self, is_tls: bool) {
        self.line.is_tls = Some(is_tls);
    }

    /// Says that the connection was not encrypted unless the line told otherwise.
    pub(super) fn plain_by_default(&mut self) {
        self.line.is_tls.get_or_insert(false);
    }

    /// Takes tollgate's own member.
    pub(super) fn own(&mut self, own: &'l RawValue) {
        self.line.own = Some(own);
    }

    /// The record, if there is a time.
    pub(super) fn finish(mut self, times: &mut TimeReader) -> Result<AccessLine<'l>, LineError> {
        if let Some(civil) = self.civil.take() {
            for (fields, moment) in civil.iter().zip([Moment::Start, Moment::End]) {
                if fields.is_used() {
                    self.time(fields.found(times), moment);
                }
            }
        }
        match self.stamp {
            Some(stamp) => self.line.stamp = stamp,
            None if self.has_bad_time => return Err(LineError::BadTime),
            None => return Err(LineError::NoTime),
        }
        if self.line.target.is_none() {
            self.line.target = join(self.path.take(), self.query.take());
        }
        self.cut_absolute_target();
        Ok(self.line)
    }

    /// Cuts `http://host/path` to its path. `CONNECT` names a host instead of a path.
    fn cut_absolute_target(&mut self) {
        let Some(target) = self.line.target.take() else {
            return;
        };
        if target.starts_with('/') {
            self.line.target = Some(target);
            return;
        }
        if self.line.method.as_deref() == Some("CONNECT") {
            self.host(target.clone(), 0);
            self.line.target = Some(target);
            return;
        }
        let scheme = match target.find("://") {
            Some(end) if target[..end].bytes().all(|byte| byte.is_ascii_alphabetic()) => end + 3,
            Some(_) | None => {
                self.line.target = Some(target);
                return;
            }
        };
        let authority = target[scheme..].find(['/', '?']).map_or(target.len(), |at| scheme + at);
        self.host(slice(&target, scheme..authority), 0);
        self.line.target = Some(match target[authority..].chars().next() {
            Some('/') => slice(&target, authority..target.len()),
            Some(_) => Cow::Owned(format!("/{}", &target[authority..])),
            None => Cow::Borrowed("/"),
        });
    }
}

/// A path and a query as one target.
fn join<'l>(path: Option<Cow<'l, str>>, query: Option<Cow<'l, str>>) -> Option<Cow<'l, str>> {
    let path = path?;
    match query {
        Some(query) if path.contains('?') || query == "?" => Some(path),
        Some(query) => {
            let mut target = path.into_owned();
            if !query.starts_with('?') {
                target.push('?');
            }
            target.push_str(&query);
            Some(Cow::Owned(target))
        }
        None => Some(path),
    }
}

/// An address, with or without a port, brackets and the name of an interface. An IPv4 address in IPv6 is IPv4.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip().to_canonical());
    }
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let inner = inner.split_once('%').map_or(inner, |(address, _)| address);
    inner.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_lines::zone::Zone;

    #[test]
    fn request_lines_are_divided() {
        let check = |text: &'static str, expected: (Option<&str>, Option<&str>, Option<&str>)| {
            let mut times = TimeReader::new(Zone::UTC);
            let mut draft = Draft::new();
            draft.set(&Meaning::RequestLine, Cow::Borrowed(text), &mut times);
            draft.set(
                &Meaning::Time(TimeForm::Any, Moment::End),
                Cow::Borrowed("1795502789"),
                &mut times,
            );
            let line = draft.finish(&mut times).unwrap();
            let found = (line.method.as_deref(), line.target.as_deref(), line.host.as_deref());
            assert_eq!(found, expected, "{text}");
        };
        check("GET /a?b=c HTTP/1.1", (Some("GET"), Some("/a?b=c"), None));
        check("GET /a b HTTP/1.1", (Some("GET"), Some("/a b"), None));
        check("GET /", (Some("GET"), Some("/"), None));
        check("GET http://h:80/x HTTP/1.1", (Some("GET"), Some("/x"), Some("h:80")));
        check("GET http://h HTTP/1.1", (Some("GET"), Some("/"), Some("h")));
        check("GET http://h?q HTTP/1.1", (Some("GET"), Some("/?q"), Some("h")));
        check("CONNECT h:443 HTTP/1.1", (Some("CONNECT"), Some("h:443"), Some("h:443")));
        check("OPTIONS * HTTP/1.1", (Some("OPTIONS"), Some("*"), None));
        check("- - HTTP/1.1", (None, None, None));
        for garbage in ["-", "\u{16}\u{3}\u{1}", "\u{16}\u{3} a", "SSH-2.0-Go", "G\u{e9}T / x"] {
            check(garbage, (None, None, None));
        }
    }

    #[test]
    fn addresses_are_read_with_their_surroundings() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("10.0.0.1:80", Some("10.0.0.1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("[::1]", Some("::1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("client.example.com", None),
        ] {
            assert_eq!(address(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }
}
