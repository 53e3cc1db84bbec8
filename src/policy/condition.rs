//! Conditions on the values of header fields, query parameters and cookies.
//!
//! A condition tests every value of its subject: it holds if one of them passes one of its tests. So a client cannot
//! leave a route by adding a second value to the one that the origin reads. Where origins read a parameter or a cookie
//! in different ways, nothing can be known, and the request is refused ([`Unreadable`]). All conditions of one request
//! share a budget of work (`work_budget.rs`); a value that would cause more is unreadable too.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use super::condition_results::{ConditionId, ConditionResults};
use super::facts::Facts;
use super::key::stable_hash;
use super::log_values::{LogValues, MissingValue};
use super::text_tests::TextTests;
use super::unreadable::Unreadable;
pub use super::value_test::{ValuePattern, ValueTest};
use super::values;
use super::work_budget::WorkBudget;

/// The units of work of a pattern, besides reading the value.
const WORK_OF_PATTERN: usize = 4;

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

/// A condition: one of the tests holds for one of the values.
#[derive(Clone, Debug)]
pub struct Condition {
    id: ConditionId,
    subject: Subject,
    tests: Vec<ValueTest>,
    /// The hash of its text: equal in every process.
    fingerprint: u64,
    /// The same tests as they are asked.
    combined: Arc<CombinedTests>,
}

/// The tests of a condition by how they are asked: texts all at once, patterns one by one.
#[derive(Debug)]
struct CombinedTests {
    texts: TextTests,
    patterns: Vec<ValuePattern>,
    takes_any_value: bool,
    takes_absence: bool,
}

/// The same subject and the same tests.
impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.subject == other.subject && self.tests == other.tests
    }
}

impl Eq for Condition {}

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
    /// A condition on a subject: one of at least one tests. Values of cookies are read with `+` for a blank, as their keys
    /// are, so the texts of tests are too.
    pub fn new(subject: Subject, tests: Vec<ValueTest>) -> Self {
        let tests = match &subject {
            Subject::Cookie(_) => tests.into_iter().map(ValueTest::with_plus).collect(),
            Subject::Header(_) | Subject::Query(_) => tests,
        };
        let combined = Arc::new(CombinedTests::new(&tests));
        let mut condition =
            Self { id: ConditionId::unique(), subject, tests, fingerprint: 0, combined };
        condition.fingerprint = stable_hash(condition.to_string().as_bytes());
        condition
    }

    /// The hash of its text, by which logs name it. It is equal in every process.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// What is read.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The tests; at least one.
    pub fn tests(&self) -> &[ValueTest] {
        &self.tests
    }

    /// Whether the condition holds for a request.
    ///
    /// # Errors
    /// Origins may read one of the values in different ways, or the conditions of the request have worked too
    /// much.
    pub fn holds(&self, facts: &Facts<'_>) -> Result<bool, Unreadable> {
        match facts.conditions {
            Some(known) if self.is_expensive() => known.result(self.id, || self.evaluate(facts)),
            Some(_) | None => self.evaluate(facts),
        }
    }

    /// Whether evaluating it costs more than finding a remembered result: it decodes a text, reads all of a value, or looks up
    /// long texts.
    fn is_expensive(&self) -> bool {
        let CombinedTests { texts, patterns, .. } = &*self.combined;
        !matches!(self.subject, Subject::Header(_)) || texts.are_expensive() || !patterns.is_empty()
    }

    fn evaluate(&self, facts: &Facts<'_>) -> Result<bool, Unreadable> {
        if let Some(log) = facts.log()
            && let Some(logged) = self.logged(log, facts.headers)
        {
            return logged;
        }
        let unlimited = WorkBudget::unlimited();
        let budget = facts.conditions.map_or(&unlimited, ConditionResults::budget);
        let mut is_affordable = Ok(());
        let passes = |value: &[u8]| {
            self.combined.passes(value, budget).unwrap_or_else(|error| {
                is_affordable = Err(error);
                // Nothing more is read.
                true
            })
        };
        let holds = self.subject.any(facts, passes)?;
        is_affordable?;
        if holds {
            return Ok(true);
        }
        Ok(self.combined.takes_absence && !self.subject.any(facts, |_| true)?)
    }

    /// The result by what a log says. `None`: the facts have the values. Where the log has neither, the condition is taken as
    /// it is without a value, and that is noted.
    #[cold]
    fn logged(&self, log: &LogValues, headers: &HeaderMap) -> Option<Result<bool, Unreadable>> {
        if let Some(recorded) = log.condition(self.fingerprint) {
            return Some(recorded.ok_or(Unreadable));
        }
        let is_in_facts = match &self.subject {
            Subject::Header(name) => log.has_header(name, headers),
            Subject::Query(_) => log.has_query(),
            Subject::Cookie(_) => log.has_header(&http::header::COOKIE, headers),
        };
        if is_in_facts {
            return None;
        }
        log.note(MissingValue::Condition(self.subject.to_string()));
        Some(Ok(self.combined.takes_absence))
    }

    /// Whether it can hold only for a request that has a value.
    pub fn needs_value(&self) -> bool {
        !self.combined.takes_absence
    }
}

impl CombinedTests {
    fn new(tests: &[ValueTest]) -> Self {
        let patterns = tests.iter().filter_map(|test| match test {
            ValueTest::Regex(pattern) => Some(pattern.clone()),
            _ => None,
        });
        Self {
            texts: TextTests::new(tests),
            patterns: patterns.collect(),
            takes_any_value: tests.contains(&ValueTest::Present),
            takes_absence: tests.contains(&ValueTest::Absent),
        }
    }

    /// Whether an existing value passes one of the tests, within the budget of the request.
    ///
    /// # Errors
    /// The conditions of the request have worked too much.
    fn passes(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        if self.takes_any_value || self.texts.passes(value, budget)? {
            return Ok(true);
        }
        for pattern in &self.patterns {
            budget.charge(WORK_OF_PATTERN)?;
            if pattern.is_match(value, budget)? {
                return Ok(true);
            }
        }
        Ok(false)
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

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.subject)?;
        for (index, test) in self.tests.iter().enumerate() {
            write!(f, "{}{test}", if index == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}
