//! Lines that are not JSON: the combined format, and the operator's own template. Nothing is written as `-`.

use std::fmt::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use super::escape::escape;
use super::fields::Fields;
use crate::config::{LogField, LogTemplate, TemplateItem};
use crate::proxy::TunnelEnd;

/// Writes the line that Apache and NGINX call combined. The user and the page that led here are never logged.
pub(super) fn write_combined(fields: &Fields<'_>, out: &mut String) {
    write_field(LogField::ClientIp, fields, out);
    out.push_str(" - - [");
    write_field(LogField::TimeLocal, fields, out);
    out.push_str("] \"");
    write_field(LogField::Request, fields, out);
    out.push_str("\" ");
    write_field(LogField::Status, fields, out);
    out.push(' ');
    write_field(LogField::ResponseBytes, fields, out);
    out.push_str(" \"-\" \"");
    write_field(LogField::UserAgent, fields, out);
    out.push('"');
}

/// Writes a line by the operator's template.
pub(super) fn write_template(template: &LogTemplate, fields: &Fields<'_>, out: &mut String) {
    for item in template.items() {
        match item {
            TemplateItem::Text(text) => out.push_str(text),
            TemplateItem::Field(field) => write_field(*field, fields, out),
        }
    }
}

fn write_field(field: LogField, fields: &Fields<'_>, out: &mut String) {
    let (record, exchange) = (fields.record, fields.record.exchange);
    let limit = record.limit;
    match field {
        LogField::Time => value(out, fields.time()),
        LogField::TimeLocal => local_time(fields, out),
        LogField::RequestId => escape(out, record.request_id),
        LogField::ClientIp => optional(out, fields.client_ip),
        LogField::Method => text(out, Some(fields.method)),
        LogField::Host => text(out, Some(fields.host)),
        LogField::Path => text(out, Some(fields.path)),
        LogField::Request => request(fields, out),
        LogField::Protocol => text(out, fields.protocol()),
        LogField::Status => number(out, record.status),
        LogField::Route => text(out, record.route),
        LogField::Decision => out.push_str(fields.decision),
        LogField::Reason => text(out, record.reason.map(|reason| reason.name())),
        LogField::Limit => text(out, limit.map(|limit| limit.name)),
        LogField::Tier => text(out, limit.map(|limit| limit.tier)),
        LogField::Remaining => optional(out, record.judged().map(|judged| judged.remaining)),
        LogField::Charged => optional(out, record.charged),
        LogField::RetryAfter => optional(out, record.retry_after),
        LogField::Authenticated => value(out, fields.authenticated()),
        LogField::Tunnel => text(out, record.tunnel.map(TunnelEnd::name)),
        LogField::Degraded => value(out, record.degraded),
        LogField::Banned => value(out, record.banned),
        LogField::WaitedUs => optional(out, fields.waited_us()),
        LogField::Generation => number(out, record.generation),
        LogField::Origin => text(out, record.origin),
        LogField::DurationUs => number(out, record.duration.get() / 1_000),
        LogField::UserAgent => text(out, fields.user_agent.as_deref()),
        LogField::RequestBytes => number(out, record.request_bytes),
        LogField::ResponseBytes => number(out, record.response_bytes),
        LogField::OriginServer => optional(out, exchange.server),
        LogField::OriginStatus => optional(out, exchange.status),
        LogField::OriginDurationUs => optional(out, fields.origin_duration_us()),
        LogField::Retries => number(out, exchange.retries),
        LogField::Failure => text(out, record.failure.map(|failure| failure.name())),
        LogField::TraceId => text(out, fields.trace_id),
        LogField::TlsVersion => text(out, fields.tls_version()),
        LogField::Key => optional(out, fields.key),
    }
}

/// The request line. Nothing of it is known of a head that was refused before it was read.
fn request(fields: &Fields<'_>, out: &mut String) {
    let Some(protocol) = fields.protocol() else {
        out.push('-');
        return;
    };
    escape(out, fields.method);
    out.push(' ');
    text(out, Some(fields.path));
    out.push(' ');
    out.push_str(protocol);
}

/// `24/Nov/2026:06:46:29 +0000`.
fn local_time(fields: &Fields<'_>, out: &mut String) {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = UNIX_EPOCH + Duration::from_secs(fields.record.at.secs());
    // `2026-11-24T06:46:29Z`
    let rfc3339 = humantime::format_rfc3339_seconds(seconds).to_string();
    let digits = |range: std::ops::Range<usize>| rfc3339.get(range).unwrap_or_default();
    let month: usize = digits(5..7).parse().unwrap_or(1);
    let month = MONTHS.get(month.wrapping_sub(1)).copied().unwrap_or_default();
    let (day, year, time) = (digits(8..10), digits(0..4), digits(11..19));
    value(out, format_args!("{day}/{month}/{year}:{time} +0000"));
}

fn text(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) if !text.is_empty() => escape(out, text),
        Some(_) | None => out.push('-'),
    }
}

fn number(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// A value of ours, which needs no escapes.
fn value(out: &mut String, value: impl fmt::Display) {
    // Writing to a string never fails.
    let _ = write!(out, "{value}");
}

fn optional(out: &mut String, optional: Option<impl fmt::Display>) {
    match optional {
        Some(some) => value(out, some),
        None => out.push('-'),
    }
}
