use http::{HeaderMap, HeaderValue, Method};
use tollgate::clock::Nanos;
use tollgate::http::{HeadBounds, ValidRequest, validate};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConditionResults, ConnectionFacts, PathPrefix, Rewrite};

use super::gate::{BOUNDS, get, is_clean};

/// Prefixes that are cut, and those that come in their place.
const REWRITES: [(&str, &str); 5] =
    [("", "/v2"), ("/a", ""), ("/a", "/v2/x"), ("/a/b", ""), ("/api", "/api")];

/// The longest prefix that is added, in bytes.
const MAX_PREFIX: usize = 16;

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
        for (strip, add) in REWRITES {
            rewritten(&clean, &headers, &Rewrite::new(prefix(strip), prefix(add)));
        }
    }
}

/// A rewritten path is clean and canonical, and every reading of it is the rewritten form of a reading of the path.
fn rewritten(clean: &ValidRequest<'_>, headers: &HeaderMap, rewrite: &Rewrite) {
    let client = RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false };
    let conditions = ConditionResults::default();
    let facts = clean.facts(
        client,
        &ConnectionFacts::NONE,
        Nanos::ZERO,
        &Method::GET,
        headers,
        &conditions,
    );
    // (`OPTIONS *` stays what it is.)
    if !rewrite.admits(&facts) || !clean.path.starts_with('/') {
        return;
    }
    let target = rewrite.forwarded(&clean.path).unwrap();
    // With the prefix a path may be longer than a head may be.
    let bounds = HeadBounds { header_size: BOUNDS.header_size + MAX_PREFIX, ..BOUNDS };
    let received = validate(get(target.as_bytes(), headers), bounds)
        .unwrap_or_else(|reason| panic!("{} became {target}: {reason:?}", clean.path));
    assert_eq!(received.path, target, "{} is not canonical", clean.path);
    let expected: Vec<Option<String>> =
        clean.readings.iter().map(|reading| rewrite.forwarded(reading)).collect();
    for reading in received.readings {
        assert!(expected.contains(&Some(reading.clone())), "{}: {target}: {reading}", clean.path);
    }
}

fn prefix(text: &str) -> PathPrefix {
    if text.is_empty() { PathPrefix::default() } else { PathPrefix::parse(text).unwrap() }
}
