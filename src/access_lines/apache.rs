//! Templates from the `LogFormat` of Apache. Directives that say nothing of a request are skipped.

use std::borrow::Cow;

use super::decimal::TimeUnit;
use super::draft::Meaning;
use super::error::FormatError;
use super::text::header_name;

use super::record::Moment;
use super::template::Template;
use super::time_pattern::TimePattern;
use super::time_reader::TimeForm;

/// Compiles a format: the text between the quotes, or the directive as it stands in the configuration.
pub(super) fn compile(text: &str) -> Result<Template, FormatError> {
    let text = directive_text(text);
    let mut template = Template::new();
    let mut rest = text.as_ref();
    while let Some(at) = rest.find(['%', '\\']) {
        let (before, from) = rest.split_at(at);
        template.literal(before.as_bytes());
        rest = if let Some(escaped) = from.strip_prefix('\\') {
            escape(escaped, &mut template)
        } else {
            directive(&from[1..], &mut template)?
        };
    }
    template.literal(rest.as_bytes());
    if !template.has_time() {
        return Err(FormatError::NoTime { cure: "%t" });
    }
    Ok(template)
}

/// The format in a directive: `LogFormat "%h .. \"%r\"" name`. Other text is the format itself.
fn directive_text(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    let after = text.strip_prefix("LogFormat ").or(text.strip_prefix("CustomLog "));
    let quoted = match after {
        Some(after) => after.find('"').map_or(after, |quote| &after[quote..]),
        None => text,
    };
    let Some(inner) = quoted.strip_prefix('"') else {
        return Cow::Borrowed(text);
    };
    let end = super::words::closing_quote(inner.as_bytes()).unwrap_or(inner.len());
    Cow::Borrowed(&inner[..end])
}

/// Reads what follows a backslash; returns what follows that.
fn escape<'t>(escaped: &'t str, template: &mut Template) -> &'t str {
    let mut characters = escaped.chars();
    let literal = match characters.next() {
        Some('n') => '\n',
        Some('t') => '\t',
        Some(other) => other,
        None => '\\',
    };
    template.literal(literal.encode_utf8(&mut [0; 4]).as_bytes());
    characters.as_str()
}

/// Reads what follows a percent sign: conditions on the status, `{argument}`, and a letter. Returns what follows that.
fn directive<'t>(text: &'t str, template: &mut Template) -> Result<&'t str, FormatError> {
    let is_condition = |c: char| matches!(c, '<' | '>' | '!' | ',') || c.is_ascii_digit();
    let unclosed = || FormatError::Unclosed { directive: shorten(text) };
    let mut rest = text.trim_start_matches(is_condition);
    let mut argument = None;
    if let Some(inner) = rest.strip_prefix('{') {
        let (inside, after) = inner.split_once('}').ok_or_else(unclosed)?;
        argument = Some(inside);
        rest = after.trim_start_matches(is_condition);
    }
    let letters = if rest.starts_with('^') { 3 } else { 1 };
    let end = rest.char_indices().nth(letters).map_or(rest.len(), |(end, _)| end);
    let (letter, after) = rest.split_at(end);
    let name = format!("%{}", &text[..text.len() - after.len()]);
    match (letter, argument) {
        ("", _) => return Err(unclosed()),
        ("%", None) => template.literal(b"%"),
        ("t", None) => {
            template.literal(b"[");
            template.field(&name, Meaning::Time(TimeForm::Clf, Moment::Start))?;
            template.literal(b"]");
        }
        ("t", Some(argument)) => template.field(&name, time_meaning(argument)?)?,
        _ => template.field(&name, meaning(letter, argument))?,
    }
    Ok(after)
}

fn shorten(text: &str) -> String {
    format!("%{}", text.chars().take(20).collect::<String>())
}

/// What `%{argument}t` says. Apache means the start of the request unless the argument begins with `end:`.
fn time_meaning(argument: &str) -> Result<Meaning, FormatError> {
    let (moment, pattern) = match argument.split_once(':') {
        Some(("begin", pattern)) => (Moment::Start, pattern),
        Some(("end", pattern)) => (Moment::End, pattern),
        Some(_) | None => (Moment::Start, argument),
    };
    Ok(match pattern {
        "" => Meaning::Time(TimeForm::Clf, moment),
        "msec" => Meaning::Time(TimeForm::Epoch(TimeUnit::Millis), moment),
        "usec" => Meaning::Time(TimeForm::Epoch(TimeUnit::Micros), moment),
        pattern => {
            let compiled = TimePattern::parse(pattern);
            let unknown = || FormatError::TimePattern { pattern: pattern.to_owned() };
            Meaning::Pattern(compiled.ok_or_else(unknown)?, moment)
        }
    })
}

fn meaning(letter: &str, argument: Option<&str>) -> Meaning {
    match (letter, argument) {
        ("a", None) => Meaning::Client(3),
        ("h", None) => Meaning::Client(2),
        ("a" | "h", Some("c")) => Meaning::Client(1),
        ("u", None) => Meaning::User,
        ("r", None) => Meaning::RequestLine,
        ("m", None) => Meaning::Method,
        ("U", None) => Meaning::Path,
        ("q", None) => Meaning::Query,
        ("s", None) => Meaning::Status,
        ("b" | "B", None) => Meaning::ResponseBytes(2),
        ("O", None) => Meaning::ResponseBytes(1),
        ("D", None) | ("T", Some("us")) => Meaning::Duration(TimeUnit::Micros),
        ("T", Some("ms")) => Meaning::Duration(TimeUnit::Millis),
        ("T", None | Some("s")) => Meaning::Duration(TimeUnit::Seconds),
        ("V", None) => Meaning::Host(2),
        ("v", None) => Meaning::Host(1),
        ("i", Some(name)) => Meaning::Header(header_name(name)),
        ("x", Some("SSL_PROTOCOL" | "HTTPS")) | ("e", Some("HTTPS")) => Meaning::Tls,
        _ => Meaning::Ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_compiled_or_refused() {
        let check = |text: &str, expected: Option<&str>| {
            let found = compile(text).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check(r#"%h %l %u %t \"%r\" %>s %b"#, None);
        check(r#"LogFormat "%h %l %u %t \"%r\" %>s %b" common"#, None);
        check("%{sec}t.%{usec_frac}t %m %U%q %400,501{User-agent}i %!200s %^FB %%", None);
        check("%{sec}t%{msec_frac}t %h", None);
        check("%h %s", Some("the format has no time; add %t"));
        check(
            "%t %h%s",
            Some(
                "nothing stands between %h and %s, so no line can be divided; write a space between them",
            ),
        );
        check(
            "%t %{X-Key",
            Some("\"%{X-Key\" does not end; write %{Name}i, or %% for a percent sign"),
        );
        check("%t %", Some("\"%\" does not end; write %{Name}i, or %% for a percent sign"));
        check(
            "%{%Q}t",
            Some(
                "the time \"%Q\" has an unknown conversion; known are those of strftime such as %d/%b/%Y:%T %z, and sec, msec, usec, msec_frac, usec_frac",
            ),
        );
    }
}
