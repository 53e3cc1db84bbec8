//! Conditions on the values of header fields, query parameters and cookies.
//!
//! A condition tests every value of its subject: it holds if one of them passes one of its tests. So a client cannot
//! leave a route by adding a second value to the one that the origin reads. Where origins read a parameter or a cookie
//! in different ways, nothing can be known, and the request is refused ([`Unreadable`]). Every test takes time linear
//! in the length of the value, whatever its pattern.

use std::fmt;

use http::HeaderName;
use regex::bytes::{Regex, RegexBuilder};

use super::facts::Facts;
use super::values::{self, Unreadable};

/// The largest compiled pattern, in bytes. A list of a few hundred words with `(?i)` fits.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// What a condition reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Every line of a header field.
    Header(HeaderName),
    /// Every query parameter of this name, decoded as in a form.
    Query(Box<str>),
    /// Every cookie of this name.
    Cookie(Box<str>),
}

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

/// A regular expression in the syntax of the `regex` crate: without back-references, so its time is linear.
#[derive(Clone)]
pub struct ValuePattern(Regex);

/// A condition: one of the tests holds for one of the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What is read.
    pub subject: Subject,
    /// At least one.
    pub tests: Vec<ValueTest>,
}

impl ValuePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let compiled = RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build();
        compiled.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(bytes) => {
                format!("the pattern needs more than {bytes} bytes when compiled")
            }
            other => {
                let text = other.to_string();
                text.lines()
                    .next_back()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .to_owned()
            }
        })
    }

    /// The pattern as configured.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
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
    /// Whether an existing value passes.
    pub fn passes(&self, value: &[u8]) -> bool {
        match self {
            Self::Present => true,
            Self::Absent => false,
            Self::Equals(text) => value == text.as_bytes(),
            Self::Prefix(text) => value.starts_with(text.as_bytes()),
            Self::Suffix(text) => value.ends_with(text.as_bytes()),
            Self::Contains(text) => memchr::memmem::find(value, text.as_bytes()).is_some(),
            Self::Regex(pattern) => pattern.0.is_match(value),
        }
    }
}

impl Subject {
    /// Calls `visit` with each value until it returns true. Returns whether it did.
    ///
    /// # Errors
    /// Origins may read one of the values in different ways.
    pub fn any(
        &self,
        facts: &Facts<'_>,
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> Result<bool, Unreadable> {
        match self {
            Self::Header(name) => {
                Ok(facts.headers.get_all(name).iter().any(|value| visit(value.as_bytes())))
            }
            Self::Query(name) => values::any_query(facts, name, visit),
            Self::Cookie(name) => values::any_cookie(facts, name, visit),
        }
    }
}

impl Condition {
    /// Whether the condition holds for a request.
    ///
    /// # Errors
    /// Origins may read one of the values in different ways.
    pub fn holds(&self, facts: &Facts<'_>) -> Result<bool, Unreadable> {
        let passes = |value: &[u8]| self.tests.iter().any(|test| test.passes(value));
        if self.subject.any(facts, passes)? {
            return Ok(true);
        }
        Ok(self.tests.contains(&ValueTest::Absent) && !self.subject.any(facts, |_| true)?)
    }

    /// Whether it can hold only for a request that has a value.
    pub fn needs_value(&self) -> bool {
        !self.tests.contains(&ValueTest::Absent)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "{name}"),
            Self::Query(name) => write!(f, "?{name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
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

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.subject)?;
        for (index, test) in self.tests.iter().enumerate() {
            write!(f, "{}{test}", if index == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}
