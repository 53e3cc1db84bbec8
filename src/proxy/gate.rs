//! What is not a clean request is refused here, before anything is matched.
//!
//! A request that the policy reads one way and an origin another is an unlimited request. So a
//! target whose meaning depends on the reader is answered 400, and what is forwarded is the very
//! path that was matched: percent-encoded unreserved characters decoded once (RFC 3986, section
//! 6.2.2.2), everything else as it came.

use std::borrow::Cow;

use http::{HeaderMap, Method, Version, header};

/// The longest host: a domain name has at most 253 characters (RFC 1035).
const MAX_HOST: usize = 255;

/// A request that may be matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clean<'r> {
    /// Lower case, without port and trailing dot; empty where HTTP/1.0 sent none.
    pub host: Cow<'r, str>,
    /// The canonical path. Borrowed exactly when it is the path as it came.
    pub path: Cow<'r, str>,
    /// What follows the `?`.
    pub query: Option<&'r str>,
}

/// Why a request is refused: a closed list, for the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not origin-form, nor an absolute form of this host, nor `OPTIONS *`.
    Target,
    /// A path that readers may take for different ones.
    Path,
    /// No host, two hosts, or something that is none.
    Host,
    /// A method that no standard knows.
    Method,
    /// Length and transfer coding that readers may take for different ones.
    Framing,
    /// A larger header than is allowed.
    HeaderSize,
    /// More header fields than are allowed.
    HeaderFields,
    /// A larger body than is allowed.
    BodySize,
    /// No key where the policy insists on one.
    MissingKey,
    /// A key that stands more than once.
    RepeatedKey,
    /// No route.
    NoRoute,
}

impl Reason {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 11] = [
        Self::Target,
        Self::Path,
        Self::Host,
        Self::Method,
        Self::Framing,
        Self::HeaderSize,
        Self::HeaderFields,
        Self::BodySize,
        Self::MissingKey,
        Self::RepeatedKey,
        Self::NoRoute,
    ];

    /// The word of the metric and of the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Path => "path",
            Self::Host => "host",
            Self::Method => "method",
            Self::Framing => "framing",
            Self::HeaderSize => "header_size",
            Self::HeaderFields => "header_fields",
            Self::BodySize => "body_size",
            Self::MissingKey => "missing_key",
            Self::RepeatedKey => "repeated_key",
            Self::NoRoute => "no_route",
        }
    }

    /// The status that says it, where the policy does not.
    pub const fn status(self) -> u16 {
        match self {
            Self::Method => 501,
            Self::HeaderSize | Self::HeaderFields => 431,
            Self::BodySize => 413,
            Self::NoRoute => 404,
            Self::Target
            | Self::Path
            | Self::Host
            | Self::Framing
            | Self::MissingKey
            | Self::RepeatedKey => 400,
        }
    }
}

/// What the gate is told to bound.
#[derive(Clone, Copy, Debug)]
pub struct GateBounds {
    /// Bytes of names and values of all fields.
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
    if !is_known(head.method) {
        return Err(Reason::Method);
    }
    size(head.headers, bounds)?;
    framing(head.version, head.headers, bounds)?;
    let target = std::str::from_utf8(head.target).map_err(|_| Reason::Target)?;
    if target == "*" && head.method == Method::OPTIONS {
        let host = host(authority(&head, None)?)?;
        return Ok(Clean { host, path: Cow::Borrowed("*"), query: None });
    }
    let (named, rest) = origin_form(target)?;
    let host = host(authority(&head, named)?)?;
    let (raw_path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    if query.is_some_and(|query| query.bytes().any(|b| b <= 0x20 || b >= 0x7f || b == b'#')) {
        return Err(Reason::Target);
    }
    // An absolute target may leave its path out (RFC 9112, section 3.2.2).
    let raw_path = if raw_path.is_empty() && named.is_some() { "/" } else { raw_path };
    Ok(Clean { host, path: path(raw_path)?, query })
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

/// The methods of RFC 9110 and 5789 but CONNECT and TRACE, of WebDAV and what lives beside it.
/// Names are case-sensitive: `get` is not GET.
fn is_known(method: &Method) -> bool {
    const OTHERS: [&str; 12] = [
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
    matches!(
        *method,
        Method::GET
            | Method::HEAD
            | Method::POST
            | Method::PUT
            | Method::PATCH
            | Method::DELETE
            | Method::OPTIONS
    ) || OTHERS.contains(&method.as_str())
}

fn size(headers: &HeaderMap, bounds: GateBounds) -> Result<(), Reason> {
    if headers.len() > bounds.header_fields {
        return Err(Reason::HeaderFields);
    }
    // What RFC 9113 counts: names, values, and 32 bytes for each field would be HTTP/2's measure;
    // here it is what the wire of HTTP/1 carries: name, colon, blank, value, line end.
    let total: usize =
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if total > bounds.header_size { Err(Reason::HeaderSize) } else { Ok(()) }
}

fn framing(version: Version, headers: &HeaderMap, bounds: GateBounds) -> Result<(), Reason> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if lengths.next().is_some()
        || codings.next().is_some()
        || (length.is_some() && coding.is_some())
    {
        return Err(Reason::Framing);
    }
    if let Some(coding) = coding
        && (version != Version::HTTP_11 || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(Reason::Framing);
    }
    let Some(length) = length else {
        return Ok(());
    };
    let digits = length.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Reason::Framing);
    }
    let length = length.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    match (length, bounds.body_size) {
        (None, _) => Err(Reason::Framing),
        (Some(length), Some(most)) if length > most => Err(Reason::BodySize),
        (Some(_), _) => Ok(()),
    }
}

