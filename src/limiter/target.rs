//! The head of a request in the `http` crate's types, as it is validated.

use std::borrow::Cow;

use http::request::Parts;
use http::{Uri, Version};

use crate::http::Head;

/// The request target: that of the request line over HTTP/1, path and query over HTTP/2.
pub(super) fn target(parts: &Parts) -> Cow<'_, str> {
    let uri = &parts.uri;
    let has_line = parts.version < Version::HTTP_2;
    match (uri.path_and_query(), uri.authority()) {
        // The absolute form (RFC 9112, section 3.2.2).
        (Some(_), Some(_)) if has_line => Cow::Owned(uri.to_string()),
        (Some(path), _) => Cow::Borrowed(path.as_str()),
        // The authority form of CONNECT.
        (None, Some(authority)) => Cow::Borrowed(authority.as_str()),
        (None, None) => Cow::Borrowed("/"),
    }
}

/// The head of a request with the [`target`] that was made for it.
pub(super) fn head<'r>(parts: &'r Parts, target: &'r str) -> Head<'r> {
    let authority = match parts.version < Version::HTTP_2 {
        true => None,
        false => Uri::authority(&parts.uri).map(http::uri::Authority::as_str),
    };
    Head {
        method: &parts.method,
        target: target.as_bytes(),
        authority,
        version: parts.version,
        headers: &parts.headers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_that_of_the_request_line() {
        let cases = [
            ("/a?b=c", Version::HTTP_11, "/a?b=c", None),
            ("http://h.example/a?b", Version::HTTP_11, "http://h.example/a?b", None),
            ("http://h.example/a?b", Version::HTTP_2, "/a?b", Some("h.example")),
            ("h.example:443", Version::HTTP_11, "h.example:443", None),
            ("*", Version::HTTP_11, "*", None),
        ];
        for (uri, version, expected, authority) in cases {
            let request = http::Request::builder().uri(uri).version(version).body(()).unwrap();
            let (parts, ()) = request.into_parts();
            let target = target(&parts);
            assert_eq!(target, expected, "{uri}");
            assert_eq!(head(&parts, &target).authority, authority, "{uri}");
        }
    }
}
