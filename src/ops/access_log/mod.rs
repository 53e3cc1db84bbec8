//! The access log: one line per request, in the form that the configuration names.
//!
//! `sink` takes records and writes lines, `fields` applies what the configuration says about privacy, and each other file
//! writes one form. What must always hold: a form sees a request only through `fields`, so that no form shows more than
//! another; and a line is one line, whatever a client sends.

mod ecs;
mod escape;
mod fields;
mod json;
mod otel;
mod sink;
mod text;

pub use sink::AccessLogSink;