/// The one authority of a request: `Host`, or `:authority`, or an absolute target that agrees.
fn authority<'r>(head: &Head<'r>, named: Option<&'r str>) -> Result<&'r str, Reason> {
    let mut lines = head.headers.get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(Reason::Host);
    }
    let line = line.map(|line| line.to_str().map_err(|_| Reason::Host)).transpose()?;
    match (line, head.authority.or(named)) {
        (Some(line), Some(other)) if !line.eq_ignore_ascii_case(other) => Err(Reason::Host),
        (Some(""), _) => Err(Reason::Host),
        (Some(line), _) => Ok(line),
        (None, Some(other)) if head.version == Version::HTTP_2 => Ok(other),
        (None, None) if head.version == Version::HTTP_10 => Ok(""),
        (None, _) => Err(Reason::Host),
    }
}

/// An authority's host: lower case, without port and one trailing dot.
fn host(authority: &str) -> Result<Cow<'_, str>, Reason> {
    if authority.is_empty() {
        return Ok(Cow::Borrowed(""));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, port) = rest.split_once(']').ok_or(Reason::Host)?;
            inside.parse::<std::net::Ipv6Addr>().map_err(|_| Reason::Host)?;
            (&authority[..inside.len() + 2], port)
        }
        None => match authority.find(':') {
            Some(colon) => authority.split_at(colon),
            None => (authority, ""),
        },
    };
    let port_is_one = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            digits.is_empty() || digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 5
        }
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let clean = host.starts_with('[')
        || !name.is_empty()
            && name.bytes().all(is_name)
            && !name.starts_with('.')
            && !name.ends_with('.')
            && !name.contains("..");
    if !port_is_one || !clean || host.len() > MAX_HOST {
        return Err(Reason::Host);
    }
    Ok(if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

/// The canonical path, if there is only one way to read it.
///
/// Refused: `\` and `;` (some origins take them for `/`, or cut the segment there), control bytes
/// and bytes that are not ASCII, escapes that are broken or hide `/`, `\`, `;`, `%` or a control
/// byte, empty segments, and segments `.` and `..` however they are written.
fn path(raw: &str) -> Result<Cow<'_, str>, Reason> {
    let mut canonical: Option<Vec<u8>> = None;
    let bytes = raw.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let step = match byte {
            b'%' => {
                let decoded = escape(bytes, at).ok_or(Reason::Path)?;
                match decoded {
                    0..=0x1f | 0x7f | b'/' | b'\\' | b';' | b'%' => return Err(Reason::Path),
                    b if is_unreserved(b) => {
                        canonical.get_or_insert_with(|| bytes[..at].to_vec()).push(b);
                    }
                    _ => {
                        if let Some(canonical) = &mut canonical {
                            canonical.extend_from_slice(&bytes[at..at + 3]);
                        }
                    }
                }
                3
            }
            b'\\' | b';' | b'#' | 0..=0x20 | 0x7f.. => return Err(Reason::Path),
            _ => {
                if let Some(canonical) = &mut canonical {
                    canonical.push(byte);
                }
                1
            }
        };
        at += step;
    }
    let path = match canonical {
        None => Cow::Borrowed(raw),
        Some(bytes) => Cow::Owned(String::from_utf8(bytes).map_err(|_| Reason::Path)?),
    };
    let rest = path.strip_prefix('/').ok_or(Reason::Path)?;
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        if segment == "." || segment == ".." || (segment.is_empty() && !last) {
            return Err(Reason::Path);
        }
    }
    Ok(path)
}

/// The byte that an escape at `at` stands for.
fn escape(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |place: usize| char::from(*bytes.get(place)?).to_digit(16);
    u8::try_from(digit(at + 1)? * 16 + digit(at + 2)?).ok()
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_path(raw: &str, expected: Option<&str>) {
        assert_eq!(path(raw).ok().as_deref(), expected, "{raw}");
    }

    #[test]
    fn one_path_per_meaning() {
        check_path("/", Some("/"));
        check_path("/api/track", Some("/api/track"));
        check_path("/api/track/", Some("/api/track/"));
        check_path("/%61pi/%7Euser", Some("/api/~user"));
        check_path("/a%20b/caf%c3%a9", Some("/a%20b/caf%c3%a9"));
        check_path("/a@b:c,d=e+f!g'(h)*$&", Some("/a@b:c,d=e+f!g'(h)*$&"));
        for raw in [
            "",
            "api",
            "//",
            "/a//b",
            "/.",
            "/a/..",
            "/a/%2e%2e/b",
            "/a/.%2E",
            "/a;b",
            "/a\\b",
            "/a%2fb",
            "/a%5Cb",
            "/a%3bb",
            "/a%00",
            "/a%0a",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a%2561",
            "/a b",
            "/\u{e9}",
        ] {
            check_path(raw, None);
        }
    }

    #[test]
    fn one_host_per_name() {
        for (authority, expected) in [
            ("example.com", Some("example.com")),
            ("EXAMPLE.com:8080", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("[2001:db8::1]:80", Some("[2001:db8::1]")),
            ("example.com:", Some("example.com")),
            ("example.com..", None),
            ("user@example.com", None),
            ("example.com:80:80", None),
            ("example.com:x", None),
            ("exa mple.com", None),
            ("[::1", None),
            (".example.com", None),
            ("a..b", None),
        ] {
            assert_eq!(host(authority).ok().as_deref(), expected, "{authority}");
        }
    }
}
