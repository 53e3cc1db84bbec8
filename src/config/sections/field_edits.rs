//! `request_headers` and `response_headers` of an origin or a route. Names that would break the framing of messages, or
//! that this proxy writes itself, are refused.

use http::{HeaderName, HeaderValue};

use crate::config::model::{FieldEdits, HeaderEdits};
use crate::config::reader::{Located, Mapping, NamedValue};

/// The largest number of fields that one list of changes names.
const MAX_FIELDS: usize = 32;

/// The longest value, in bytes: all values together must fit into the head that an origin accepts.
const MAX_VALUE: usize = 2048;

/// Fields of one connection, and of the framing of messages.
const FRAMING: [&str; 11] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Fields of a request that this proxy writes, or that decide what the request is.
const OF_REQUESTS: [&str; 9] = [
    "expect",
    "host",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-request-id",
];

/// Fields of an answer that this proxy writes, or that describe its body.
const OF_RESPONSES: [&str; 11] = [
    "content-encoding",
    "content-range",
    "content-type",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-request-id",
];

/// Both keys of an origin or a route.
pub(super) fn header_edits(map: &mut Mapping<'_>) -> HeaderEdits {
    let mut edits = |key, refused: &[&str]| {
        map.get(key).map(|at| field_edits(&at, refused)).unwrap_or_default()
    };
    HeaderEdits {
        request: edits("request_headers", &OF_REQUESTS),
        response: edits("response_headers", &OF_RESPONSES),
    }
}

/// `{ set: { x-tier: free }, add: {}, remove: [x-debug] }`.
fn field_edits(at: &Located<'_>, refused: &[&str]) -> FieldEdits {
    let Some(mut map) = at.mapping() else {
        return FieldEdits::default();
    };
    let values = |at: Option<Located<'_>>| {
        let mut fields = Vec::new();
        for NamedValue { name, at } in at.iter().flat_map(Located::named_values) {
            let value = at.parse(field_value);
            fields.extend(field_name(name, &at, refused).zip(value));
        }
        fields
    };
    let (set, add) = (values(map.get("set")), values(map.get("add")));
    let removed = map.get("remove").map(|at| at.list_or_single()).unwrap_or_default();
    let remove = removed.iter().filter_map(|at| field_name(at.text()?, at, refused)).collect();
    map.finish();
    let edits = FieldEdits { remove, set, add };
    if edits.names().count() > MAX_FIELDS {
        at.error(format!("{} fields, more than {MAX_FIELDS}", edits.names().count()));
    }
    let mut names: Vec<&HeaderName> = edits.set.iter().map(|(name, _)| name).collect();
    names.extend(&edits.remove);
    names.sort_unstable_by_key(|name| name.as_str());
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        at.error_with(format!("{} is named twice", pair[0]), "name it once in set or remove");
    }
    edits
}

fn field_name(text: &str, at: &Located<'_>, refused: &[&str]) -> Option<HeaderName> {
    let Ok(name) = HeaderName::try_from(text) else {
        let cure = match text.trim().trim_end_matches(':').trim().replace(' ', "-") {
            name if HeaderName::try_from(&name).is_ok() => format!("write {name}"),
            _ => "write it as x-tier".to_owned(),
        };
        at.error_with(format!("{text:?} is not the name of a header field"), cure);
        return None;
    };
    let lower = name.as_str();
    if FRAMING.contains(&lower) || lower.starts_with("sec-websocket-") {
        at.error_with(
            format!("{lower} belongs to the connection or to the framing of messages"),
            "leave it out",
        );
        return None;
    }
    if refused.contains(&lower) {
        at.error_with(
            format!("{lower} is written by this proxy, or decided by it"),
            "leave it out",
        );
        return None;
    }
    Some(name)
}

/// A value that all readers take for the same: ASCII that can be seen, blanks inside, and no sign of an expansion, since
/// none is made.
fn field_value(text: &str) -> Result<HeaderValue, String> {
    if text.len() > MAX_VALUE {
        return Err(format!("a value of {} bytes, more than {MAX_VALUE}", text.len()));
    }
    let is_text = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if !is_text || text.trim() != text {
        return Err(format!("{text:?} has characters other than visible ASCII and blanks inside"));
    }
    if is_expansion(text) {
        return Err(format!("{text:?}: values are sent as they are written, nothing is expanded"));
    }
    HeaderValue::try_from(text).map_err(|_| format!("{text:?} is not the value of a header field"))
}

/// Whether a value names a variable as NGINX, Envoy, HAProxy, Traefik or Caddy write it.
fn is_expansion(text: &str) -> bool {
    let follows = |mark: char, is_name: fn(char) -> bool| {
        text.match_indices(mark).any(|(at, _)| text[at + 1..].starts_with(is_name))
    };
    follows('$', |c| c.is_ascii_alphabetic() || c == '{')
        || follows('%', |c| matches!(c, '[' | '('))
        || text.contains("{{")
        || text.contains("{http.")
        || text.starts_with('%') && text.ends_with('%') && text.len() > 2
        || (text.contains("%REQ(") || text.contains("%DOWNSTREAM_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_text_that_is_sent_as_it_is() {
        for text in ["", "free", "max-age=31536000; includeSubDomains", "{\"a\": 1}", "100%", "$5"]
        {
            assert!(field_value(text).is_ok(), "{text}");
        }
        for text in [
            "a\r\nb: c",
            "a\nb",
            "a\0",
            "caf\u{e9}",
            "\t",
            " a",
            "$host",
            "${HOST}",
            "%[src]",
            "{{status}}",
            "{http.request.host}",
            "%REQ(:path)%",
            "%PROTOCOL%",
        ] {
            assert!(field_value(text).is_err(), "{text:?}");
        }
        assert!(field_value(&"a".repeat(MAX_VALUE + 1)).is_err());
    }
}
