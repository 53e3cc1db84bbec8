//! Conditions on values: of header fields, query parameters and cookies.

use http::{HeaderName, HeaderValue};

use super::field_names::{FieldReader, refuse_unread_field};
use crate::config::model::Underscores;
use crate::config::reader::{Located, NamedValue};
use crate::config::scalars::is_token;
use crate::policy::condition::{Condition, Subject, ValuePattern, ValueTest};

/// The largest number of tests of one condition.
const MAX_TESTS: usize = 256;

/// The words that test whether there is a value.
const WORDS: &str = "a text, present, absent, { prefix: TEXT }, { suffix: TEXT }, { contains: TEXT }, { regex: PATTERN } \
                     or { equals: TEXT }";

/// Makes a test of a text.
type MakeTest = fn(Box<str>) -> ValueTest;

/// `header`: each entry is a condition.
pub(super) fn header_conditions(at: &Located<'_>, underscores: Underscores) -> Vec<Condition> {
    conditions(at, |entry| match HeaderName::try_from(entry.name) {
        Ok(name) => {
            refuse_unread_field(&entry.at, &name, FieldReader::Condition, underscores);
            Some(Subject::Header(name))
        }
        Err(_) => {
            let message = format!("{:?} is not the name of a header", entry.name);
            entry.at.error_with(message, "write it as x-api-version: TEXT");
            None
        }
    })
}

/// `query`.
pub(super) fn query_conditions(at: &Located<'_>) -> Vec<Condition> {
    conditions(at, |entry| match entry.name {
        "" => {
            entry.at.error_with("a parameter without a name", "write it as debug: TEXT");
            None
        }
        name => Some(Subject::Query(name.into())),
    })
}

/// `cookie`.
pub(super) fn cookie_conditions(at: &Located<'_>) -> Vec<Condition> {
    conditions(at, |entry| match is_token(entry.name) {
        true => Some(Subject::Cookie(entry.name.into())),
        false => {
            let message = format!("{:?} is not the name of a cookie", entry.name);
            entry.at.error_with(message, "write it as session: TEXT");
            None
        }
    })
}

fn conditions(
    at: &Located<'_>,
    subject: impl Fn(&NamedValue<'_>) -> Option<Subject>,
) -> Vec<Condition> {
    let entries = at.named_values();
    let read = entries.iter().filter_map(|entry| {
        let subject = subject(entry);
        let tests = tests(&entry.at);
        let condition = Condition::new(subject?, tests?);
        refuse_impossible(&entry.at, &condition);
        Some(condition)
    });
    read.collect()
}

/// One test, or a list of which one must pass.
fn tests(at: &Located<'_>) -> Option<Vec<ValueTest>> {
    let items = at.list_or_single();
    if items.is_empty() || items.len() > MAX_TESTS {
        let message = format!("{} values; a condition has 1 to {MAX_TESTS}", items.len());
        at.error_with(message, format!("write {WORDS}, or a list of them"));
        return None;
    }
    items.iter().map(test).collect()
}

fn test(at: &Located<'_>) -> Option<ValueTest> {
    if !at.is_mapping() {
        return Some(match at.text_of_client()? {
            "present" => ValueTest::Present,
            "absent" => ValueTest::Absent,
            text => ValueTest::Equals(text.into()),
        });
    }
    let mut map = at.mapping()?;
    let kinds = [
        ("equals", ValueTest::Equals as MakeTest),
        ("prefix", ValueTest::Prefix),
        ("suffix", ValueTest::Suffix),
        ("contains", ValueTest::Contains),
    ];
    let mut found = Vec::new();
    for (word, make) in kinds {
        if let Some(at) = map.get(word) {
            found.push(at.text_of_client().map(|text| (at, make(text.into()))));
        }
    }
    if let Some(at) = map.get("regex") {
        let pattern = at.parse(|text| {
            refuse_delimiters(text)?;
            ValuePattern::new(text)
                .map_err(|error| format!("regex {text:?}: {error}; correct the pattern"))
        });
        found.push(pattern.map(|pattern| (at, ValueTest::Regex(pattern))));
    }
    let is_known = map.finish();
    if found.len() != 1 && (is_known || !found.is_empty()) {
        at.error_with(
            format!("{} tests where one is expected", found.len()),
            format!("write {WORDS}"),
        );
        return None;
    }
    let (at, test) = found.pop()??;
    let is_empty = |text: &str| text.is_empty();
    match &test {
        ValueTest::Prefix(text) | ValueTest::Suffix(text) | ValueTest::Contains(text)
            if is_empty(text) =>
        {
            at.error_with("an empty text is in every value", "write present");
            None
        }
        _ => Some(test),
    }
}

/// Refuses `/bot/i`: other languages write a pattern between slashes, with flags behind it. Here slashes are part of it.
fn refuse_delimiters(text: &str) -> Result<(), String> {
    let inner = text.strip_prefix('/').and_then(|rest| rest.rsplit_once('/'));
    match inner {
        Some((pattern, flags))
            if !pattern.is_empty() && !flags.is_empty() && flags.bytes().all(is_flag) =>
        {
            let flags = if flags.contains('i') { "(?i)" } else { "" };
            Err(format!(
                "regex {text:?}: slashes around a pattern stand for themselves; write {flags}{pattern}"
            ))
        }
        _ => Ok(()),
    }
}

/// A flag of JavaScript, PHP or Perl.
const fn is_flag(byte: u8) -> bool {
    matches!(byte, b'g' | b'i' | b'm' | b's' | b'u' | b'x' | b'y')
}

/// Refuses a text that no value of a header can have.
fn refuse_impossible(at: &Located<'_>, condition: &Condition) {
    if !matches!(condition.subject(), Subject::Header(_)) {
        return;
    }
    for test in condition.tests() {
        let text = match test {
            ValueTest::Equals(text)
            | ValueTest::Prefix(text)
            | ValueTest::Suffix(text)
            | ValueTest::Contains(text) => text,
            ValueTest::Present | ValueTest::Absent | ValueTest::Regex(_) => continue,
        };
        let begins = text.starts_with([' ', '\t']);
        let ends = text.ends_with([' ', '\t']);
        let is_outer = match test {
            ValueTest::Equals(_) => begins || ends,
            ValueTest::Prefix(_) => begins,
            ValueTest::Suffix(_) => ends,
            ValueTest::Contains(_)
            | ValueTest::Present
            | ValueTest::Absent
            | ValueTest::Regex(_) => false,
        };
        if is_outer {
            let message = format!("{text:?}: the value of a header has no blanks around it");
            at.error_with(message, format!("write {:?}", text.trim_matches([' ', '\t'])));
        } else if HeaderValue::try_from(&**text).is_err() {
            let message = format!("{text:?} cannot be in the value of a header");
            at.error_with(message, "leave out line ends and control characters");
        }
    }
}
