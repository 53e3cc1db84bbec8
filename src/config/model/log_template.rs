//! Lines of an access log in the operator's own words: texts, and `$name` where the value of a field goes.
//!
//! It parses templates and names the fields; it writes no lines. What must always hold: a template is one line, and
//! every name in it is a field.

use std::fmt;

/// The largest number of bytes of a template, so that no line is larger than a writer's batch.
const MAX_TEMPLATE: usize = 4_096;

macro_rules! log_fields {
    ($($(#[$doc:meta])* $field:ident = $name:literal,)*) => {
        /// A field that a template may name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LogField { $($(#[$doc])* $field,)* }

        impl LogField {
            /// Every field, in the order of the JSON line; those that only templates have come last.
            pub const ALL: &[Self] = &[$(Self::$field,)*];

            /// The name, without its `$`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$field => $name,)* }
            }
        }
    };
}

log_fields! {
    /// When the request ended, RFC 3339 in UTC.
    Time = "time",
    /// The identifier of the request.
    RequestId = "request_id",
    /// The client's address.
    ClientIp = "client_ip",
    /// The method as sent.
    Method = "method",
    /// The host that the request names.
    Host = "host",
    /// The path without the query.
    Path = "path",
    /// The status of the answer.
    Status = "status",
    /// The route.
    Route = "route",
    /// What was decided.
    Decision = "decision",
    /// Why it was rejected.
    Reason = "reason",
    /// The limit that decided.
    Limit = "limit",
    /// Its tier.
    Tier = "tier",
    /// Units that are left.
    Remaining = "remaining",
    /// Units that were charged.
    Charged = "charged",
    /// Seconds to wait.
    RetryAfter = "retry_after",
    /// Whether the deciding key came from a credential.
    Authenticated = "authenticated",
    /// How a tunnel ended.
    Tunnel = "tunnel",
    /// Whether a limit was judged without its store.
    Degraded = "degraded",
    /// Whether a ban refused the request.
    Banned = "banned",
    /// Microseconds of delay.
    WaitedUs = "waited_us",
    /// The number of the configuration.
    Generation = "generation",
    /// The origin.
    Origin = "origin",
    /// Microseconds from the head of the request to the end of the answer.
    DurationUs = "duration_us",
    /// What the client calls itself.
    UserAgent = "user_agent",
    /// The version of HTTP.
    Protocol = "protocol",
    /// Bytes of the request's body.
    RequestBytes = "request_bytes",
    /// Bytes of the answer's body.
    ResponseBytes = "response_bytes",
    /// The server that was asked.
    OriginServer = "origin_server",
    /// The status that it gave.
    OriginStatus = "origin_status",
    /// Microseconds until the head of its answer.
    OriginDurationUs = "origin_duration_us",
    /// How often the request was sent to an origin again.
    Retries = "retries",
    /// Why it failed.
    Failure = "failure",
    /// The trace that the request belongs to.
    TraceId = "trace_id",
    /// The version of TLS.
    TlsVersion = "tls_version",
    /// The hash of the deciding key.
    Key = "key",
    /// When the request ended, as NGINX and Apache write it, in UTC.
    TimeLocal = "time_local",
    /// The request line: method, path and version.
    Request = "request",
}

/// Names of NGINX and of Apache's modules for what has another name here.
const FOREIGN_NAMES: [(&str, LogField); 14] = [
    ("body_bytes_sent", LogField::ResponseBytes),
    ("bytes_sent", LogField::ResponseBytes),
    ("http_user_agent", LogField::UserAgent),
    ("remote_addr", LogField::ClientIp),
    ("request_length", LogField::RequestBytes),
    ("request_method", LogField::Method),
    ("request_time", LogField::DurationUs),
    ("request_uri", LogField::Path),
    ("server_protocol", LogField::Protocol),
    ("ssl_protocol", LogField::TlsVersion),
    ("time_iso8601", LogField::Time),
    ("upstream_addr", LogField::OriginServer),
    ("upstream_status", LogField::OriginStatus),
    ("uri", LogField::Path),
];

/// A template of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTemplate(Vec<TemplateItem>);

/// A text or a field in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateItem {
    /// Written as it is.
    Text(Box<str>),
    /// The value of a field.
    Field(LogField),
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) enum TemplateError {
    /// A name that is no field.
    UnknownField {
        /// The name, without its `$`.
        name: String,
        /// The character at which its `$` stands, from 1.
        at: usize,
    },
    /// A `$` without a name, at this character.
    NoName(usize),
    /// A control character, at this character.
    Control(usize),
    /// Too many bytes.
    TooLong,
    /// No field at all.
    NoField,
}

