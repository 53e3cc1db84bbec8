//! What is not a clean request is refused here, before anything is matched.
//!
//! A request that the policy reads one way and an origin another is an unlimited request. So what
//! depends on its reader is refused, and what is forwarded is the very path that was matched.
//! Of HTTP/1 the bytes of the head are looked at before a parser that forgives sees them ([`head`]),
//! and what was found there is read out of the parsed head ([`validate_scanned`]). A head of HTTP/2,
//! which the framework has parsed, is looked at by [`pass`].

mod bytes;
mod fields;
mod framing;
mod head;
mod host;
mod path;
mod readings;
mod reject_reason;
mod scanned_head;
mod uncommon_fields;

use std::borrow::Cow;

use http::{HeaderMap, Method, Version, header};

use crate::clock::Nanos;
use crate::config::Bounds;
use crate::policy::Facts;
use crate::policy::client::RequestClient;

pub use fields::FieldRules;
pub use framing::{Framing, Length};
pub use head::{HeadScan, WireHead};
pub use reject_reason::RejectReason;
pub use scanned_head::{HostCache, ScannedHead, validate_scanned};
pub use uncommon_fields::UncommonFields;

/// A request that may be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidRequest<'r> {
    /// Lower case, without port and trailing dot; empty where HTTP/1.0 sent none.
    pub host: Cow<'r, str>,
    /// The canonical path. Borrowed exactly when it is the path as it came.
    pub path: Cow<'r, str>,
    /// Other paths that origins may take it for; it must be matched alike under each.
    pub readings: Vec<String>,
    /// What follows the `?`.
    pub query: Option<&'r str>,
    /// Fields that need a second look ([`FieldRules`]).
    pub rare: UncommonFields,
}

impl ValidRequest<'_> {
    /// The facts of the validated request. `method` and `headers` are those of the validated head; `now` is the
    /// date ([`Facts::now`]).
    pub fn facts<'f>(
        &'f self,
        client: RequestClient,
        now: Nanos,
        method: &'f Method,
        headers: &'f HeaderMap,
    ) -> Facts<'f> {
        Facts {
            client,
            now,
            method: method.as_str(),
            host: &self.host,
            path: &self.path,
            readings: &self.readings,
            query: self.query,
            headers,
        }
    }
}

/// What the gate is told to bound.
#[derive(Clone, Copy, Debug)]
pub struct HeadBounds {
    /// Bytes of the head: of names and values of all fields, and over HTTP/1 of the request line.
    pub header_size: usize,
    /// Fields.
    pub header_fields: usize,
    /// Bytes of the body, where its length is declared.
    pub body_size: Option<u64>,
}

impl HeadBounds {
    /// The bounds that a configuration sets.
    pub fn of(bounds: &Bounds) -> Self {
        let Bounds { header_size, header_fields, body_size, .. } = *bounds;
        Self { header_size, header_fields, body_size }
    }
}

/// The head of a request, as the wire carried it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'r> {
    /// The method.
    pub method: &'r Method,
    /// The request target of HTTP/1; path and query of HTTP/2.
    pub target: &'r [u8],
    /// `:authority` of HTTP/2.
    pub authority: Option<&'r str>,
    /// The protocol's version.
    pub version: Version,
    /// All fields.
    pub headers: &'r HeaderMap,
}

/// Looks at the head of a request.
pub fn validate(head: Head<'_>, bounds: HeadBounds) -> Result<ValidRequest<'_>, RejectReason> {
    let method = head.method.as_str().as_bytes();
    if !is_known(method) {
        return Err(RejectReason::Method);
    }
    let rare = size(head.headers, bounds)?;
    let lines = |name| head.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    let length = framing::length(
        head.version == Version::HTTP_11,
        lines(header::CONTENT_LENGTH),
        lines(header::TRANSFER_ENCODING),
    )?;
    if matches!((length, bounds.body_size), (Length::Bytes(bytes), Some(most)) if bytes > most) {
        return Err(RejectReason::BodySize);
    }
    lines(header::CONNECTION).try_for_each(nominates_no_end_to_end_field)?;
    let mut hosts = lines(header::HOST);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(RejectReason::Host);
    }
    let authority = head.authority.map(str::as_bytes);
    let (authority, aim) = aim(method, head.target, host, authority, head.version)?;
    let target = std::str::from_utf8(head.target).map_err(|_| RejectReason::Target)?;
    aim.read(host::host(authority)?, target, rare)
}

/// Where a request's target names what it is directed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TargetSpans {
    /// None of `OPTIONS *`. An empty one means `/`: an absolute target may leave its path out
    /// (RFC 9112, section 3.2.2).
    path: Option<Span>,
    query: Option<Span>,
}

/// A part of some bytes, by its places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    from: usize,
    to: usize,
}

impl Span {
    fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.from..self.to).unwrap_or_default()
    }

    fn of_text(self, text: &str) -> &str {
        text.get(self.from..self.to).unwrap_or_default()
    }
}

