//! Tests of a single value, as a configuration writes them.
//!
//! A list of tests is asked all at once, by `condition.rs`; a test alone says what each of them means.

use std::fmt;
use std::sync::Arc;

use super::compiled_pattern::CompiledPattern;
use super::impossible_pattern;
use super::unreadable::Unreadable;
use super::word_boundaries;
use super::work_budget::WorkBudget;

/// A test of one value, or of whether there is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueTest {
    /// There is a value, if only an empty one.
    Present,
    /// There is none.
    Absent,
    /// The value is this text.
    Equals(Box<str>),
    /// The value begins with this text.
    Prefix(Box<str>),
    /// The value ends with this text.
    Suffix(Box<str>),
    /// The value contains this text.
    Contains(Box<str>),
    /// The pattern matches somewhere in the value.
    Regex(ValuePattern),
}

/// A regular expression in the syntax of the `regex` crate: without back-references, so its time is linear. Word
/// boundaries are those of ASCII: an automaton cannot decide those of Unicode, and values are bytes.
#[derive(Clone)]
pub struct ValuePattern {
    /// As configured.
    text: Box<str>,
    /// The same with ASCII word boundaries.
    compiled: Arc<CompiledPattern>,
}

impl ValuePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let with_ascii_boundaries = word_boundaries::in_ascii(pattern)?;
        let compiled = with_ascii_boundaries.as_deref().unwrap_or(pattern);
        Ok(Self { text: pattern.into(), compiled: Arc::new(CompiledPattern::new(compiled)?) })
    }

    /// The pattern as configured.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// How many states it has only because counted repetitions copy what they repeat.
    pub(crate) fn counted_copies(&self) -> usize {
        self.compiled.counted_copies()
    }

    /// The steps at each byte of a value that is made for it, roughly.
    pub(crate) fn steps_for_made_values(&self) -> u64 {
        self.compiled.steps_for_made_values()
    }

    /// Whether it is seen at a glance that no value matches.
    pub(crate) fn matches_nothing(&self) -> bool {
        self.compiled.parsed().is_some_and(|parsed| impossible_pattern::matches_nothing(&parsed))
    }

    /// Whether a blank that stands for itself has to match, at least in one of its alternatives.
    pub(crate) fn has_blank(&self) -> bool {
        self.compiled.parsed().is_some_and(|parsed| impossible_pattern::has_blank(&parsed))
    }

    /// Whether it matches somewhere in a value, within the budget of the request.
    ///
    /// # Errors
    /// The conditions of the request have worked too much.
    pub(super) fn is_match(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        self.compiled.is_match(value, budget)
    }

    /// The pattern with ASCII word boundaries.
    pub(super) fn compiled_text(&self) -> &str {
        self.compiled.text()
    }
}

impl PartialEq for ValuePattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ValuePattern {}

impl std::hash::Hash for ValuePattern {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl ValueTest {
    /// The same test with `+` for each blank. A pattern stays as it is.
    pub(super) fn with_plus(self) -> Self {
        let plus = |text: Box<str>| text.replace(' ', "+").into();
        match self {
            Self::Equals(text) => Self::Equals(plus(text)),
            Self::Prefix(text) => Self::Prefix(plus(text)),
            Self::Suffix(text) => Self::Suffix(plus(text)),
            Self::Contains(text) => Self::Contains(plus(text)),
            other @ (Self::Present | Self::Absent | Self::Regex(_)) => other,
        }
    }

    /// Whether an existing value passes.
    pub fn passes(&self, value: &[u8]) -> bool {
        match self {
            Self::Present => true,
            Self::Absent => false,
            Self::Equals(text) => value == text.as_bytes(),
            Self::Prefix(text) => value.starts_with(text.as_bytes()),
            Self::Suffix(text) => value.ends_with(text.as_bytes()),
            Self::Contains(text) => memchr::memmem::find(value, text.as_bytes()).is_some(),
            // An unlimited budget is never used up.
            Self::Regex(pattern) => {
                pattern.is_match(value, &WorkBudget::unlimited()).unwrap_or(false)
            }
        }
    }
}

impl fmt::Display for ValueTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("present"),
            Self::Absent => f.write_str("absent"),
            Self::Equals(text) => f.write_str(text),
            Self::Prefix(text) => write!(f, "{text}..."),
            Self::Suffix(text) => write!(f, "...{text}"),
            Self::Contains(text) => write!(f, "...{text}..."),
            Self::Regex(pattern) => write!(f, "/{}/", pattern.as_str()),
        }
    }
}
