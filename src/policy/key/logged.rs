//! A key part of a request that is read from a log.

use super::part::KeyPart;
use crate::policy::LogValues;
use crate::policy::log_values::{FoundInLog, MissingValue, RecordedValue};
use crate::tokens::SignatureCheck;

/// What the log says of a source, by its text in a configuration. `None`: it is in the facts. A value that the log does not
/// have is noted.
pub(super) fn part<'r>(
    source: &str,
    is_in_facts: bool,
    log: &LogValues,
    signatures: SignatureCheck,
) -> Option<KeyPart<'r>> {
    match log.recorded(source) {
        Some(FoundInLog::Value(value)) => Some(KeyPart::of(value)),
        Some(FoundInLog::UnknownPlan) => Some(KeyPart::Unrecorded),
        Some(FoundInLog::Found(found)) => Some(match found {
            RecordedValue::Absent => KeyPart::Absent,
            RecordedValue::Repeated => KeyPart::Repeated,
            RecordedValue::Unreadable => KeyPart::Unreadable,
            RecordedValue::Unknowable => KeyPart::Unknowable,
            RecordedValue::Unchecked if signatures == SignatureCheck::Recall => KeyPart::Unchecked,
            RecordedValue::Unchecked
            | RecordedValue::Hash(_)
            | RecordedValue::Bucket(_)
            | RecordedValue::Text(_) => missing(source, log),
        }),
        None if is_in_facts => None,
        None => Some(missing(source, log)),
    }
}

fn missing<'r>(source: &str, log: &LogValues) -> KeyPart<'r> {
    log.note(MissingValue::Key(source.to_owned()));
    KeyPart::Unrecorded
}
