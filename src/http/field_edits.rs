//! Applies an operator's changes of header fields to the maps and lines of this room.
//!
//! What must always hold: an answer of the proxy itself keeps the fields that it needs, and none of them can make a cache
//! store it.

use http::HeaderMap;

use super::lines::Lines;
use crate::config::FieldEdits;

/// Applies changes to the fields of a message.
pub(crate) fn edit(headers: &mut HeaderMap, edits: &FieldEdits) {
    for name in &edits.remove {
        headers.remove(name);
    }
    for (name, value) in &edits.set {
        headers.insert(name.clone(), value.clone());
    }
    for (name, value) in &edits.add {
        headers.append(name.clone(), value.clone());
    }
}

/// Applies a route's changes to an answer of the proxy itself. Fields that the answer has stay as they are, except for the
/// two that protect pages, which an operator may replace or remove.
pub(crate) fn edit_own(lines: &mut Lines, edits: &FieldEdits) {
    const REPLACEABLE: [&str; 2] = ["content-security-policy", "x-content-type-options"];
    let is_free = |lines: &Lines, name: &str| {
        !is_of_caches(name) && (REPLACEABLE.contains(&name) || !lines.contains(name))
    };
    for name in edits.remove.iter().filter(|name| REPLACEABLE.contains(&name.as_str())) {
        lines.remove(name.as_str());
    }
    for (name, value) in &edits.set {
        if is_free(lines, name.as_str()) {
            lines.remove(name.as_str());
            lines.add(&format!("{name}: "), value.as_bytes());
        }
    }
    // Decided before any is added, since one name may be added several times.
    let free: Vec<_> = edits.add.iter().filter(|(name, _)| is_free(lines, name.as_str())).collect();
    for (name, value) in free {
        lines.add(&format!("{name}: "), value.as_bytes());
    }
}

/// Whether a field tells caches what to store.
fn is_of_caches(name: &str) -> bool {
    const OF_CACHES: [&str; 7] =
        ["age", "etag", "expires", "last-modified", "pragma", "surrogate-control", "vary"];
    name.ends_with("cache-control") || OF_CACHES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn an_answer_of_ours_keeps_its_own_fields() {
        let field = |name: &'static str, value: &'static str| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let edits = FieldEdits {
            remove: vec![HeaderName::from_static("x-content-type-options")],
            set: vec![
                field("cache-control", "public"),
                field("cdn-cache-control", "max-age=60"),
                field("content-security-policy", "default-src *"),
                field("x-frame-options", "DENY"),
                field("location", "/x"),
            ],
            add: vec![field("link", "a"), field("link", "b"), field("vary", "x")],
        };
        let mut lines = Lines::new();
        for (begin, value) in [
            ("Cache-Control: ", "no-store"),
            ("Location: ", "https://a/"),
            ("Content-Security-Policy: ", "default-src 'none'"),
            ("X-Content-Type-Options: ", "nosniff"),
        ] {
            lines.add(begin, value.as_bytes());
        }
        edit_own(&mut lines, &edits);
        let written = String::from_utf8(lines.as_bytes().to_vec()).unwrap();
        assert_eq!(
            written,
            "Cache-Control: no-store\r\nLocation: https://a/\r\n\
             content-security-policy: default-src *\r\nx-frame-options: DENY\r\n\
             link: a\r\nlink: b\r\n"
        );
    }
}
