use http::{HeaderMap, HeaderValue, Method};
use tollgate::http::validate;

use super::gate::{BOUNDS, get, is_clean};

/// A request target. Of one that passes, the path is canonical, and whatever origin reads it finds the
/// path or one of the other readings.
pub fn paths(target: &[u8]) {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("h"));
    if let Ok(clean) = validate(get(target, &headers), BOUNDS) {
        is_clean(&clean, &Method::GET);
        let is_borrowed = matches!(clean.path, std::borrow::Cow::Borrowed(_));
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        assert_eq!(is_borrowed && path.starts_with(b"/"), path == clean.path.as_bytes());
    }
}
