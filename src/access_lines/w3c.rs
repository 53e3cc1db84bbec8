//! Logs that name their columns: CloudFront's standard logs, and the extended format of the W3C that IIS writes.
//!
//! `#Fields:` tells the columns, also in the middle of a log. Until it comes, they are CloudFront's, which tabs divide.
//! After it, a space divides them if the line has no tab. The time is the end of the response.

use std::borrow::Cow;

use super::decimal::TimeUnit;
use super::draft::{Draft, Meaning};

use super::record::{AccessLine, LineError, Moment};
use super::text::{Escapes, decode, header_name, lossy};
use super::time_reader::{TimeForm, TimeReader};

/// Columns of CloudFront's standard log.
const CLOUDFRONT: &str = "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) \
    cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes \
    time-taken x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status \
    fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len \
    sc-range-start sc-range-end";

/// The largest number of columns; more are not read.
const MAX_COLUMNS: usize = 256;

/// The columns of a log.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    columns: Vec<Column>,
    /// How header fields are encoded.
    escapes: Escapes,
    /// Whether the log has told them.
    is_told: bool,
}

#[derive(Clone, Debug)]
enum Column {
    Date,
    Time,
    Says(Meaning),
}

impl Columns {
    /// The columns of CloudFront.
    pub(super) fn cloudfront() -> Self {
        Self::named(CLOUDFRONT, false)
    }

    fn named(names: &str, is_told: bool) -> Self {
        let names: Vec<_> = names.split_ascii_whitespace().take(MAX_COLUMNS).collect();
        // IIS counts milliseconds and writes `+` for a space; CloudFront counts seconds and writes `%20`.
        let is_iis = names.iter().any(|name| matches!(*name, "sc-win32-status" | "s-sitename"));
        let unit = if is_iis { TimeUnit::Millis } else { TimeUnit::Seconds };
        Self {
            columns: names.iter().map(|name| column(name, unit)).collect(),
            escapes: if is_iis { Escapes::Plus } else { Escapes::Percent },
            is_told,
        }
    }

    /// Takes the names of columns out of a comment.
    pub(super) fn comment(&mut self, line: &[u8]) {
        if let Some(names) = line.strip_prefix(b"#Fields:") {
            *self = Self::named(&String::from_utf8_lossy(names), true);
        }
    }

    /// Reads a line that is no comment.
    pub(super) fn parse<'l>(
        &self,
        line: &'l [u8],
        times: &mut TimeReader,
    ) -> Result<AccessLine<'l>, LineError> {
        let has_tab = memchr::memchr(b'\t', line).is_some();
        let separator = if has_tab || !self.is_told { b'\t' } else { b' ' };
        let mut draft = Draft::new();
        let (mut date, mut time) = (None, None);
        let mut values = line.split(|byte| *byte == separator);
        for (index, column) in self.columns.iter().enumerate() {
            let Some(value) = values.next() else {
                // CloudFront adds columns over the years; a line with fewer than a date and a request is none of its.
                if index < 5 {
                    return Err(LineError::WrongShape);
                }
                break;
            };
            match column {
                Column::Date => date = Some(value),
                Column::Time => time = Some(value),
                Column::Says(Meaning::Ignored) => {}
                Column::Says(meaning) => draft.set(meaning, self.decode(meaning, value), times),
            }
        }
        if let (Some(date), Some(time)) = (date, time) {
            draft.time(date_and_time(date, time, times), Moment::End);
        }
        draft.finish(times)
    }

    /// A path stays as it was sent. CloudFront has encoded some header fields twice.
    fn decode<'l>(&self, meaning: &Meaning, value: &'l [u8]) -> Cow<'l, str> {
        if !matches!(meaning, Meaning::Header(_)) {
            return lossy(value);
        }
        let text = decode(value, self.escapes);
        if self.escapes == Escapes::Percent && !text.contains(' ') && text.contains("%20") {
            return Cow::Owned(decode(text.as_bytes(), Escapes::Percent).into_owned());
        }
        text
    }
}

/// Joins two columns without an allocation.
fn date_and_time(
    date: &[u8],
    time: &[u8],
    times: &mut TimeReader,
) -> Option<super::time_reader::FoundTime> {
    let mut joined = [b'T'; 32];
    let end = date.len() + 1 + time.len();
    joined.get_mut(..date.len())?.copy_from_slice(date);
    joined.get_mut(date.len() + 1..end)?.copy_from_slice(time);
    // The format says that its times are UTC.
    *joined.get_mut(end)? = b'Z';
    times.rfc3339(joined.get(..=end)?)
}

fn column(name: &str, unit: TimeUnit) -> Column {
    Column::Says(match name {
        "date" => return Column::Date,
        "time" => return Column::Time,
        "timestamp" => Meaning::Time(TimeForm::Any, Moment::End),
        "timestamp(ms)" => Meaning::Time(TimeForm::Epoch(TimeUnit::Millis), Moment::End),
        "c-ip" => Meaning::Client(1),
        "cs-method" => Meaning::Method,
        "x-host-header" => Meaning::Host(4),
        "cs-host" => Meaning::Host(2),
        "cs-uri-stem" => Meaning::Path,
        "cs-uri-query" => Meaning::Query,
        "cs-uri" => Meaning::Target,
        "cs-username" => Meaning::User,
        "sc-status" => Meaning::Status,
        "sc-bytes" => Meaning::ResponseBytes(1),
        "time-taken" => Meaning::Duration(unit),
        "cs-protocol" => Meaning::Scheme,
        "x-forwarded-for" => Meaning::Header(Cow::Borrowed("x-forwarded-for")),
        other => match other.strip_prefix("cs(").and_then(|field| field.strip_suffix(')')) {
            Some(field) => Meaning::Header(header_name(field)),
            None => Meaning::Ignored,
        },
    })
}
