//! The operator's log: one line for each event on standard error, as text or as JSON.
//!
//! Writing never waits. Lines of the framework that requests can cause are sampled and lose their queries, because
//! queries may contain keys.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::{LevelFilter, Log, Metadata, Record};

use super::json_text::JsonObject;
use super::line_writer;
use super::line_writer::LineWriter;
use crate::clock::{Clock, SystemClock};
use crate::log_sampler::{LOG_SAMPLER, LogKind};

/// How long queued lines may take to be written when the process ends. A pipe without a reader never takes them.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// The largest number of bytes of a framework's line that are logged.
const MAX_FRAMEWORK_LINE: usize = 512;

/// The target of the framework's lines about health checks.
const HEALTH_CHECKS: &str = "pingora_load_balancing";

/// Lines that the framework logs as errors although nothing failed: a kept connection to an origin had been closed, as
/// either side may do at any time, and a new one is made.
const HARMLESS_LINES: [&str; 1] = ["failed to acquire reusable stream"];

/// How the operator wants the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSettings {
    /// The least important level that is written. Without it `RUST_LOG` decides, and without that it is `info`.
    pub level: Option<LevelFilter>,
    /// The form of a line.
    pub form: LogForm,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogForm {
    /// Time, level, target and message, with blanks between them.
    #[default]
    Text,
    /// A JSON object with these members.
    Json,
}

struct OperatorLog {
    out: LineWriter,
    clock: SystemClock,
    form: LogForm,
}

static LOG: OnceLock<OperatorLog> = OnceLock::new();

/// Sends the log to standard error. From now on a panic is a line of the log too.
pub fn init(settings: LogSettings) -> std::io::Result<()> {
    let out = LineWriter::start("operator", line_writer::owned(std::io::stderr())?)?;
    let log =
        LOG.get_or_init(|| OperatorLog { out, clock: SystemClock::new(), form: settings.form });
    let from_environment = || std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
    let level = settings.level.or_else(from_environment).unwrap_or(LevelFilter::Info);
    // A second call finds the log installed and changes nothing.
    if log::set_logger(log).is_ok() {
        log::set_max_level(level);
        if settings.form == LogForm::Json {
            // The text of the standard library has several lines.
            std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
        }
    }
    Ok(())
}

impl Log for OperatorLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // At `info` the framework logs its own start and stop, which tollgate's own lines already show.
        is_ours(metadata)
            || metadata.level() <= log::Level::Warn
            || log::max_level() > LevelFilter::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let date = self.clock.date(self.clock.now());
        let mut text = without_control_characters(&record.args().to_string());
        if is_caused_by_requests(record.metadata()) {
            if is_harmless(&text) || !LOG_SAMPLER.admit_line(LogKind::Framework, date) {
                return;
            }
            text = without_queries(&text);
        }
        self.out.write(line(self.form, &timestamp(date.into()), record.metadata(), &text));
    }

    fn flush(&self) {
        self.out.flush(FLUSH_TIMEOUT);
    }
}

/// One event is one line, even if an origin, a store or a client put line ends into an error; and nothing in it is an order to a
/// terminal.
fn without_control_characters(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'), " ")
}

/// A line in the given form.
fn line(form: LogForm, at: &str, metadata: &Metadata<'_>, text: &str) -> String {
    let level = match metadata.level() {
        log::Level::Error => "error",
        log::Level::Warn => "warn",
        log::Level::Info => "info",
        log::Level::Debug => "debug",
        log::Level::Trace => "trace",
    };
    match form {
        LogForm::Text => format!("{at} {level} {}: {text}", metadata.target()),
        LogForm::Json => {
            let mut out = String::with_capacity(at.len() + text.len() + 96);
            let mut object = JsonObject::begin(&mut out);
            object.word("time", at);
            object.word("level", level);
            object.text("target", metadata.target());
            object.text("message", text);
            object.end();
            out
        }
    }
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("tollgate")
}

/// Whether requests can cause a line of the framework. Only health checks cause the lines about health checks. Lines
/// below `warn` are shown only to an operator that has asked for all of them, so they do not count.
fn is_caused_by_requests(metadata: &Metadata<'_>) -> bool {
    let by_operators = is_ours(metadata) || metadata.target().starts_with(HEALTH_CHECKS);
    !by_operators && metadata.level() <= log::Level::Warn
}

fn is_harmless(text: &str) -> bool {
    HARMLESS_LINES.contains(&text)
}

/// A line of the framework without its queries, which may contain keys: everything from a question mark to the next
/// blank is left out.
fn without_queries(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_FRAMEWORK_LINE));
    let mut in_query = false;
    for character in text.chars() {
        in_query = !character.is_whitespace() && (in_query || character == '?');
        if shown.len() >= MAX_FRAMEWORK_LINE {
            break;
        }
        if !in_query {
            shown.push(character);
        }
    }
    shown
}

/// A time since the epoch as RFC 3339, in milliseconds.
pub(super) fn timestamp(since_epoch: Duration) -> String {
    let at: SystemTime = UNIX_EPOCH + since_epoch;
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The framework's own words (`connectors/mod.rs`): another version may choose others.
    #[test]
    fn a_kept_connection_that_was_not_free_is_harmless() {
        assert!(is_harmless("failed to acquire reusable stream"));
        assert!(!is_harmless("failed to acquire reusable stream, and more"));
    }

    #[test]
    fn control_characters_become_blanks() {
        let text = "a\r\nb \u{1b}[2J\u{85}c\u{2028}d \u{e9}";
        assert_eq!(without_control_characters(text), "a  b  [2J c d \u{e9}");
    }

    #[test]
    fn a_line_has_time_level_target_and_message_in_both_forms() {
        let metadata = Metadata::builder().level(log::Level::Warn).target("pingora_proxy").build();
        let (at, message) = ("2026-11-24T06:46:29.000Z", "a \"quoted\" \u{1b}[2J word");
        assert_eq!(
            line(LogForm::Text, at, &metadata, "a word"),
            format!("{at} warn pingora_proxy: a word")
        );
        let json = line(LogForm::Json, at, &metadata, message);
        assert!(!json.contains('\u{1b}'), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        let expected = serde_json::json!({
            "time": at, "level": "warn", "target": "pingora_proxy", "message": message,
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn queries_are_cut_out_of_lines() {
        for (line, shown) in [
            ("GET /a?key=1, Host: a", "GET /a Host: a"),
            ("no query", "no query"),
            ("?a ?b c?", "  c"),
            ("", ""),
        ] {
            assert_eq!(without_queries(line), shown, "{line}");
        }
        let long = "\u{fc}".repeat(2_000);
        assert!(
            (MAX_FRAMEWORK_LINE..=MAX_FRAMEWORK_LINE + 3).contains(&without_queries(&long).len())
        );
    }
}
