//! What a trusted proxy says about a request in `X-Forwarded-Proto` and `X-Forwarded-Host`.
//!
//! Some proxies replace these fields, others append to what came. The peer of this connection is the only one that is
//! trusted, and it wrote last. So the last value of the last line counts, as with forwarded addresses. Every value before
//! it may be the client's.

use http::HeaderMap;

/// The scheme that the peer names, as it wrote it. `None`: it names none, or something that is no scheme (RFC 3986,
/// section 3.1).
pub(crate) fn forwarded_scheme(headers: &HeaderMap) -> Option<&str> {
    let scheme = str::from_utf8(last_value(headers, "x-forwarded-proto")?).ok()?;
    let is_mark = |byte: u8| matches!(byte, b'+' | b'-' | b'.');
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte));
    is_scheme.then_some(scheme)
}

/// The host that the peer names, as it wrote it. `None`: it names none.
#[cfg(feature = "bin")]
pub(crate) fn forwarded_host(headers: &HeaderMap) -> Option<&[u8]> {
    last_value(headers, "x-forwarded-host").filter(|host| !host.is_empty())
}

/// Whether the peer says that its client used https. Some proxies name the scheme of WebSockets (RFC 6455, section 3).
pub(super) fn came_over_https(headers: &HeaderMap) -> bool {
    let is = |scheme: &str, name: &str| scheme.eq_ignore_ascii_case(name);
    forwarded_scheme(headers).is_some_and(|scheme| is(scheme, "https") || is(scheme, "wss"))
}

/// The text after the last comma of the last line.
fn last_value<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h [u8]> {
    let line = headers.get_all(name).iter().next_back()?;
    line.as_bytes().rsplit(|byte| *byte == b',').next().map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_value_of_the_last_line_counts() {
        for (lines, scheme, is_https) in [
            (&["https"][..], Some("https"), true),
            (&["HTTPS"], Some("HTTPS"), true),
            (&["wss"], Some("wss"), true),
            (&["http"], Some("http"), false),
            (&["https, http"], Some("http"), false),
            (&["http ,\thttps "], Some("https"), true),
            (&["https", "http"], Some("http"), false),
            (&["http, http", "http,https"], Some("https"), true),
            (&["https,"], None, false),
            (&["https", ""], None, false),
            (&["https\u{e4}"], None, false),
            (&["https;q=1"], None, false),
            (&["\"https\""], None, false),
            (&["1https"], None, false),
            (&[], None, false),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(
                    "x-forwarded-proto",
                    http::HeaderValue::from_bytes(line.as_bytes()).unwrap(),
                );
            }
            assert_eq!(forwarded_scheme(&headers), scheme, "{lines:?}");
            assert_eq!(came_over_https(&headers), is_https, "{lines:?}");
        }
    }
}
