//! The names of fields in `NAME=PATH`, and the paths of the JSON formats that are known.

use std::borrow::Cow;

use super::decimal::TimeUnit;
use super::draft::Meaning;
use super::error::FormatError;
use super::path_tree::PathTree;
use super::record::Moment;
use super::text::header_name;
use super::time_reader::TimeForm;

/// A field of a format: its name, and where it stands.
pub(super) type NamedPath = (&'static str, &'static str);

/// The names of fields, for errors.
const NAMES: &[&str] = &[
    "time",
    "time_start",
    "time_end",
    "client_ip",
    "peer_ip",
    "method",
    "host",
    "request",
    "path",
    "query",
    "status",
    "response_bytes",
    "duration",
    "duration_ms",
    "duration_us",
    "duration_ns",
    "user_agent",
    "referer",
    "user",
    "scheme",
    "tls",
    "headers",
    "header.NAME",
    "replay",
];

/// What a field says. The end of its name or of its path may tell the unit of a duration.
pub(super) fn meaning(name: &str, path: &str) -> Result<Meaning, FormatError> {
    if let Some(header) = name.strip_prefix("header.").filter(|header| !header.is_empty()) {
        return Ok(Meaning::Header(header_name(header)));
    }
    Ok(match name {
        "time" => Meaning::Time(TimeForm::Any, Moment::Unknown),
        "time_start" => Meaning::Time(TimeForm::Any, Moment::Start),
        "time_end" => Meaning::Time(TimeForm::Any, Moment::End),
        "client_ip" => Meaning::Client(2),
        // The connection's, which may be that of a proxy.
        "peer_ip" => Meaning::Client(1),
        "method" => Meaning::Method,
        "host" => Meaning::Host(2),
        "request" => Meaning::RequestLine,
        "path" => Meaning::Target,
        "query" => Meaning::Query,
        "status" => Meaning::Status,
        "response_bytes" => Meaning::ResponseBytes(2),
        "duration" | "duration_s" | "duration_ms" | "duration_us" | "duration_ns" => {
            let unit = TimeUnit::of_name(name).or(TimeUnit::of_name(path));
            Meaning::Duration(unit.unwrap_or(TimeUnit::Seconds))
        }
        "user_agent" => Meaning::Header(Cow::Borrowed("user-agent")),
        "referer" => Meaning::Header(Cow::Borrowed("referer")),
        "user" => Meaning::User,
        "scheme" => Meaning::Scheme,
        "tls" => Meaning::Tls,
        "headers" => Meaning::Headers,
        "replay" => Meaning::Own,
        "decision" => Meaning::OwnDecision,
        unknown => return Err(FormatError::unknown_field(unknown, NAMES)),
    })
}

/// Divides `NAME=PATH`.
pub(super) fn divide(field: &str) -> Result<(&str, &str), FormatError> {
    match field.split_once('=') {
        Some((name, path)) if !name.trim().is_empty() && !path.trim().is_empty() => {
            Ok((name.trim(), path.trim()))
        }
        Some(_) | None => Err(FormatError::FieldShape { field: field.to_owned() }),
    }
}

/// The tree of a format's paths. A name that the operator gives goes before those that the format knows.
pub(super) fn tree(
    known: &[NamedPath],
    named: &[(String, String)],
) -> Result<PathTree, FormatError> {
    let mut tree = PathTree::default();
    for (name, path) in known {
        if !named.iter().any(|(own, _)| base(own) == base(name)) {
            tree.insert(path, meaning(name, path)?);
        }
    }
    for (name, path) in named {
        tree.insert(path.strip_prefix("$.").unwrap_or(path), meaning(name, path)?);
    }
    Ok(tree)
}

/// A name without what tells its unit or moment: `duration_ms` replaces `duration`.
fn base(name: &str) -> &str {
    match name.split_once('_') {
        Some((base @ ("time" | "duration"), _)) => base,
        Some(_) | None => name,
    }
}

