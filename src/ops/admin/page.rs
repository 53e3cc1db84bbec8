//! The page for operators: one embedded file, at `/`.
//!
//! The file holds its own styles and its own script and loads nothing. It knows no data: everything that it shows, it
//! fetches from the other paths of the admin API, with the token that the operator types. Its content security policy
//! allows the two inline elements of this file by their hashes, and requests to the page's own origin; so what must always
//! hold is that nothing else runs on the page or leaves it, whatever the data says.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use ring::digest::{SHA256, digest};

use super::replies::body;

/// The page.
const PAGE: &str = include_str!("page.html");

/// The largest size of the page: a slow tunnel carries it in a second.
const MAX_PAGE_BYTES: usize = 100 << 10;

const _: () = assert!(PAGE.len() <= MAX_PAGE_BYTES);

/// Fields of the answer that do not depend on the file.
const FIELDS: [(HeaderName, &str); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The content security policy; hashing the file once is enough.
static CONTENT_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let [script, style] = ["script", "style"].map(|element| source_of(PAGE, element));
    format!(
        "default-src 'none'; connect-src 'self'; script-src {script}; style-src {style}; img-src data:; base-uri \
         'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
});

/// The answer to `GET /`.
pub(super) fn page() -> Response<Vec<u8>> {
    let mut answer = body(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned());
    let headers = answer.headers_mut();
    for (name, value) in FIELDS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(policy) = HeaderValue::from_str(&CONTENT_SECURITY_POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

/// The source expression that allows the one inline element of this name, or `'none'` if there is no such element
/// (Content Security Policy Level 3, section 2.3.1).
fn source_of(page: &str, element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let inner = page.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    inner.map_or_else(
        || "'none'".to_owned(),
        |(inner, _)| format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, inner.as_bytes()))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_the_hash_of_each_inline_element() {
        // `printf 'alert(1)' | openssl dgst -sha256 -binary | base64`
        let hash = "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='";
        assert_eq!(source_of("<p>a</p><script>alert(1)</script>", "script"), hash);
        assert_eq!(source_of("<p>a</p>", "script"), "'none'");
        let policy = &*CONTENT_SECURITY_POLICY;
        assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn the_page_holds_its_script_and_its_style_and_loads_nothing() {
        for element in ["<script", "<style"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        for foreign in [
            "http://",
            "https://",
            "//cdn",
            "@import",
            "url(",
            "innerHTML",
            "localStorage",
            "eval(",
        ] {
            let own = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_answer_is_not_stored_sniffed_or_framed() {
        let answer = page();
        let field = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(field("content-security-policy"), Some(CONTENT_SECURITY_POLICY.as_str()));
        assert_eq!(field("cache-control"), Some("no-store"));
        assert_eq!(field("x-content-type-options"), Some("nosniff"));
        assert_eq!(field("referrer-policy"), Some("no-referrer"));
    }
}
