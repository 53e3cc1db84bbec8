//! The target of a request: what it names, and where its path and query are.
//!
//! Only the forms that all readers read alike pass: origin form, absolute form with the authority of `Host`, and
//! `OPTIONS *`.

use std::borrow::Cow;

use http::Version;

use super::reject_reason::RejectReason;
use super::request::ValidRequest;
use super::uncommon_fields::UncommonFields;
use super::{bytes, path, readings};

/// Where path and query are in a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetSpans {
    /// `None` for `OPTIONS *`. An empty path means `/`: an absolute target may omit its path (RFC 9112, section 3.2.2).
    path: Option<Span>,
    query: Option<Span>,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Span {
    pub(super) fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.from..self.to).unwrap_or_default()
    }

    pub(super) fn of_text(self, text: &str) -> &str {
        text.get(self.from..self.to).unwrap_or_default()
    }
}

impl TargetSpans {
    /// The request to match.
    pub(super) fn read<'r>(
        self,
        host: Cow<'r, str>,
        target: &'r str,
        uncommon: UncommonFields,
    ) -> Result<ValidRequest<'r>, RejectReason> {
        let Some(path) = self.path else {
            let (path, readings) = (Cow::Borrowed("*"), Vec::new());
            return Ok(ValidRequest { host, path, readings, query: None, uncommon });
        };
        let raw = if path.from == path.to { "/" } else { path.of_text(target) };
        let path = path::canonical(raw)?;
        let readings = if path.ambiguous { readings::readings(&path.path)? } else { Vec::new() };
        let query = self.query.map(|query| query.of_text(target));
        Ok(ValidRequest { host, path: path.path, readings, query, uncommon })
    }
}

/// Authority and target, if there is only one way to read them.
pub(super) fn locate<'r>(
    method: &[u8],
    target: &'r [u8],
    host: Option<&'r [u8]>,
    authority: Option<&'r [u8]>,
    version: Version,
) -> Result<(&'r [u8], TargetSpans), RejectReason> {
    if target == b"*" && method == b"OPTIONS" {
        let spans = TargetSpans { path: None, query: None };
        return Ok((authority_of(host, authority, None, version)?, spans));
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
    let authority = authority_of(host, authority, named, version)?;
    Ok((authority, TargetSpans { path: Some(path), query }))
}

/// The authority of a target in absolute form, and the rest that an origin receives.
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

/// The authority of a request: `Host`, `:authority`, or an absolute target that agrees. A difference in case only is
/// refused too, as the framework's parser would.
fn authority_of<'r>(
    line: Option<&'r [u8]>,
    pseudo: Option<&'r [u8]>,
    named: Option<&'r [u8]>,
    version: Version,
) -> Result<&'r [u8], RejectReason> {
    match (line, pseudo.or(named)) {
        (Some(line), Some(other)) if line != other => Err(RejectReason::Host),
        (Some(b""), _) => Err(RejectReason::Host),
        (Some(line), _) => Ok(line),
        (None, Some(other)) if version >= Version::HTTP_2 => Ok(other),
        (None, None) if version == Version::HTTP_10 => Ok(b""),
        (None, _) => Err(RejectReason::Host),
    }
}