/// tollgate's own line, and its forms for Elastic and OpenTelemetry.
pub(super) const TOLLGATE: &[NamedPath] = &[
    ("time_end", "time"),
    ("client_ip", "client_ip"),
    ("method", "method"),
    ("host", "host"),
    ("path", "path"),
    ("status", "status"),
    ("duration_us", "duration_us"),
    ("user_agent", "user_agent"),
    ("tls", "tls_version"),
    ("response_bytes", "response_bytes"),
    ("replay", "replay"),
    ("decision", "decision"),
    ("time_end", "@timestamp"),
    ("client_ip", "client.ip"),
    ("method", "http.request.method"),
    ("status", "http.response.status_code"),
    ("response_bytes", "http.response.body.bytes"),
    ("host", "url.domain"),
    ("path", "url.path"),
    ("scheme", "url.scheme"),
    ("duration_ns", "event.duration"),
    ("user_agent", "user_agent.original"),
    ("replay", "tollgate.replay"),
    ("decision", "event.action"),
    ("time_end", "Timestamp"),
    ("method", "Attributes.http.request.method"),
    ("method", "Attributes.http.request.method_original"),
    ("status", "Attributes.http.response.status_code"),
    ("response_bytes", "Attributes.http.response.body.size"),
    ("scheme", "Attributes.url.scheme"),
    ("path", "Attributes.url.path"),
    ("host", "Attributes.server.address"),
    ("client_ip", "Attributes.client.address"),
    ("user_agent", "Attributes.user_agent.original"),
    ("duration_us", "Attributes.tollgate.duration_us"),
    ("replay", "Attributes.tollgate.replay"),
    ("decision", "Attributes.tollgate.decision"),
];

/// Caddy 2. Its times are the end of the request.
pub(super) const CADDY: &[NamedPath] = &[
    ("time_end", "ts"),
    ("client_ip", "request.client_ip"),
    ("peer_ip", "request.remote_ip"),
    ("method", "request.method"),
    ("host", "request.host"),
    ("path", "request.uri"),
    ("headers", "request.headers"),
    ("tls", "request.tls"),
    ("user", "user_id"),
    ("duration", "duration"),
    ("response_bytes", "size"),
    ("status", "status"),
];

/// Traefik, `format: json`.
pub(super) const TRAEFIK: &[NamedPath] = &[
    ("time_start", "StartUTC"),
    ("time_start", "StartLocal"),
    ("client_ip", "ClientHost"),
    ("user", "ClientUsername"),
    ("method", "RequestMethod"),
    ("host", "RequestAddr"),
    ("path", "RequestPath"),
    ("scheme", "RequestScheme"),
    ("tls", "TLSVersion"),
    ("status", "DownstreamStatus"),
    ("response_bytes", "DownstreamContentSize"),
    ("duration_ns", "Duration"),
    ("headers", "request_*"),
];

/// Envoy's usual `json_format`, in the names of Istio and of Envoy Gateway.
pub(super) const ENVOY: &[NamedPath] = &[
    ("time_start", "start_time"),
    ("client_ip", "downstream_remote_address"),
    ("peer_ip", "downstream_direct_remote_address"),
    ("method", "method"),
    ("host", "authority"),
    ("host", ":authority"),
    ("path", "path"),
    ("path", "x_envoy_original_path"),
    ("path", "x-envoy-original-path"),
    ("path", "x-envoy-origin-path"),
    ("status", "response_code"),
    ("response_bytes", "bytes_sent"),
    ("duration_ms", "duration"),
    ("user_agent", "user_agent"),
    ("user_agent", "user-agent"),
    ("referer", "referer"),
    ("header.x-forwarded-for", "x_forwarded_for"),
    ("header.x-forwarded-for", "x-forwarded-for"),
    ("tls", "downstream_tls_version"),
    ("scheme", "scheme"),
];

/// Names that logs of other programs use.
pub(super) const JSON: &[NamedPath] = &[
    ("time", "time"),
    ("time", "timestamp"),
    ("time", "@timestamp"),
    ("time", "ts"),
    ("time", "time_local"),
    ("time", "time_iso8601"),
    ("time", "msec"),
    ("time_start", "start_time"),
    ("client_ip", "client_ip"),
    ("client_ip", "remote_addr"),
    ("client_ip", "remote_ip"),
    ("client_ip", "client"),
    ("client_ip", "ip"),
    ("method", "method"),
    ("method", "request_method"),
    ("host", "host"),
    ("host", "http_host"),
    ("request", "request"),
    ("path", "path"),
    ("path", "uri"),
    ("path", "url"),
    ("path", "request_uri"),
    ("query", "query"),
    ("query", "args"),
    ("status", "status"),
    ("status", "status_code"),
    ("response_bytes", "response_bytes"),
    ("response_bytes", "body_bytes_sent"),
    ("response_bytes", "bytes_sent"),
    ("response_bytes", "bytes"),
    ("duration", "duration"),
    ("duration_ms", "duration_ms"),
    ("duration_us", "duration_us"),
    ("duration", "request_time"),
    ("user_agent", "user_agent"),
    ("user_agent", "http_user_agent"),
    ("referer", "referer"),
    ("referer", "http_referer"),
    ("header.x-forwarded-for", "x_forwarded_for"),
    ("header.x-forwarded-for", "http_x_forwarded_for"),
    ("user", "user"),
    ("user", "remote_user"),
    ("scheme", "scheme"),
];
