//! Reads access logs: the bytes of a line become a record, whichever server wrote them.
//!
//! A [`Format`] comes from its name, or [`detect()`] finds it by the first lines. A [`LineParser`] reads lines by it; it
//! knows no file and no clock. A [`LineReader`] takes the lines out of a file, which may be compressed.
//! `draft` collects the fields of a line and decides between fields that say the same. Formats with a text of their own
//! have a file each (`common`, `envoy`, `haproxy`, `alb`, `w3c`); `nginx` and `apache` compile the operator's format to a
//! `template`; `json` walks over objects by the paths in `fields`.
//!
//! What must always hold: no line makes it panic, no error shows text of a line, and a field that the log does not have
//! is `None`.

mod alb;
mod apache;
mod broken_lines;
mod civil;
mod common;
mod compression;
mod decimal;
mod detect;
mod draft;
mod envoy;
mod error;
mod fields;
mod format;
mod haproxy;
mod json;
mod line_parser;
mod nginx;
mod path_tree;
mod reader;
mod record;
mod template;
mod text;
mod time_pattern;
mod time_reader;
mod w3c;
mod words;
mod zone;

pub use broken_lines::{BrokenKind, BrokenLines};
pub use compression::{Compression, unread_compression};
pub use detect::detect;
pub use error::FormatError;
pub use format::Format;
pub use line_parser::LineParser;
pub use reader::{LineReader, MAX_LINE, NumberedLine, ReadProblem, ReadWarning};
pub use record::{AccessLine, LineError, Moment, Stamp};
pub use zone::{Zone, ZoneError};
