//! Finds which of many conditions on values hold, reading each value once.
//!
//! A router with a thousand routes that differ only in a header must not ask each of them. The tests of one subject are
//! combined: equal texts in a map, everything else in one automaton. The result only preselects. A guard that holds is
//! always found; what cannot be read holds for every guard of its subject, so that the route itself finds out.

use hashbrown::HashMap;
use regex::bytes::{RegexSet, RegexSetBuilder};
use smallvec::SmallVec;

use super::condition::{Subject, ValueTest};
use super::facts::Facts;

/// The largest combined automaton, in bytes. Where the tests of a subject need more, every guard of that subject counts
/// as held, and its routes are asked one by one.
const MAX_AUTOMATON_BYTES: usize = 32 << 20;

/// A test of a subject, by number.
pub(super) type Guard = usize;

/// The guards that hold for a request, in no particular order.
pub(super) type HeldGuards = SmallVec<[Guard; 8]>;

/// Every guard of a router, by subject.
#[derive(Debug, Default)]
pub(super) struct GuardIndex {
    subjects: Vec<SubjectGuards>,
}

/// The guards of one subject.
#[derive(Debug)]
struct SubjectGuards {
    subject: Subject,
    by_text: HashMap<Box<[u8]>, Guard>,
    present: Option<Guard>,
    patterns: Patterns,
}

/// Tests that are not for equality.
#[derive(Debug)]
enum Patterns {
    None,
    Combined {
        automaton: RegexSet,
        guards: Vec<Guard>,
    },
    /// They do not fit into one automaton.
    Unknown(Vec<Guard>),
}

/// Collects guards before they are combined.
#[derive(Default)]
pub(super) struct GuardCollector {
    guards: HashMap<(Subject, ValueTest), Guard>,
}

impl GuardCollector {
    /// The guard of a test. Equal tests have the same one. The test is not [`ValueTest::Absent`], which needs no value.
    pub(super) fn guard(&mut self, subject: &Subject, test: &ValueTest) -> Guard {
        let next = self.guards.len();
        *self.guards.entry((subject.clone(), test.clone())).or_insert(next)
    }

    /// Combines the tests of each subject.
    pub(super) fn finish(self) -> GuardIndex {
        let mut tests: HashMap<Subject, Vec<(ValueTest, Guard)>> = HashMap::new();
        for ((subject, test), guard) in self.guards {
            tests.entry(subject).or_default().push((test, guard));
        }
        let subjects = tests.into_iter();
        GuardIndex { subjects: subjects.map(|(s, tests)| SubjectGuards::new(s, tests)).collect() }
    }
}

impl GuardIndex {
    /// The guards that hold for a request.
    pub(super) fn held(&self, facts: &Facts<'_>) -> HeldGuards {
        let mut held = HeldGuards::new();
        for subject in &self.subjects {
            subject.add_held(facts, &mut held);
        }
        held.sort_unstable();
        held.dedup();
        held
    }
}

impl SubjectGuards {
    fn new(subject: Subject, tests: Vec<(ValueTest, Guard)>) -> Self {
        let (mut by_text, mut present) = (HashMap::new(), None);
        let (mut patterns, mut guards) = (Vec::new(), Vec::new());
        for (test, guard) in tests {
            let pattern = match test {
                ValueTest::Equals(text) => {
                    by_text.insert(text.into_boxed_bytes(), guard);
                    continue;
                }
                ValueTest::Present | ValueTest::Absent => {
                    present = Some(guard);
                    continue;
                }
                ValueTest::Prefix(text) => format!(r"\A{}", regex::escape(&text)),
                ValueTest::Suffix(text) => format!(r"{}\z", regex::escape(&text)),
                ValueTest::Contains(text) => regex::escape(&text),
                ValueTest::Regex(pattern) => pattern.as_str().to_owned(),
            };
            patterns.push(pattern);
            guards.push(guard);
        }
        let patterns = match guards.is_empty() {
            true => Patterns::None,
            false => match RegexSetBuilder::new(patterns).size_limit(MAX_AUTOMATON_BYTES).build() {
                Ok(automaton) => Patterns::Combined { automaton, guards },
                Err(_) => Patterns::Unknown(guards),
            },
        };
        Self { subject, by_text, present, patterns }
    }

    fn add_held(&self, facts: &Facts<'_>, held: &mut HeldGuards) {
        let read = self.subject.any(facts, |value| {
            held.extend(self.present);
            held.extend(self.by_text.get(value).copied());
            match &self.patterns {
                Patterns::None => {}
                Patterns::Combined { automaton, guards } => {
                    held.extend(automaton.matches(value).iter().map(|index| guards[index]));
                }
                Patterns::Unknown(guards) => held.extend_from_slice(guards),
            }
            false
        });
        if read.is_err() {
            held.extend(self.present);
            held.extend(self.by_text.values().copied());
            match &self.patterns {
                Patterns::None => {}
                Patterns::Combined { guards, .. } | Patterns::Unknown(guards) => {
                    held.extend_from_slice(guards);
                }
            }
        }
    }
}
