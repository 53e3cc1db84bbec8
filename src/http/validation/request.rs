//! The validation of a parsed head, and its result.

use std::borrow::Cow;

use http::{HeaderMap, Method, Version, header};

use super::framing::{self, Length};
use super::host;
use super::reject_reason::RejectReason;
use super::target::locate;
use super::uncommon_fields::UncommonFields;
use crate::clock::Nanos;
use crate::config::Bounds;
use crate::policy::client::RequestClient;
use crate::policy::{ConditionResults, ConnectionFacts, Facts, KNOWN_METHODS};

/// A request that may be matched: two readers cannot take it for different requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidRequest<'r> {
    /// Lower case, without port and trailing dot; empty where HTTP/1.0 sent none.
    pub host: Cow<'r, str>,
    /// The canonical path. Borrowed exactly when it is the path as it came.
    pub path: Cow<'r, str>,
    /// Other paths that origins may read it as. It must be matched alike under each.
    pub readings: Vec<String>,
    /// What follows the `?`.
    pub query: Option<&'r str>,
    /// Fields that need a second look ([`crate::http::FieldRules`]).
    pub uncommon: UncommonFields,
}

impl ValidRequest<'_> {
    /// The facts of the validated request. `method` and `headers` are those of the validated head; `now` is the
    /// date ([`Facts::now`]); `conditions` is new for each request.
    pub fn facts<'f>(
        &'f self,
        client: RequestClient,
        connection: &'f ConnectionFacts,
        now: Nanos,
        method: &'f Method,
        headers: &'f HeaderMap,
        conditions: &'f ConditionResults,
    ) -> Facts<'f> {
        Facts {
            client,
            connection,
            now,
            method: method.as_str(),
            host: &self.host,
            path: &self.path,
            readings: &self.readings,
            query: self.query,
            headers,
            conditions: Some(conditions),
        }
    }
}

/// Bounds of a head.
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

/// Validates the head of a request that a parser has read.
///
/// # Errors
/// The reason to refuse it.
pub fn validate(head: Head<'_>, bounds: HeadBounds) -> Result<ValidRequest<'_>, RejectReason> {
    let method = head.method.as_str().as_bytes();
    if !is_known(method) {
        return Err(RejectReason::Method);
    }
    let uncommon = size(head.headers, bounds)?;
    let lines = |name| head.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    let length = framing::length(
        head.version == Version::HTTP_11,
        lines(header::CONTENT_LENGTH),
        lines(header::TRANSFER_ENCODING),
    )?;
    if matches!((length, bounds.body_size), (Length::Bytes(bytes), Some(max)) if bytes > max) {
        return Err(RejectReason::BodySize);
    }
    lines(header::CONNECTION).try_for_each(nominates_no_end_to_end_field)?;
    let mut hosts = lines(header::HOST);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(RejectReason::Host);
    }
    let authority = head.authority.map(str::as_bytes);
    let (authority, spans) = locate(method, head.target, host, authority, head.version)?;
    let target = std::str::from_utf8(head.target).map_err(|_| RejectReason::Target)?;
    spans.read(host::host(authority)?, target, uncommon)
}

/// Whether a method is one of [`KNOWN_METHODS`]. Names are case-sensitive: `get` is not GET.
pub(super) fn is_known(method: &[u8]) -> bool {
    // Nearly all requests use one of these two.
    matches!(method, b"GET" | b"POST")
        || KNOWN_METHODS.iter().any(|known| known.as_bytes() == method)
}

/// Checks the bounds of the fields, and finds the uncommon ones.
fn size(headers: &HeaderMap, bounds: HeadBounds) -> Result<UncommonFields, RejectReason> {
    if headers.len() > bounds.header_fields {
        return Err(RejectReason::HeaderFields);
    }
    // RFC 9113 counts names, values, and 32 bytes for each field. Here it is what HTTP/1 sends: name, colon, space,
    // value, line end.
    let (mut total, mut cookies, mut uncommon) = (0, 0, UncommonFields::NONE);
    for (name, value) in headers {
        total += name.as_str().len() + value.len() + 4;
        cookies += usize::from(name == header::COOKIE);
        uncommon |= UncommonFields::of_any_name(name.as_str().as_bytes());
    }
    if cookies > 1 {
        uncommon |= UncommonFields::COOKIES;
    }
    if total > bounds.header_size { Err(RejectReason::HeaderSize) } else { Ok(uncommon) }
}

/// Refuses a `Connection` line that nominates an end-to-end field. A nominated field is removed on the way, so the origin
/// would not see what the policy has read.
pub(super) fn nominates_no_end_to_end_field(line: &[u8]) -> Result<(), RejectReason> {
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
