//! What holds of everything that the gate lets through.

use http::{HeaderMap, HeaderValue, Method, Version};
use tollgate::http::{Head, HeadBounds, RejectReason, ValidRequest, validate};

use super::origin;

/// Small, so that short inputs reach the bounds.
pub(super) const BOUNDS: HeadBounds =
    HeadBounds { header_size: 4096, header_fields: 20, body_size: Some(1_000_000) };

/// Most other readings of a path: twelve that take habits together, twice (README, "What is a clean
/// request").
const MAX_READINGS: usize = 26;

/// Checks a request that passed.
pub(super) fn is_clean(clean: &ValidRequest<'_>, method: &Method) {
    let path = &*clean.path;
    assert!(path.starts_with('/') || path == "*" && *method == Method::OPTIONS, "{path}");
    assert!(path.bytes().all(|byte| byte.is_ascii_graphic()), "{path}");
    let is_name = !clean.host.contains([':', '@', '/', '?', '#', '\\', ' ', ','])
        && !clean.host.ends_with('.')
        && !clean.host.bytes().any(|byte| byte.is_ascii_uppercase());
    assert!(is_name || clean.host.starts_with('[') && clean.host.ends_with(']'), "{}", clean.host);
    if path == "*" {
        return;
    }
    assert!(clean.readings.len() <= MAX_READINGS, "{path}: {}", clean.readings.len());
    // What is forwarded is read again as what was matched.
    let again = passed(path).unwrap_or_else(|reason| panic!("{path}: {reason:?}"));
    assert_eq!((&*again.0, &again.1), (path, &clean.readings));
    origin::finds_its_reading(path, &clean.readings);
}

/// The canonical path and the other readings of a GET for `target`.
fn passed(target: &str) -> Result<(String, Vec<String>), RejectReason> {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("h"));
    let clean = validate(get(target.as_bytes(), &headers), BOUNDS)?;
    Ok((clean.path.into_owned(), clean.readings))
}

/// A GET over HTTP/1.1.
pub(super) const fn get<'r>(target: &'r [u8], headers: &'r HeaderMap) -> Head<'r> {
    let version = Version::HTTP_11;
    Head { method: &Method::GET, target, authority: None, version, headers }
}
