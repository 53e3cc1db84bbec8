//! The texts of a condition, found together: a list of a thousand texts costs about as much as one.
//!
//! It knows no patterns and no request. What must always hold: the result equals that of trying each text; no more of a
//! value is read than is counted; and the work depends on the value and on the lengths of the texts, not on their number.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use hashbrown::HashSet;
use memchr::memmem;

use super::unreadable::Unreadable;
use super::value_test::ValueTest;
use super::work_budget::{TEXT_BYTES_PER_UNIT, TEXTS_BYTES_PER_UNIT, WorkBudget};

/// A condition whose lookups are more work than this is evaluated once for each request: finding a remembered result takes
/// about as long.
const WORK_OF_MEMORY: usize = 16;

/// The tests of a condition that compare texts.
#[derive(Debug, Default)]
pub(super) struct TextTests {
    equal: TextsByLength,
    beginnings: TextsByLength,
    ends: TextsByLength,
    contained: ContainedTexts,
}

/// Texts, and each length that one of them has, in ascending order. A part of a value is hashed only if a text has its
/// length, so that a client cannot make a policy of short texts hash long values.
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
                ValueTest::Equals(text) => all.equal.insert(text),
                ValueTest::Prefix(text) => all.beginnings.insert(text),
                ValueTest::Suffix(text) => all.ends.insert(text),
                ValueTest::Contains(text) => contained.push(text),
                ValueTest::Present | ValueTest::Absent | ValueTest::Regex(_) => {}
            }
        }
        all.contained = ContainedTexts::new(&contained);
        all
    }

    /// Whether a test may cost more than finding a remembered result.
    pub(super) fn are_expensive(&self) -> bool {
        let lookups = [&self.beginnings, &self.ends].map(|texts| {
            let lengths = texts.lengths.iter().copied();
            lengths.map(work_of_lookup).fold(0, usize::saturating_add)
        });
        let equal = self.equal.lengths.last().copied().map_or(0, work_of_lookup);
        let work = lookups.into_iter().fold(equal, usize::saturating_add);
        work > WORK_OF_MEMORY || !matches!(self.contained, ContainedTexts::None)
    }

    /// Whether a value passes one of the tests.
    ///
    /// # Errors
    /// The request has no work left.
    pub(super) fn passes(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        budget.charge(1)?;
        let begins = |length: usize| value.get(..length);
        let ends = |length: usize| value.get(value.len().checked_sub(length)?..);
        let is_found = self.equal.have(value, budget)?
            || self.beginnings.have_any(begins, budget)?
            || self.ends.have_any(ends, budget)?;
        if is_found { Ok(true) } else { self.contained.are_in(value, budget) }
    }
}

/// The units of work of looking up a text.
const fn work_of_lookup(length: usize) -> usize {
    1 + length / TEXT_BYTES_PER_UNIT
}

impl TextsByLength {
    fn insert(&mut self, text: &str) {
        self.texts.insert(text.as_bytes().into());
        if let Err(index) = self.lengths.binary_search(&text.len()) {
            self.lengths.insert(index, text.len());
        }
    }

    /// Whether a value is one of the texts.
    fn have(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        match self.lengths.binary_search(&value.len()) {
            Ok(_) => self.look_up(value, budget),
            Err(_) => Ok(false),
        }
    }

    /// Whether one of the texts is the part of a value that `part` gives for its length; for a length that the value does
    /// not have, it gives none.
    fn have_any<'v>(
        &self,
        part: impl Fn(usize) -> Option<&'v [u8]>,
        budget: &WorkBudget,
    ) -> Result<bool, Unreadable> {
        for part in self.lengths.iter().map_while(|length| part(*length)) {
            if self.look_up(part, budget)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn look_up(&self, text: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        budget.charge(work_of_lookup(text.len()))?;
        Ok(self.texts.contains(text))
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
    /// What a value costs a thousand conditions, each of one text that is made of the number of the condition.
    fn work_of_each(test: fn(Box<str>) -> ValueTest, length: usize, value: &[u8]) -> u64 {
        let budget = WorkBudget::unlimited();
        for number in 0..1_000 {
            let test = test(format!("{number:0length$}").into());
            assert_eq!(TextTests::new(&[test]).passes(value, &budget), Ok(false));
        }
        budget.work()
    }

    /// A client chooses the length of a value, so it must not choose how much a policy of short texts reads.
    #[test]
    fn a_long_value_costs_no_more_than_a_short_value() {
        for test in [ValueTest::Equals, ValueTest::Prefix, ValueTest::Suffix] {
            let (short, long) = ([b'x'; 6], [b'x'; 30_000]);
            let work = work_of_each(test, 6, &long);
            assert!(work <= work_of_each(test, 6, &short), "{work}");
            assert!(work <= 2_000, "{work}");
        }
    }

    /// What is hashed is counted, also where texts have the length of the value.
    #[test]
    fn long_texts_cost_their_length() {
        let value = [b'x'; 16_000];
        for test in [ValueTest::Equals, ValueTest::Prefix, ValueTest::Suffix] {
            assert_eq!(work_of_each(test, 16_000, &value), 1_000 * 1_002);
            assert_eq!(work_of_each(test, 16_001, &value), 1_000, "no text has the length");
        }
    }

    #[test]
    fn results_of_long_and_of_many_lookups_are_remembered() {
        let text = |length: usize| "x".repeat(length).into();
        let are_expensive = |tests: &[ValueTest]| TextTests::new(tests).are_expensive();
        assert!(!are_expensive(&[ValueTest::Equals(text(40)), ValueTest::Prefix(text(40))]));
        let many: Vec<ValueTest> = (1..100).map(|length| ValueTest::Equals(text(length))).collect();
        assert!(!are_expensive(&many), "one of them is looked up");
        let many: Vec<ValueTest> = (1..20).map(|length| ValueTest::Prefix(text(length))).collect();
        assert!(are_expensive(&many));
        assert!(are_expensive(&[ValueTest::Equals(text(1_000))]));
        assert!(are_expensive(&[ValueTest::Contains(text(1))]));
    }
}
