//! Answers in the framework's types.
//!
//! The only file of this room that knows Pingora: it turns answers and fields, which are values of the `http` crate, into
//! Pingora's `ResponseHeader`, and a Pingora request into the head that is validated. It decides nothing.

use bytes::Bytes;
use http::{StatusCode, Version, response};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{Error, ErrorType, Result};

use super::lines::{FIELD_CAPACITY, InvalidField, Lines};
use super::ratelimit_fields::{Addition, RateLimitFields};
use super::render::Reply;
use super::validation::Head;
use crate::config::FieldEdits;

/// An answer of this proxy, ready for the framework to send.
#[derive(Clone, Debug)]
pub struct FrameworkReply {
    /// Status and fields, `Content-Length` among them.
    pub head: ResponseHeader,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// The answer for a client that speaks `version`.
    pub(crate) fn into_framework(self, version: Version) -> Result<FrameworkReply> {
        let head = self.lines.into_head(self.status, version)?;
        Ok(FrameworkReply { head, body: self.body.into() })
    }
}

impl Lines {
    /// A head with these fields. Over HTTP/1 their names keep their case.
    fn into_head(self, status: StatusCode, version: Version) -> Result<ResponseHeader> {
        if version == Version::HTTP_2 {
            let empty = ResponseHeader::build_no_case(status, Some(FIELD_CAPACITY))?;
            let mut parts: response::Parts = empty.into();
            self.append_to(&mut parts.headers).map_err(invalid)?;
            return Ok(parts.into());
        }
        let mut head = ResponseHeader::build(status, Some(FIELD_CAPACITY))?;
        for field in self.fields() {
            let (name, value) = field.map_err(invalid)?;
            head.append_header(name, value)?;
        }
        Ok(head)
    }

    /// Appends the fields to a head without keeping the case of their names.
    pub(crate) fn append_to_head(self, head: &mut ResponseHeader) -> Result<()> {
        let empty = ResponseHeader::build_no_case(head.status, Some(0))?;
        let mut parts: response::Parts = std::mem::replace(head, empty).into();
        self.append_to(&mut parts.headers).map_err(invalid)?;
        *head = parts.into();
        Ok(())
    }
}

impl RateLimitFields<'_> {
    /// Adds the fields to an answer. They are added to the fields that it has, or replace them ([`Addition::replaces`]).
    pub(crate) fn add_to_head(&self, response: &mut ResponseHeader) -> Result<()> {
        for Addition { name, value, replaces } in
            self.additions(&response.headers).map_err(invalid)?
        {
            if replaces {
                response.insert_header(name.shown(), value)?;
            } else {
                response.append_header(name.shown(), value)?;
            }
        }
        Ok(())
    }
}

/// Applies an operator's changes to a request.
pub(crate) fn edit_request(request: &mut RequestHeader, edits: &FieldEdits) -> Result<()> {
    for name in &edits.remove {
        request.remove_header(name);
    }
    for (name, value) in &edits.set {
        request.insert_header(name.clone(), value.clone())?;
    }
    for (name, value) in &edits.add {
        request.append_header(name.clone(), value.clone())?;
    }
    Ok(())
}

/// Applies an operator's changes to an origin's answer.
pub(crate) fn edit_response(response: &mut ResponseHeader, edits: &FieldEdits) -> Result<()> {
    for name in &edits.remove {
        response.remove_header(name);
    }
    for (name, value) in &edits.set {
        response.insert_header(name.clone(), value.clone())?;
    }
    for (name, value) in &edits.add {
        response.append_header(name.clone(), value.clone())?;
    }
    Ok(())
}

impl<'r> Head<'r> {
    /// The head of a request as the framework read it.
    pub fn of(head: &'r RequestHeader) -> Self {
        Self {
            method: &head.method,
            target: head.raw_path(),
            authority: match head.version {
                Version::HTTP_2 => head.uri.authority().map(http::uri::Authority::as_str),
                _ => None,
            },
            version: head.version,
            headers: &head.headers,
        }
    }
}

fn invalid(error: InvalidField) -> Box<Error> {
    Error::because(ErrorType::InvalidHTTPHeader, "a field of our own", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_the_same_fields_in_both_versions() {
        let mut lines = Lines::new();
        lines.add("Content-Type: ", b"text/html; a=b");
        lines.add("Vary: ", b"Origin");
        lines.add("Vary: ", b"Accept");
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let head = lines.clone().into_head(StatusCode::OK, version).unwrap();
            assert_eq!(head.has_case(), version == Version::HTTP_11);
            assert_eq!(head.headers["content-type"], "text/html; a=b");
            let vary: Vec<_> = head.headers.get_all("vary").iter().collect();
            assert_eq!(vary, ["Origin", "Accept"]);
        }
    }
}
