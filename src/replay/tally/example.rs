//! Examples of requests, with texts of bounded length.

use std::sync::Arc;

use crate::clock::Nanos;
use crate::replay::judged::{JudgedRequest, KeyVerdict};

/// Bytes of a key's text that are kept.
const MAX_KEY_TEXT: usize = 256;
/// Bytes of a method, host and path.
const MAX_REQUEST_TEXT: usize = 512;

/// A request that shows what a number stands for. Its texts come from the log and may hold any character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestExample {
    /// When it began.
    pub at: Nanos,
    /// Its key, as reports show it; `None` if no key decides.
    pub key: Option<Box<str>>,
    /// Its limit; `None` if no limit decides.
    pub limit: Option<Arc<str>>,
    /// Its method.
    pub method: Box<str>,
    /// Its host; empty if the log has none.
    pub host: Box<str>,
    /// Its path without the query.
    pub path: Box<str>,
}

impl RequestExample {
    /// An example of a limit's answer to a request.
    pub(in crate::replay) fn of(
        request: &JudgedRequest<'_>,
        limit: Option<Arc<str>>,
        key: Option<Box<str>>,
    ) -> Self {
        Self {
            at: request.at,
            key,
            limit,
            method: bounded(request.method, MAX_REQUEST_TEXT),
            host: bounded(request.host, MAX_REQUEST_TEXT),
            path: bounded(request.path, MAX_REQUEST_TEXT),
        }
    }
}

/// The text of a verdict's key.
pub(in crate::replay) fn key_text(request: &JudgedRequest<'_>, verdict: &KeyVerdict) -> Box<str> {
    bounded(&request.shown.show(verdict), MAX_KEY_TEXT)
}

/// A text without its end, if it is too long.
fn bounded(text: &str, max: usize) -> Box<str> {
    if text.len() <= max {
        return text.into();
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end]).into()
}
