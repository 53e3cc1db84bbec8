//! Names of request fields in keys and conditions: those that no request has, or that requests have in one version of
//! HTTP only, are refused with what to write instead.

use http::HeaderName;

use crate::config::model::Underscores;
use crate::config::reader::Located;

/// Fields of a connection, which a request of HTTP/2 does not have (RFC 9113, section 8.2.2). `Upgrade` is one of them too,
/// and is allowed: only HTTP/1.1 upgrades, so a condition on it means the same for every request.
const FIELDS_OF_CONNECTIONS: [&str; 4] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding"];

/// What reads a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldReader {
    /// A source of a key: `header:NAME`.
    Source,
    /// A condition: `header: { NAME: .. }`.
    Condition,
}

/// Records a mistake if no request has a field of this name, or only requests of HTTP/1 have it.
pub(super) fn refuse_unread_field(
    at: &Located<'_>,
    name: &HeaderName,
    reader: FieldReader,
    underscores: Underscores,
) {
    let name = name.as_str();
    let is_source = reader == FieldReader::Source;
    match name {
        "host" => {
            let message = "a request of HTTP/2 has its host in :authority, not in this field";
            at.error_with(
                message,
                match is_source {
                    true => "write host",
                    false => "write host: example.com in the match itself, not below header",
                },
            );
        }
        "cookie" => {
            let message = "clients of HTTP/2 may split cookies into several lines of this field";
            at.error_with(
                message,
                match is_source {
                    true => "write cookie:NAME",
                    false => "write cookie: { NAME: TEXT } in the match itself, not below header",
                },
            );
        }
        name if FIELDS_OF_CONNECTIONS.contains(&name) => {
            let message =
                format!("{name} is a field of a connection: a request of HTTP/2 has none");
            at.error_with(
                message,
                match name {
                    "connection" => "leave it out, or read upgrade, which tells a WebSocket",
                    _ => "leave it out",
                },
            );
        }
        name => refuse_odd_name(at, name, is_source, underscores),
    }
}

/// Refuses a name that `underscores` keeps out. (A source of a key is written with a prefix.)
pub(crate) fn refuse_odd_name(
    at: &Located<'_>,
    name: &str,
    is_source: bool,
    underscores: Underscores,
) {
    match underscores {
        // A dropped field is read, and not forwarded.
        Underscores::Pass | Underscores::Drop => return,
        Underscores::RejectAmbiguous => {}
    }
    let is_usual = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.chars().all(is_usual) {
        return;
    }
    let usual = name.replace(|c| !is_usual(c), "-");
    let prefix = if is_source { "header:" } else { "" };
    at.error_with(
        format!("the field {name} is never read: a request with it is refused (underscores: reject_ambiguous)"),
        format!("write {prefix}{usual}, or underscores: pass in limits_of_this_proxy"),
    );
}
