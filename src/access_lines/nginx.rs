//! Templates from the `log_format` of NGINX. Variables that say nothing of a request are skipped.

use std::borrow::Cow;

use super::decimal::TimeUnit;
use super::draft::Meaning;
use super::error::FormatError;
use super::text::header_name;

use super::record::Moment;
use super::template::Template;
use super::time_reader::TimeForm;

/// Compiles a format: the text between the quotes, or the directive as it stands in the configuration.
pub(super) fn compile(text: &str) -> Result<Template, FormatError> {
    let text = directive_text(text);
    let mut template = Template::new();
    let mut rest = text.as_ref();
    while let Some(dollar) = rest.find('$') {
        let (before, from) = rest.split_at(dollar);
        template.literal(before.as_bytes());
        let (name, after) = variable(&from[1..]);
        if name.is_empty() {
            template.literal(b"$");
        } else {
            template.field(&format!("${name}"), meaning(name)).map_err(FormatError::from)?;
        }
        rest = after;
    }
    template.literal(rest.as_bytes());
    if !template.has_time() {
        return Err(FormatError::NoTime { cure: "$time_iso8601 or $msec" });
    }
    Ok(template)
}

/// The name of a variable, with or without braces, and what stands behind it.
fn variable(text: &str) -> (&str, &str) {
    if let Some((name, after)) = text.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
        return (name, after);
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    text.split_at(end)
}

/// The format in a directive: `log_format main escape=json '..' '..';`. Other text is the format itself.
fn directive_text(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    let is_directive = text.starts_with("log_format ") || text.starts_with('\'');
    let Some(first) = text.find(['\'', '"']).filter(|_| is_directive) else {
        return Cow::Borrowed(text);
    };
    let mut format = String::new();
    let mut quote = None;
    let mut characters = text[first..].chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (None, ';') => break,
            (None, _) => {}
            (Some(open), c) if c == open => quote = None,
            (Some(_), '\\') => match characters.next() {
                Some('t') => format.push('\t'),
                Some('n') => format.push('\n'),
                Some('r') => format.push('\r'),
                Some(escaped @ ('\'' | '"' | '\\')) => format.push(escaped),
                Some(other) => format.extend(['\\', other]),
                None => format.push('\\'),
            },
            (Some(_), c) => format.push(c),
        }
    }
    Cow::Owned(format)
}

/// What a variable says. NGINX writes a line when the response has ended.
fn meaning(name: &str) -> Meaning {
    match name {
        "remote_addr" => Meaning::Client(3),
        "realip_remote_addr" => Meaning::Client(1),
        "binary_remote_addr" => Meaning::Ignored,
        "time_local" => Meaning::Time(TimeForm::Clf, Moment::End),
        "time_iso8601" => Meaning::Time(TimeForm::Rfc3339, Moment::End),
        "msec" => Meaning::Time(TimeForm::Epoch(TimeUnit::Seconds), Moment::End),
        "request" => Meaning::RequestLine,
        "request_method" => Meaning::Method,
        "request_uri" => Meaning::Target,
        "uri" | "document_uri" => Meaning::Path,
        "args" | "query_string" | "is_args" => Meaning::Query,
        "http_host" => Meaning::Host(3),
        "host" => Meaning::Host(2),
        "server_name" => Meaning::Host(1),
        "status" => Meaning::Status,
        "body_bytes_sent" => Meaning::ResponseBytes(2),
        "bytes_sent" => Meaning::ResponseBytes(1),
        "request_time" => Meaning::Duration(TimeUnit::Seconds),
        "scheme" => Meaning::Scheme,
        "https" | "ssl_protocol" => Meaning::Tls,
        "remote_user" => Meaning::User,
        other => match other.strip_prefix("http_") {
            Some(field) => Meaning::Header(header_name(&field.replace('_', "-"))),
            None => Meaning::Ignored,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directive_is_taken_out_of_the_configuration() {
        let check = |text: &str, expected: &str| assert_eq!(directive_text(text), expected);
        check("$remote_addr [$msec]", "$remote_addr [$msec]");
        check(
            "log_format main escape=json '{\"t\":\"$msec\",'\n  '\"s\":$status}';",
            "{\"t\":\"$msec\",\"s\":$status}",
        );
        check(r"'$msec\t$status'", "$msec\t$status");
    }

    #[test]
    fn a_format_without_a_time_or_a_division_is_refused() {
        let check = |text: &str, expected: Option<&str>| {
            let found = compile(text).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check("$msec $uri$is_args$args ${host}$request_uri", None);
        check("$msec $unknown_thing", None);
        check("$status", Some("the format has no time; add $time_iso8601 or $msec"));
        check(
            "$msec$status",
            Some(
                "nothing stands between $msec and $status, so no line can be divided; write a space between them",
            ),
        );
    }
}
