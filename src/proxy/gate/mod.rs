//! What is not a clean request is refused here, before anything is matched.
//!
//! A request that the policy reads one way and an origin another is an unlimited request. So what
//! depends on its reader is refused, and what is forwarded is the very path that was matched.
//! HTTP/1 is looked at twice: the bytes of its head before a parser that forgives sees them
//! ([`head`]), and the parsed head ([`pass`]), where HTTP/2 joins.

mod bytes;
mod framing;
mod head;
mod host;
mod path;
mod reason;

use std::borrow::Cow;

use http::{HeaderMap, Method, Version, header};
use memchr::memchr;

pub use framing::{Framing, Length};
pub use head::{HeadScan, WireHead};
pub use reason::Reason;

/// A request that may be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clean<'r> {
    /// Lower case, without port and trailing dot; empty where HTTP/1.0 sent none.
    pub host: Cow<'r, str>,
    /// The canonical path. Borrowed exactly when it is the path as it came.
    pub path: Cow<'r, str>,
    /// Other paths that origins may take it for; it must be matched alike under each.
    pub readings: Vec<String>,
    /// What follows the `?`.
    pub query: Option<&'r str>,
}

/// What the gate is told to bound.
#[derive(Clone, Copy, Debug)]
pub struct GateBounds {
    /// Bytes of the head: of names and values of all fields, and over HTTP/1 of the request line.
    pub header_size: usize,
    /// Fields.
    pub header_fields: usize,
    /// Bytes of the body, where its length is declared.
    pub body_size: Option<u64>,
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
pub fn pass(head: Head<'_>, bounds: GateBounds) -> Result<Clean<'_>, Reason> {
    if !is_known(head.method.as_str()) {
        return Err(Reason::Method);
    }
    size(head.headers, bounds)?;
    let lines = |name| head.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    let length = framing::length(
        head.version == Version::HTTP_11,
        lines(header::CONTENT_LENGTH),
        lines(header::TRANSFER_ENCODING),
    )?;
    if matches!((length, bounds.body_size), (Length::Bytes(bytes), Some(most)) if bytes > most) {
        return Err(Reason::BodySize);
    }
    lines(header::CONNECTION).try_for_each(nominates_no_end_to_end_field)?;
    let mut hosts = lines(header::HOST);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Reason::Host);
    }
    let target = std::str::from_utf8(head.target).map_err(|_| Reason::Target)?;
    let aim = aim(head.method.as_str(), target, host, head.authority, head.version)?;
    let Some(raw_path) = aim.path else {
        let (path, readings) = (Cow::Borrowed("*"), Vec::new());
        return Ok(Clean { host: aim.host, path, readings, query: None });
    };
    let path = path::canonical(raw_path)?;
    let readings = if path.ambiguous { path::readings(&path.path)? } else { Vec::new() };
    Ok(Clean { host: aim.host, path: path.path, readings, query: aim.query })
}

/// What a request is directed at.
struct Aim<'r> {
    host: Cow<'r, str>,
    /// None of `OPTIONS *`.
    path: Option<&'r str>,
    query: Option<&'r str>,
}

/// Target and authority, if there is one way to read them.
fn aim<'r>(
    method: &str,
    target: &'r str,
    host: Option<&'r [u8]>,
    authority: Option<&'r str>,
    version: Version,
) -> Result<Aim<'r>, Reason> {
    let line = host.map(|line| std::str::from_utf8(line).map_err(|_| Reason::Host)).transpose()?;
    if target == "*" && method == "OPTIONS" {
        let host = host::host(the_authority(line, authority, None, version)?)?;
        return Ok(Aim { host, path: None, query: None });
    }
    let (named, rest) = origin_form(target)?;
    if memchr(b'#', rest.as_bytes()).is_some() {
        // A fragment is never sent; parsers drop it, or do not.
        return Err(Reason::Target);
    }
    let host = host::host(the_authority(line, authority, named, version)?)?;
    let (path, query) = match memchr(b'?', rest.as_bytes()) {
        Some(mark) => (&rest[..mark], Some(&rest[mark + 1..])),
        None => (rest, None),
    };
    let strange = |query: &str| bytes::any(query.as_bytes(), bytes::STRANGE_IN_QUERY);
    if query.is_some_and(strange) || bytes::any(path.as_bytes(), bytes::STRANGE_IN_PATH) {
        return Err(Reason::Target);
    }
    // An absolute target may leave its path out (RFC 9112, section 3.2.2).
    let path = if path.is_empty() && named.is_some() { "/" } else { path };
    Ok(Aim { host, path: Some(path), query })
}

/// A target as authority (of absolute form) and what an origin is sent.
fn origin_form(target: &str) -> Result<(Option<&str>, &str), Reason> {
    if target.starts_with('/') {
        return Ok((None, target));
    }
    let (scheme, rest) = target.split_once("://").ok_or(Reason::Target)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Reason::Target);
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    if authority.is_empty() { Err(Reason::Target) } else { Ok((Some(authority), rest)) }
}

/// The one authority of a request: `Host`, or `:authority`, or an absolute target that agrees.
/// One that differs in case only is refused with the rest: the framework's parser would.
fn the_authority<'r>(
    line: Option<&'r str>,
    pseudo: Option<&'r str>,
    named: Option<&'r str>,
    version: Version,
) -> Result<&'r str, Reason> {
    match (line, pseudo.or(named)) {
        (Some(line), Some(other)) if line != other => Err(Reason::Host),
        (Some(""), _) => Err(Reason::Host),
        (Some(line), _) => Ok(line),
        (None, Some(other)) if version == Version::HTTP_2 => Ok(other),
        (None, None) if version == Version::HTTP_10 => Ok(""),
        (None, _) => Err(Reason::Host),
    }
}

/// The methods of RFC 9110 and 5789 but CONNECT and TRACE, of WebDAV and what lives beside it.
/// Names are case-sensitive: `get` is not GET.
fn is_known(method: &str) -> bool {
    const KNOWN: [&str; 19] = [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
        "OPTIONS",
        "PROPFIND",
        "PROPPATCH",
        "MKCOL",
        "COPY",
        "MOVE",
        "LOCK",
        "UNLOCK",
        "SEARCH",
        "REPORT",
        "LINK",
        "UNLINK",
        "QUERY",
    ];
    // Nearly all are one of two.
    matches!(method, "GET" | "POST") || KNOWN.contains(&method)
}

fn size(headers: &HeaderMap, bounds: GateBounds) -> Result<(), Reason> {
    if headers.len() > bounds.header_fields {
        return Err(Reason::HeaderFields);
    }
    // RFC 9113 counts names, values, and 32 bytes for each field; here it is what the wire of
    // HTTP/1 carries: name, colon, blank, value, line end.
    let total: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if total > bounds.header_size { Err(Reason::HeaderSize) } else { Ok(()) }
}

/// A field that `Connection` nominates is removed on the way: the origin would not see what the
/// policy has read. Only the fields that belong to a connection may be nominated.
fn nominates_no_end_to_end_field(line: &[u8]) -> Result<(), Reason> {
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
    if clean { Ok(()) } else { Err(Reason::ConnectionField) }
}
