//! The texts of a condition, found together: a list of a thousand texts costs about as much as one.
//!
//! It knows no patterns and no request. What must always hold: the result equals that of trying each text, and the work
//! that is counted depends on the value and on the number of lengths, not on the number of texts.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use hashbrown::HashSet;
use memchr::memmem;

use super::unreadable::Unreadable;
use super::value_test::ValueTest;
use super::work_budget::{TEXT_BYTES_PER_UNIT, TEXTS_BYTES_PER_UNIT, WorkBudget};

/// The tests of a condition that compare texts.
#[derive(Debug, Default)]
pub(super) struct TextTests {
    equal: HashSet<Box<[u8]>>,
    beginnings: TextsByLength,
    ends: TextsByLength,
    contained: ContainedTexts,
}

/// Texts, and each length that one of them has.
#[derive(Debug, Default)]
struct TextsByLength {
    texts: HashSet<Box<[u8]>>,
    lengths: Vec<usize>,
}

/// Texts that are looked for anywhere in a value.
#[derive(Debug, Default)]
enum ContainedTexts {
    #[default]
    None,
    Single(Box<memmem::Finder<'static>>),
    /// An automaton reads each byte once, whatever the value is.
    Many(AhoCorasick),
    /// They are too many for an automaton.
    Each(Vec<memmem::Finder<'static>>),
}

impl TextTests {
    /// Combines the texts of tests; those that compare no text are left out.
    pub(super) fn new(tests: &[ValueTest]) -> Self {
        let mut all = Self::default();
        let mut contained: Vec<&str> = Vec::new();
        for test in tests {
            match test {
                ValueTest::Equals(text) => {
                    all.equal.insert(text.as_bytes().into());
                }
                ValueTest::Prefix(text) => all.beginnings.insert(text),
                ValueTest::Suffix(text) => all.ends.insert(text),
                ValueTest::Contains(text) => contained.push(text),
                ValueTest::Present | ValueTest::Absent | ValueTest::Regex(_) => {}
            }
        }
        all.contained = ContainedTexts::new(&contained);
        all
    }

    /// Whether all of a value is read.
    pub(super) const fn read_all(&self) -> bool {
        !matches!(self.contained, ContainedTexts::None)
    }

    /// Whether a value passes one of the tests.
    ///
    /// # Errors
    /// The request has no work left.
    pub(super) fn passes(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        let lookups = 1 + self.beginnings.lengths.len() + self.ends.lengths.len();
        budget.charge(lookups)?;
        let begins = |length: usize| value.get(..length);
        let ends = |length: usize| value.get(value.len().checked_sub(length)?..);
        if self.equal.contains(value) || self.beginnings.has(begins) || self.ends.has(ends) {
            return Ok(true);
        }
        self.contained.are_in(value, budget)
    }
}

impl TextsByLength {
    fn insert(&mut self, text: &str) {
        self.texts.insert(text.as_bytes().into());
        if !self.lengths.contains(&text.len()) {
            self.lengths.push(text.len());
        }
    }

    /// Whether one of the texts is the part of a value that `part` gives for its length.
    fn has<'v>(&self, part: impl Fn(usize) -> Option<&'v [u8]>) -> bool {
        self.lengths.iter().any(|length| part(*length).is_some_and(|it| self.texts.contains(it)))
    }
}

impl ContainedTexts {
    fn new(texts: &[&str]) -> Self {
        let finder = |text: &&str| memmem::Finder::new(text.as_bytes()).into_owned();
        match texts {
            [] => Self::None,
            [only] => Self::Single(Box::new(finder(only))),
            many => {
                let mut builder = AhoCorasick::builder();
                // A search for rare bytes would make the time depend on the value.
                builder.prefilter(false).kind(Some(AhoCorasickKind::ContiguousNFA));
                match builder.build(many) {
                    Ok(automaton) => Self::Many(automaton),
                    Err(_) => Self::Each(many.iter().map(finder).collect()),
                }
            }
        }
    }

    fn are_in(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        match self {
            Self::None => Ok(false),
            Self::Single(finder) => {
                budget.charge(value.len() / TEXT_BYTES_PER_UNIT)?;
                Ok(finder.find(value).is_some())
            }
            Self::Many(automaton) => {
                budget.charge(value.len() / TEXTS_BYTES_PER_UNIT)?;
                Ok(automaton.is_match(value))
            }
            Self::Each(finders) => {
                budget
                    .charge(finders.len().saturating_mul(1 + value.len() / TEXT_BYTES_PER_UNIT))?;
                Ok(finders.iter().any(|finder| finder.find(value).is_some()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn test() -> impl Strategy<Value = ValueTest> {
        let make = prop::sample::select(vec![
            ValueTest::Equals as fn(Box<str>) -> ValueTest,
            ValueTest::Prefix,
            ValueTest::Suffix,
            ValueTest::Contains,
        ]);
        (make, "[ab]{1,3}").prop_map(|(make, text)| make(text.into()))
    }

    proptest! {
        #[test]
        fn the_result_is_that_of_each_test(
            tests in prop::collection::vec(test(), 0..6),
            value in "[abc]{0,6}",
        ) {
            let expected = tests.iter().any(|test| test.passes(value.as_bytes()));
            let found = TextTests::new(&tests).passes(value.as_bytes(), &WorkBudget::default());
            prop_assert_eq!(found, Ok(expected));
        }
    }

    #[test]
    fn a_list_costs_as_much_as_a_text() {
        let texts = |count: usize| -> Vec<ValueTest> {
            let text = |n: usize| format!("{n:06}").into();
            let all = (0..count).map(text);
            all.flat_map(|text: Box<str>| {
                [
                    ValueTest::Equals(text.clone()),
                    ValueTest::Prefix(text.clone()),
                    ValueTest::Contains(text),
                ]
            })
            .collect()
        };
        let work = |count: usize| {
            let budget = WorkBudget::default();
            let passes = TextTests::new(&texts(count)).passes(&[b'x'; 4_000], &budget);
            assert_eq!(passes, Ok(false));
            budget.work()
        };
        assert_eq!(work(10), work(1_000));
    }
}
