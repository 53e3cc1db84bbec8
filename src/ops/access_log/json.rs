//! The JSON line in tollgate's own names. Members that were there first stand first; none is renamed.

use super::fields::Fields;
use crate::engine::CandidateComparison;
use crate::ops::json_text::JsonObject;
use crate::proxy::TunnelEnd;

/// Writes the line of a request.
pub(super) fn write(fields: &Fields<'_>, out: &mut String) {
    let record = fields.record;
    let mut line = JsonObject::begin(out);
    line.display("time", fields.time());
    line.text("request_id", record.request_id);
    if let Some(address) = fields.client_ip {
        line.display("client_ip", address);
    }
    line.text("method", fields.method);
    line.text("host", fields.host);
    line.text("path", fields.path);
    line.number("status", record.status);
    line.text_or_null("route", record.route);
    line.word("decision", fields.decision);
    if let Some(reason) = record.reason {
        line.word("reason", reason.name());
    }
    line.text_or_null("limit", record.limit.map(|limit| limit.name));
    line.text_or_null("tier", record.limit.map(|limit| limit.tier));
    line.number_or_null("remaining", record.judged().map(|judged| judged.remaining));
    line.number_or_null("charged", record.charged);
    line.number_or_null("retry_after", record.retry_after);
    line.boolean("authenticated", fields.authenticated());
    if let Some(end) = record.tunnel {
        line.word("tunnel", TunnelEnd::name(end));
    }
    line.boolean("degraded", record.degraded);
    if record.banned {
        line.boolean("banned", true);
    }
    if let Some(waited) = fields.waited_us() {
        line.number("waited_us", waited);
    }
    line.texts("candidates_would_deny", fields.candidates(CandidateComparison::WouldDeny));
    line.texts("candidates_would_allow", fields.candidates(CandidateComparison::WouldAllow));
    line.number("generation", record.generation);
    line.text_or_null("origin", record.origin);
    line.number("duration_us", record.duration.get() / 1_000);
    write_exchange(fields, &mut line);
    line.end();
}

/// The members that came later. Each is left out where there is nothing to say.
fn write_exchange(fields: &Fields<'_>, line: &mut JsonObject<'_>) {
    let (record, exchange) = (fields.record, fields.record.exchange);
    if let Some(agent) = &fields.user_agent {
        line.text("user_agent", agent);
    }
    if let Some(protocol) = fields.protocol() {
        line.word("protocol", protocol);
    }
    line.number("request_bytes", record.request_bytes);
    line.number("response_bytes", record.response_bytes);
    if let Some(server) = exchange.server {
        line.display("origin_server", server);
    }
    if let Some(status) = exchange.status {
        line.number("origin_status", status);
    }
    if let Some(duration) = fields.origin_duration_us() {
        line.number("origin_duration_us", duration);
    }
    if exchange.retries > 0 {
        line.number("retries", exchange.retries);
    }
    if let Some(failure) = record.failure {
        line.word("failure", failure.name());
    }
    if let Some(trace) = fields.trace_id {
        line.word("trace_id", trace);
    }
    if let Some(version) = fields.tls_version() {
        line.word("tls_version", version);
    }
    if let Some(key) = fields.key {
        line.display("key", key);
    }
    if let Some(trace) = record.trace.and_then(|trace| serde_json::to_string(trace).ok()) {
        line.json("replay", &trace);
    }
}