impl LogTemplate {
    /// Reads a template. `$$` is a dollar sign.
    pub(in crate::config) fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE {
            return Err(TemplateError::TooLong);
        }
        let position = |offset: usize| text[..offset].chars().count() + 1;
        if let Some((offset, _)) = text.char_indices().find(|(_, letter)| letter.is_control()) {
            return Err(TemplateError::Control(position(offset)));
        }
        let (mut items, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some((before, after)) = rest.split_once('$') {
            literal.push_str(before);
            if let Some(next) = after.strip_prefix('$') {
                literal.push('$');
                rest = next;
                continue;
            }
            let in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let end = after.find(|letter| !in_name(letter)).unwrap_or(after.len());
            let (name, next) = after.split_at(end);
            let at = position(text.len() - after.len() - 1);
            if name.is_empty() {
                return Err(TemplateError::NoName(at));
            }
            let field = LogField::ALL.iter().find(|field| field.name() == name);
            let field =
                *field.ok_or_else(|| TemplateError::UnknownField { name: name.to_owned(), at })?;
            if !literal.is_empty() {
                items.push(TemplateItem::Text(std::mem::take(&mut literal).into()));
            }
            items.push(TemplateItem::Field(field));
            rest = next;
        }
        literal.push_str(rest);
        if items.is_empty() {
            return Err(TemplateError::NoField);
        }
        if !literal.is_empty() {
            items.push(TemplateItem::Text(literal.into()));
        }
        Ok(Self(items))
    }

    /// Its texts and fields, in order.
    pub fn items(&self) -> &[TemplateItem] {
        &self.0
    }
}

impl TemplateError {
    /// What NGINX or Apache calls so, if the name is one of theirs.
    pub(in crate::config) fn own_name(foreign: &str) -> Option<&'static str> {
        let found = FOREIGN_NAMES.iter().find(|(name, _)| *name == foreign);
        found.map(|(_, field)| field.name())
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownField { name, at } => {
                write!(f, "unknown field ${name} at character {at} of the template")
            }
            Self::NoName(at) => write!(f, "a $ without a name at character {at} of the template"),
            Self::Control(at) => {
                write!(f, "a line end or control character at character {at} of the template")
            }
            Self::TooLong => write!(f, "a template has at most {MAX_TEMPLATE} bytes"),
            Self::NoField => {
                f.write_str("a template without a $name is the same line for every request")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_texts_and_fields() {
        let items = |text: &str| LogTemplate::parse(text).map(|template| template.0);
        let text = |text: &str| TemplateItem::Text(text.into());
        let field = TemplateItem::Field;
        assert_eq!(
            items("$client_ip [$status] $$5 \u{fc}$path"),
            Ok(vec![
                field(LogField::ClientIp),
                text(" ["),
                field(LogField::Status),
                text("] $5 \u{fc}"),
                field(LogField::Path),
            ])
        );
        assert_eq!(items("$path$host"), Ok(vec![field(LogField::Path), field(LogField::Host)]));
        for (wrong, error) in [
            ("\u{fc} $statsu", TemplateError::UnknownField { name: "statsu".into(), at: 3 }),
            ("$", TemplateError::NoName(1)),
            ("a ${path}", TemplateError::NoName(3)),
            ("$path\n", TemplateError::Control(6)),
            ("$$path", TemplateError::NoField),
            ("", TemplateError::NoField),
        ] {
            assert_eq!(items(wrong), Err(error), "{wrong:?}");
        }
        assert_eq!(items(&"$path".repeat(820)), Err(TemplateError::TooLong));
    }

    #[test]
    fn no_field_has_two_names_and_foreign_names_are_foreign() {
        for (index, field) in LogField::ALL.iter().enumerate() {
            assert!(LogField::ALL[..index].iter().all(|other| other.name() != field.name()));
            assert_eq!(TemplateError::own_name(field.name()), None);
        }
    }
}
