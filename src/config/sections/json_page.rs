//! Whether a page of JSON is JSON with whatever values an answer has.
//!
//! Every value but the status may be missing: an answer without `Retry-After` has none for `{{retry_after}}`. So a page is
//! written with all values, and then with each of them missing, before it is needed. It knows no files and no answers.

use crate::config::model::{PageItem, PageValue};

/// Whether pages of a media type, given without parameters, are one JSON document.
pub(super) fn is_json(essence: &str) -> bool {
    let essence = essence.to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// Checks a page with sample values.
///
/// # Errors
/// With which values it is no JSON, and where.
pub(super) fn check(items: &[PageItem]) -> Result<(), String> {
    let parse = |missing: Option<PageValue>| {
        let text = with_samples(items, missing);
        serde_json::from_slice::<serde_json::Value>(&text).map(|_| ())
    };
    parse(None).map_err(|error| format!("with the values of an answer: {error}"))?;
    // Every answer has a status.
    for (name, value) in PageValue::NAMES.into_iter().filter(|(_, it)| *it != PageValue::Status) {
        parse(Some(value))
            .map_err(|error| format!("where {{{{{name}}}}} has no value: {error}"))?;
    }
    Ok(())
}

/// The page with a value for each placeholder but one. Limits and identifiers are texts, the others numbers.
fn with_samples(items: &[PageItem], missing: Option<PageValue>) -> Vec<u8> {
    let mut text = Vec::new();
    for item in items {
        match item {
            PageItem::Text(part) => text.extend_from_slice(part),
            PageItem::Value(value) if Some(*value) == missing => {}
            PageItem::Value(PageValue::Status) => text.extend_from_slice(b"429"),
            PageItem::Value(PageValue::RetryAfter) => text.extend_from_slice(b"7"),
            PageItem::Value(PageValue::RequestId | PageValue::Limit) => {
                text.extend_from_slice(b"a-b");
            }
        }
    }
    text
}
