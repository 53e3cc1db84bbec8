use http::{HeaderMap, HeaderValue, Method};
use tollgate::http::validate;

use super::gate::{BOUNDS, get, is_clean};

/// The value of `Host`. Of one that passes, every other spelling is the same host.
pub fn hosts(value: &[u8]) {
    let Some(host) = host_of(value) else {
        return;
    };
    let spellings = [value.to_ascii_uppercase(), value.to_ascii_lowercase()];
    for other in spellings.iter().map(Vec::as_slice).chain([host.as_bytes()]) {
        is_host(other, &host);
    }
    if !value.contains(&b':') {
        is_host(&[value, b":8080"].concat(), &host);
    }
}

fn is_host(value: &[u8], expected: &str) {
    let host = host_of(value).unwrap_or_else(|| panic!("{} is refused", value.escape_ascii()));
    assert!(host.eq_ignore_ascii_case(expected), "{}: {host}", value.escape_ascii());
}

/// The host of a request with this value, if it passes.
fn host_of(value: &[u8]) -> Option<String> {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_bytes(value).ok()?);
    let clean = validate(get(b"/", &headers), BOUNDS).ok()?;
    is_clean(&clean, &Method::GET);
    Some(clean.host.into_owned())
}
