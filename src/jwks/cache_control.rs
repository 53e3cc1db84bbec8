//! How long an answer stays valid (RFC 9111, section 4.2), as far as a set of keys needs it.

use http::HeaderMap;
use http::header::{AGE, CACHE_CONTROL};

use crate::clock::Nanos;

/// The longest time that is read, in seconds: 2^31 (RFC 9111, section 1.2.2).
const MAX_SECONDS: u64 = 1 << 31;

/// The time that is left of `max-age`; zero for `no-store` and `no-cache`; `None` if the answer does not say.
pub(super) fn max_age(headers: &HeaderMap) -> Option<Nanos> {
    let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let mut found = None;
    for directive in lines.flat_map(|line| line.split(',')) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        let name = name.trim();
        if name.eq_ignore_ascii_case("no-store") || name.eq_ignore_ascii_case("no-cache") {
            return Some(Nanos::ZERO);
        }
        if name.eq_ignore_ascii_case("max-age") && found.is_none() {
            found = seconds(value.trim().trim_matches('"'));
        }
    }
    let age = headers.get(AGE).and_then(|age| age.to_str().ok()).and_then(seconds).unwrap_or(0);
    found.map(|found| Nanos::from_secs(found.saturating_sub(age)))
}

/// A number of seconds. One that is too large to read is the largest.
fn seconds(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(MAX_SECONDS).min(MAX_SECONDS))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn max_age_is_read_as_caches_read_it() {
        for (lines, age, expected) in [
            (&[][..], "", None),
            (&["public"], "", None),
            (&["max-age=300"], "", Some(300)),
            (&["public, Max-Age=300 , must-revalidate"], "", Some(300)),
            (&["max-age=\"300\""], "", Some(300)),
            (&["public", "max-age=5, max-age=9"], "", Some(5)),
            (&["s-maxage=9"], "", None),
            (&["max-age=300, no-store"], "", Some(0)),
            (&["no-cache"], "", Some(0)),
            (&["max-age=-1"], "", None),
            (&["max-age="], "", None),
            (&["max-age=1e3"], "", None),
            (&["max-age=99999999999999999999999"], "", Some(MAX_SECONDS)),
            (&["max-age=300"], "100", Some(200)),
            (&["max-age=300"], "400", Some(0)),
            (&["max-age=300"], "soon", Some(300)),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CACHE_CONTROL, HeaderValue::from_static(line));
            }
            if !age.is_empty() {
                headers.insert(AGE, HeaderValue::from_static(age));
            }
            assert_eq!(max_age(&headers), expected.map(Nanos::from_secs), "{lines:?}, {age}");
        }
    }
}
