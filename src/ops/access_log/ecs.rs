//! The line in the names of the Elastic Common Schema, version 8. What the schema has no name for stands below
//! `tollgate`.

use super::fields::Fields;
use crate::engine::CandidateComparison;
use crate::ops::json_text::JsonObject;
use crate::proxy::TunnelEnd;

/// The version of the schema whose names are used.
const ECS_VERSION: &str = "8.17.0";

/// Writes the line of a request.
pub(super) fn write(fields: &Fields<'_>, out: &mut String) {
    let record = fields.record;
    let mut line = JsonObject::begin(out);
    line.display("@timestamp", fields.time());
    line.object("ecs", |ecs| ecs.word("version", ECS_VERSION));
    line.object("event", |event| {
        event.word("kind", "event");
        event.texts("category", std::iter::once("web"));
        event.texts("type", std::iter::once("access"));
        event.word("dataset", "tollgate.access");
        event.word("action", fields.decision);
        let is_success = (100..400).contains(&record.status);
        event.word("outcome", if is_success { "success" } else { "failure" });
        event.number("duration", record.duration.get());
        if let Some(cause) = fields.cause() {
            event.word("reason", cause);
        }
    });
    line.object("service", |service| {
        service.word("name", "tollgate");
        service.word("type", "tollgate");
    });
    if let Some(address) = fields.client_ip {
        line.object("client", |client| {
            client.display("address", address);
            client.display("ip", address);
        });
    }
    write_http(fields, &mut line);
    if let Some(agent) = &fields.user_agent {
        line.object("user_agent", |user_agent| user_agent.text("original", agent));
    }
    if let Some(version) = fields.tls_number() {
        line.object("tls", |tls| {
            tls.word("version", version);
            tls.word("version_protocol", "tls");
        });
    }
    if let Some(id) = fields.trace_id {
        line.object("trace", |trace| trace.word("id", id));
    }
    line.object("tollgate", |own| write_own(fields, own));
    line.end();
}

fn write_http(fields: &Fields<'_>, line: &mut JsonObject<'_>) {
    let record = fields.record;
    line.object("http", |http| {
        if let Some(version) = fields.http_version() {
            http.word("version", version);
        }
        http.object("request", |request| {
            request.text("id", record.request_id);
            if !fields.method.is_empty() {
                request.text("method", fields.method);
            }
            request.object("body", |body| body.number("bytes", record.request_bytes));
        });
        http.object("response", |response| {
            if record.status > 0 {
                response.number("status_code", record.status);
            }
            response.object("body", |body| body.number("bytes", record.response_bytes));
        });
    });
    line.object("url", |url| {
        if record.protocol.is_some() {
            url.word("scheme", fields.scheme());
        }
        if !fields.host.is_empty() {
            url.text("domain", fields.host);
        }
        if let Some(path) = fields.url_path.filter(|path| !path.is_empty()) {
            url.text("path", path);
        }
    });
}

fn write_own(fields: &Fields<'_>, own: &mut JsonObject<'_>) {
    let (record, exchange) = (fields.record, fields.record.exchange);
    if let Some(route) = record.route {
        own.text("route", route);
    }
    if let Some(limit) = record.limit {
        own.object("limit", |own| {
            own.text("name", limit.name);
            own.word("tier", limit.tier);
            if let Some(judged) = limit.judged {
                own.number("remaining", judged.remaining);
                own.boolean("authenticated", judged.authenticated);
            }
            if let Some(key) = fields.key {
                own.display("key", key);
            }
        });
    }
    if let Some(units) = record.charged {
        own.number("charged", units);
    }
    if let Some(seconds) = record.retry_after {
        own.number("retry_after", seconds);
    }
    own.boolean("degraded", record.degraded);
    if record.banned {
        own.boolean("banned", true);
    }
    if let Some(waited) = fields.waited_us() {
        own.number("waited_us", waited);
    }
    own.texts("candidates_would_deny", fields.candidates(CandidateComparison::WouldDeny));
    own.texts("candidates_would_allow", fields.candidates(CandidateComparison::WouldAllow));
    own.number("generation", record.generation);
    if let Some(end) = record.tunnel {
        own.word("tunnel", TunnelEnd::name(end));
    }
    own.object("origin", |origin| {
        if let Some(name) = record.origin {
            origin.text("name", name);
        }
        if let Some(server) = exchange.server {
            origin.display("server", server);
        }
        if let Some(status) = exchange.status {
            origin.number("status_code", status);
        }
        if let Some(duration) = fields.origin_duration_us() {
            origin.number("duration_us", duration);
        }
        if exchange.retries > 0 {
            origin.number("retries", exchange.retries);
        }
    });
}
