//! The access log: one line per request, in the form that the configuration names.
//!
//! `sink` takes records and writes lines, `recent_lines` keeps the last ones in memory, `fields` applies what the configuration says about privacy, and each other file
//! writes one form. What must always hold: a form sees a request only through `fields`, so that no form shows more than
//! another; and a line is one line, whatever a client sends.

mod ecs;
mod escape;
mod fields;
mod json;
mod otel;
mod recent_lines;
mod sink;
mod text;

pub(crate) use recent_lines::RECENT_LINES_BYTES;
pub(super) use recent_lines::{LinePage, LogPageError};
pub use sink::AccessLogSink;
pub(crate) use sink::keeps_recent_lines;
