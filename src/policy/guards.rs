//! Finds which of many conditions on values hold, reading each value once.
//!
//! A router with a thousand routes that differ only in a header must not ask each of them. The tests of one subject are
//! combined: equal texts in a map, everything else in one automaton. The result only preselects. A guard that holds is
//! always found; what cannot be read, or not by the automaton, holds for every guard of its subject, so that the route
//! itself finds out.

use hashbrown::HashMap;

use super::condition::{Subject, ValueTest};
use super::condition_results::{ConditionId, ConditionResults, Guard, HeldGuards};
use super::facts::Facts;
use super::unreadable::Unreadable;
use super::value_automaton::{GaveUp, ValueAutomaton};
use super::work_budget::WorkBudget;

/// The units of work of a value, besides reading it.
const WORK_OF_VALUE: usize = 4;

/// Every guard of a router, by subject.
#[derive(Debug)]
pub(super) struct GuardIndex {
    id: ConditionId,
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
        automaton: Box<ValueAutomaton>,
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
        let subjects = subjects.map(|(subject, tests)| SubjectGuards::new(subject, tests));
        GuardIndex { id: ConditionId::unique(), subjects: subjects.collect() }
    }
}

impl Default for GuardIndex {
    fn default() -> Self {
        GuardCollector::default().finish()
    }
}

impl GuardIndex {
    /// The guards that hold for a request. They depend on its values only, so they hold under every reading of its path.
    pub(super) fn held(&self, facts: &Facts<'_>) -> HeldGuards {
        match facts.conditions {
            Some(known) => known.guards(self.id, || self.evaluate(facts)),
            None => self.evaluate(facts),
        }
    }

    fn evaluate(&self, facts: &Facts<'_>) -> HeldGuards {
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
                ValueTest::Prefix(text) => format!(r"\A{}", regex_syntax::escape(&text)),
                ValueTest::Suffix(text) => format!(r"{}\z", regex_syntax::escape(&text)),
                ValueTest::Contains(text) => regex_syntax::escape(&text),
                ValueTest::Regex(pattern) => pattern.compiled_text().to_owned(),
            };
            patterns.push(pattern);
            guards.push(guard);
        }
        let patterns = match guards.is_empty() {
            true => Patterns::None,
            false => match ValueAutomaton::new(&patterns) {
                Ok(automaton) => Patterns::Combined { automaton: Box::new(automaton), guards },
                Err(_) => Patterns::Unknown(guards),
            },
        };
        Self { subject, by_text, present, patterns }
    }

    fn add_held(&self, facts: &Facts<'_>, held: &mut HeldGuards) {
        if facts.log().is_some() {
            // The values are elsewhere; the route finds out.
            return self.add_all(held);
        }
        let unlimited = WorkBudget::unlimited();
        let budget = facts.conditions.map_or(&unlimited, ConditionResults::budget);
        let mut search = Ok(());
        let read = self.subject.any(facts, |value| {
            held.extend(self.present);
            held.extend(self.by_text.get(value).copied());
            if search.is_ok() {
                search = self.patterns.add_held(value, budget, held);
            }
            budget.charge(WORK_OF_VALUE).is_err()
        });
        // Values that were not read may be equal to any text.
        if read != Ok(false) {
            self.add_all(held);
        } else if search == Err(GaveUp) {
            self.patterns.add_all(held);
        }
    }

    fn add_all(&self, held: &mut HeldGuards) {
        held.extend(self.present);
        held.extend(self.by_text.values().copied());
        self.patterns.add_all(held);
    }
}

impl Patterns {
    fn add_held(
        &self,
        value: &[u8],
        budget: &WorkBudget,
        held: &mut HeldGuards,
    ) -> Result<(), GaveUp> {
        match self {
            Self::None => Ok(()),
            Self::Unknown(_) => Err(GaveUp),
            Self::Combined { automaton, guards } => {
                budget.charge(value.len()).map_err(|Unreadable| GaveUp)?;
                let before = held.len();
                automaton.search(value, budget, |index| held.push(guards[index]))?;
                budget.charge(held.len() - before).map_err(|Unreadable| GaveUp)
            }
        }
    }

    fn add_all(&self, held: &mut HeldGuards) {
        match self {
            Self::None => {}
            Self::Combined { guards, .. } | Self::Unknown(guards) => {
                held.extend_from_slice(guards);
            }
        }
    }
}
