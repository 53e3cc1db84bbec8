//! A rewritten path is read by no origin as a path that was not matched: every reading of it is the rewritten form of a
//! reading of the path that the client sent.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderValue, Method, Version};
use proptest::prelude::*;
use tollgate::clock::Nanos;
use tollgate::http::{Head, HeadBounds, ValidRequest, validate};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConditionResults, ConnectionFacts, PathPrefix, Rewrite};

const PIECES: [&str; 24] = [
    "/",
    "/",
    "/",
    "api",
    "api",
    "/api/",
    "admin",
    "x",
    "..",
    ".",
    "%2e",
    "%2E%2e",
    "%2f",
    "%2F",
    "%5c",
    "\\",
    ";",
    ";a=b",
    "%3b",
    "%252f",
    "%252e%252e",
    "%3f",
    "%23",
    "%20",
];

fn headers() -> HeaderMap {
    let host = HeaderValue::from_static("a");
    HeaderMap::from_iter([(http::header::HOST, host)])
}

fn valid<'r>(target: &'r str, headers: &'r HeaderMap) -> Option<ValidRequest<'r>> {
    let head = Head {
        method: &Method::GET,
        target: target.as_bytes(),
        authority: None,
        version: Version::HTTP_11,
        headers,
    };
    let bounds = HeadBounds { header_size: 100_000, header_fields: 100, body_size: None };
    validate(head, bounds).ok()
}

/// The path that is forwarded, if the request is not refused.
fn forwarded(rewrite: &Rewrite, valid: &ValidRequest<'_>, headers: &HeaderMap) -> Option<String> {
    let client = RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false };
    let conditions = ConditionResults::default();
    let facts = valid.facts(
        client,
        &ConnectionFacts::NONE,
        Nanos::ZERO,
        &Method::GET,
        headers,
        &conditions,
    );
    rewrite.admits(&facts).then(|| rewrite.forwarded(&valid.path).unwrap())
}

fn check(rewrite: &Rewrite, path: &str) -> Result<bool, TestCaseError> {
    let headers = headers();
    let Some(matched) = valid(path, &headers) else {
        return Ok(false);
    };
    let Some(target) = forwarded(rewrite, &matched, &headers) else {
        return Ok(false);
    };
    prop_assert!(!target.starts_with("//") && !target.starts_with("/\\"), "{path}: {target}");
    let received = valid(&target, &headers);
    prop_assert!(received.is_some(), "{path}: {target} is not clean");
    let received = received.unwrap();
    prop_assert_eq!(&*received.path, &*target, "{} is not canonical", path);
    let expected: BTreeSet<Option<String>> =
        matched.readings.iter().map(|reading| rewrite.forwarded(reading)).collect();
    let found: BTreeSet<Option<String>> = received.readings.into_iter().map(Some).collect();
    prop_assert!(found.is_subset(&expected), "{path}: {found:?}, expected {expected:?}");
    Ok(true)
}

fn prefix(text: &str) -> PathPrefix {
    if text.is_empty() { PathPrefix::default() } else { PathPrefix::parse(text).unwrap() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn what_an_origin_reads_was_matched(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..9),
        begins_with in prop::sample::select(vec!["/", "/api", "/api/"]),
        (strip, add) in prop::sample::select(vec![
            ("/api", ""), ("", "/v2"), ("/api", "/v2/x"), ("/api", "/api"), ("/api/x", ""),
        ]),
    ) {
        let path = format!("{begins_with}{}", pieces.concat());
        check(&Rewrite::new(prefix(strip), prefix(add)), &path)?;
    }
}

#[test]
fn paths_of_everyday_pass() {
    let rewrite = Rewrite::new(prefix("/api"), prefix(""));
    for path in
        ["/api", "/api/", "/api/x", "/api/a//b", "/api/@scope%2fname", "/api/a;v=1", "/api/x%3Fy"]
    {
        assert!(check(&rewrite, path).unwrap(), "{path}");
    }
    for path in ["/", "/apix", "/api//x", "/api/a/../b", "/api/..", "/api\\x", "/api;x/y"] {
        assert!(!check(&rewrite, path).unwrap(), "{path}");
    }
}
