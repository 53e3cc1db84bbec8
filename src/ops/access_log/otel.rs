//! The line as a record of OpenTelemetry's log data model, with the attributes of its conventions for HTTP servers. What
//! the conventions have no name for begins with `tollgate.`.

use super::fields::Fields;
use crate::engine::CandidateComparison;
use crate::ops::json_text::JsonObject;
use crate::proxy::{RequestOutcome, TunnelEnd};

/// The methods that the conventions know; any other one is `_OTHER`.
const KNOWN_METHODS: [&str; 9] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// Writes the line of a request.
pub(super) fn write(fields: &Fields<'_>, out: &mut String) {
    let record = fields.record;
    let mut line = JsonObject::begin(out);
    // Nanoseconds, as a text: they are more than a JSON number holds exactly.
    line.display("Timestamp", record.at.get());
    if let Some(trace) = fields.trace_id {
        line.word("TraceId", trace);
    }
    let is_error = record.outcome == RequestOutcome::Failed;
    line.word("SeverityText", if is_error { "ERROR" } else { "INFO" });
    line.number("SeverityNumber", if is_error { 17_u8 } else { 9 });
    line.word("EventName", "tollgate.access");
    line.object("Resource", |resource| {
        resource.word("service.name", "tollgate");
        resource.word("service.version", env!("CARGO_PKG_VERSION"));
    });
    line.object("Attributes", |attributes| {
        write_http(fields, attributes);
        write_own(fields, attributes);
    });
    line.end();
}

fn write_http(fields: &Fields<'_>, attributes: &mut JsonObject<'_>) {
    let record = fields.record;
    match fields.method {
        "" => {}
        known if KNOWN_METHODS.contains(&known) => attributes.word("http.request.method", known),
        other => {
            attributes.word("http.request.method", "_OTHER");
            attributes.text("http.request.method_original", other);
        }
    }
    if record.status > 0 {
        attributes.number("http.response.status_code", record.status);
    }
    attributes.number("http.request.body.size", record.request_bytes);
    attributes.number("http.response.body.size", record.response_bytes);
    if record.protocol.is_some() {
        attributes.word("url.scheme", fields.scheme());
    }
    if let Some(path) = fields.url_path.filter(|path| !path.is_empty()) {
        attributes.text("url.path", path);
    }
    if !fields.host.is_empty() {
        attributes.text("server.address", fields.host);
    }
    if let Some(address) = fields.client_ip {
        attributes.display("client.address", address);
    }
    if let Some(version) = fields.http_version() {
        attributes.word("network.protocol.name", "http");
        attributes.word("network.protocol.version", version);
    }
    if let Some(version) = fields.tls_number() {
        attributes.word("tls.protocol.name", "tls");
        attributes.word("tls.protocol.version", version);
    }
    if let Some(agent) = &fields.user_agent {
        attributes.text("user_agent.original", agent);
    }
    if let Some(cause) = fields.cause() {
        attributes.word("error.type", cause);
    }
}

fn write_own(fields: &Fields<'_>, own: &mut JsonObject<'_>) {
    let (record, exchange) = (fields.record, fields.record.exchange);
    own.text("tollgate.request_id", record.request_id);
    own.number("tollgate.duration_us", record.duration.get() / 1_000);
    own.word("tollgate.decision", fields.decision);
    if let Some(route) = record.route {
        own.text("tollgate.route", route);
    }
    if let Some(limit) = record.limit {
        own.text("tollgate.limit", limit.name);
        own.word("tollgate.tier", limit.tier);
    }
    if let Some(judged) = record.judged() {
        own.number("tollgate.remaining", judged.remaining);
        own.boolean("tollgate.authenticated", judged.authenticated);
    }
    if let Some(key) = fields.key {
        own.display("tollgate.key", key);
    }
    if let Some(units) = record.charged {
        own.number("tollgate.charged", units);
    }
    if let Some(seconds) = record.retry_after {
        own.number("tollgate.retry_after", seconds);
    }
    own.boolean("tollgate.degraded", record.degraded);
    if record.banned {
        own.boolean("tollgate.banned", true);
    }
    if let Some(waited) = fields.waited_us() {
        own.number("tollgate.waited_us", waited);
    }
    let (denying, allowing) = (CandidateComparison::WouldDeny, CandidateComparison::WouldAllow);
    own.texts("tollgate.candidates_would_deny", fields.candidates(denying));
    own.texts("tollgate.candidates_would_allow", fields.candidates(allowing));
    own.number("tollgate.generation", record.generation);
    if let Some(end) = record.tunnel {
        own.word("tollgate.tunnel", TunnelEnd::name(end));
    }
    if let Some(name) = record.origin {
        own.text("tollgate.origin.name", name);
    }
    if let Some(server) = exchange.server {
        own.display("tollgate.origin.server", server);
    }
    if let Some(status) = exchange.status {
        own.number("tollgate.origin.status_code", status);
    }
    if let Some(duration) = fields.origin_duration_us() {
        own.number("tollgate.origin.duration_us", duration);
    }
    if exchange.retries > 0 {
        own.number("tollgate.retries", exchange.retries);
    }
}
