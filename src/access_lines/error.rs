//! Why a format or a field is refused, with the cure.

use super::template::Undivided;

/// Why the name or the text of a format is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No format has this name.
    #[error("unknown format \"{name}\"; {}", cure_for_word(.suggestion.as_deref(), .known))]
    Unknown {
        /// What was written.
        name: String,
        /// A known name that is near.
        suggestion: Option<String>,
        /// All known names.
        known: String,
    },
    /// Two fields without anything between them.
    #[error(
        "nothing stands between {first} and {second}, so no line can be divided; write a space between them"
    )]
    Undivided {
        /// The first of them, as it was written.
        first: String,
        /// The second.
        second: String,
    },
    /// No field is a time.
    #[error("the format has no time; add {cure}")]
    NoTime {
        /// What tells the time.
        cure: &'static str,
    },
    /// A directive that does not end.
    #[error("\"{directive}\" does not end; write %{{Name}}i, or %% for a percent sign")]
    Unclosed {
        /// Its beginning.
        directive: String,
    },
    /// A pattern of `%{..}t` that cannot be read back.
    #[error(
        "the time \"{pattern}\" has an unknown conversion; known are those of strftime such as %d/%b/%Y:%T %z, and sec, msec, usec, msec_frac, usec_frac"
    )]
    TimePattern {
        /// What was written.
        pattern: String,
    },
    /// A field that is not `NAME=PATH`.
    #[error(
        "field \"{field}\" is not NAME=PATH; write it as in header.x-api-key=request.headers.x-api-key"
    )]
    FieldShape {
        /// What was written.
        field: String,
    },
    /// A field whose name is not known.
    #[error("unknown field \"{name}\"; {}", cure_for_word(.suggestion.as_deref(), .known))]
    UnknownField {
        /// What was written.
        name: String,
        /// A known name that is near.
        suggestion: Option<String>,
        /// All known names.
        known: String,
    },
    /// A path of HAProxy that names no capture.
    #[error(
        "path \"{path}\" names no capture; write captures.0 for the first captured request header"
    )]
    Capture {
        /// What was written.
        path: String,
    },
    /// Fields for a format that has none to name.
    #[error(
        "the format \"{format}\" takes no fields; fields are for JSON formats and for the captures of haproxy"
    )]
    NoFields {
        /// The name of the format.
        format: String,
    },
}

impl From<Undivided> for FormatError {
    fn from(undivided: Undivided) -> Self {
        Self::Undivided { first: undivided.first, second: undivided.second }
    }
}

impl FormatError {
    /// An unknown format, with the nearest of the known names.
    pub(super) fn unknown(name: &str, known: &[&str]) -> Self {
        let suggestion = nearest(name, known);
        Self::Unknown { name: name.to_owned(), suggestion, known: known.join(", ") }
    }

    /// An unknown field, with the nearest of the known names.
    pub(super) fn unknown_field(name: &str, known: &[&str]) -> Self {
        let suggestion = nearest(name, known);
        Self::UnknownField { name: name.to_owned(), suggestion, known: known.join(", ") }
    }
}

fn cure_for_word(suggestion: Option<&str>, known: &str) -> String {
    match suggestion {
        Some(word) => format!("did you mean \"{word}\"?"),
        None => format!("known are {known}"),
    }
}

/// The known name with the fewest typing mistakes, if they are few.
fn nearest(name: &str, known: &[&str]) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let distance = |known: &&&str| strsim::damerau_levenshtein(known, &lower);
    let nearest = known.iter().min_by_key(distance)?;
    let is_near = distance(&nearest) <= 1 + nearest.len() / 4;
    is_near.then(|| (*nearest).to_owned())
}