impl TargetSpans {
    /// What is to be matched.
    fn read<'r>(
        self,
        host: Cow<'r, str>,
        target: &'r str,
        rare: UncommonFields,
    ) -> Result<ValidRequest<'r>, RejectReason> {
        let Some(path) = self.path else {
            let (path, readings) = (Cow::Borrowed("*"), Vec::new());
            return Ok(ValidRequest { host, path, readings, query: None, rare });
        };
        let raw = if path.from == path.to { "/" } else { path.of_text(target) };
        let path = path::canonical(raw)?;
        let readings = if path.ambiguous { readings::readings(&path.path)? } else { Vec::new() };
        let query = self.query.map(|query| query.of_text(target));
        Ok(ValidRequest { host, path: path.path, readings, query, rare })
    }
}

/// Authority and target, if there is one way to read them.
fn aim<'r>(
    method: &[u8],
    target: &'r [u8],
    host: Option<&'r [u8]>,
    authority: Option<&'r [u8]>,
    version: Version,
) -> Result<(&'r [u8], TargetSpans), RejectReason> {
    if target == b"*" && method == b"OPTIONS" {
        let aim = TargetSpans { path: None, query: None };
        return Ok((the_authority(host, authority, None, version)?, aim));
    }
    let (named, rest) = origin_form(target)?;
    let from = target.len() - rest.len();
    let (path, query) = rest.split_at(bytes::lead(rest, bytes::IN_PATH));
    let to = from + path.len();
    let query = match query.split_first() {
        None => None,
        Some((b'?', query)) if !bytes::any(query, bytes::STRANGE_IN_QUERY) => {
            Some(Span { from: to + 1, to: target.len() })
        }
        Some(_) => return Err(RejectReason::Target),
    };
    let path = Span { from, to };
    let authority = the_authority(host, authority, named, version)?;
    Ok((authority, TargetSpans { path: Some(path), query }))
}

/// A target as authority (of absolute form) and what an origin is sent.
fn origin_form(target: &[u8]) -> Result<(Option<&[u8]>, &[u8]), RejectReason> {
    if target.starts_with(b"/") {
        return Ok((None, target));
    }
    let target = std::str::from_utf8(target).map_err(|_| RejectReason::Target)?;
    let (scheme, rest) = target.split_once("://").ok_or(RejectReason::Target)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(RejectReason::Target);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if authority.is_empty() {
        return Err(RejectReason::Target);
    }
    Ok((Some(authority.as_bytes()), rest.as_bytes()))
}

/// The one authority of a request: `Host`, or `:authority`, or an absolute target that agrees.
/// One that differs in case only is refused with the rest: the framework's parser would.
fn the_authority<'r>(
    line: Option<&'r [u8]>,
    pseudo: Option<&'r [u8]>,
    named: Option<&'r [u8]>,
    version: Version,
) -> Result<&'r [u8], RejectReason> {
    match (line, pseudo.or(named)) {
        (Some(line), Some(other)) if line != other => Err(RejectReason::Host),
        (Some(b""), _) => Err(RejectReason::Host),
        (Some(line), _) => Ok(line),
        (None, Some(other)) if version == Version::HTTP_2 => Ok(other),
        (None, None) if version == Version::HTTP_10 => Ok(b""),
        (None, _) => Err(RejectReason::Host),
    }
}

/// The methods of RFC 9110 and 5789 but CONNECT and TRACE, of WebDAV and what lives beside it.
/// Names are case-sensitive: `get` is not GET.
fn is_known(method: &[u8]) -> bool {
    const KNOWN: [&[u8]; 19] = [
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"PATCH",
        b"DELETE",
        b"OPTIONS",
        b"PROPFIND",
        b"PROPPATCH",
        b"MKCOL",
        b"COPY",
        b"MOVE",
        b"LOCK",
        b"UNLOCK",
        b"SEARCH",
        b"REPORT",
        b"LINK",
        b"UNLINK",
        b"QUERY",
    ];
    // Nearly all are one of two.
    matches!(method, b"GET" | b"POST") || KNOWN.contains(&method)
}

/// Bounds the fields, and says which of them are rare.
fn size(headers: &HeaderMap, bounds: HeadBounds) -> Result<UncommonFields, RejectReason> {
    if headers.len() > bounds.header_fields {
        return Err(RejectReason::HeaderFields);
    }
    // RFC 9113 counts names, values, and 32 bytes for each field; here it is what the wire of
    // HTTP/1 carries: name, colon, blank, value, line end.
    let (mut total, mut cookies, mut rare) = (0, 0, UncommonFields::NONE);
    for (name, value) in headers {
        total += name.as_str().len() + value.len() + 4;
        cookies += usize::from(name == header::COOKIE);
        rare |= UncommonFields::of_any_name(name.as_str().as_bytes());
    }
    if cookies > 1 {
        rare |= UncommonFields::COOKIES;
    }
    if total > bounds.header_size { Err(RejectReason::HeaderSize) } else { Ok(rare) }
}

/// A field that `Connection` nominates is removed on the way: the origin would not see what the
/// policy has read. Only the fields that belong to a connection may be nominated.
fn nominates_no_end_to_end_field(line: &[u8]) -> Result<(), RejectReason> {
    const OF_A_CONNECTION: [&[u8]; 7] = [
        b"close",
        b"keep-alive",
        b"upgrade",
        b"te",
        b"trailer",
        b"http2-settings",
        b"proxy-connection",
    ];
    let known = |option: &[u8]| {
        option.is_empty() || OF_A_CONNECTION.iter().any(|known| option.eq_ignore_ascii_case(known))
    };
    let clean = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).all(known);
    if clean { Ok(()) } else { Err(RejectReason::ConnectionField) }
}
