//! Which of many patterns match a value, found by reading the value once.
//!
//! The patterns are one lazy automaton that reports every pattern, not only the first. Its states are built while values
//! are read, up to a bound. It knows no conditions and no routes. What always holds: a pattern that matches is reported,
//! or the search gives up and says so; a value that needs too many new states makes it give up rather than run long.
//! Whether it gives up depends on what earlier values left and on time, so its user must come to the same result then, or
//! to none.

use std::sync::Arc;

use regex_automata::hybrid::dfa::DFA;
use regex_automata::hybrid::{BuildError, LazyStateID};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind};

use super::search_caches::{self, CacheOwner, SearchCache};
use super::work_budget::{BuildingTime, WorkBudget};

/// The largest combined automaton before its states are built, in bytes. Building one state may visit all of it.
const MAX_AUTOMATON_BYTES: usize = 8 << 20;

/// The states of a combined automaton that one thread keeps, in bytes. A full cache is emptied, so this also bounds the
/// states that one value can make a search build: it begins again when the cache is emptied under it, and gives up the
/// second time.
const MAX_STATE_BYTES: usize = 4 << 20;

/// The bytes between two looks at the time, where the automaton does not tell whether it knows a transition.
const STEPS_PER_TIME_CHECK: u32 = 16;

/// An automaton over byte strings that reports each pattern that matches somewhere.
#[derive(Debug)]
pub(super) struct ValueAutomaton {
    dfa: DFA,
    caches: Arc<CacheOwner>,
}

/// The search ended early: any pattern may match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GaveUp;

impl ValueAutomaton {
    /// Combines patterns in the syntax of the `regex` crate. They are numbered from 0.
    ///
    /// # Errors
    /// Together they need more memory than an automaton may have, or one has a Unicode word boundary.
    pub(super) fn new(patterns: &[impl AsRef<str>]) -> Result<Self, Box<BuildError>> {
        let dfa = builder(MAX_STATE_BYTES)
            .syntax(syntax::Config::new().utf8(false))
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(MAX_AUTOMATON_BYTES)))
            .build_many(patterns)
            .map_err(Box::new)?;
        Ok(Self { dfa, caches: CacheOwner::new() })
    }

    /// The automaton of compiled patterns, with so many bytes of states.
    ///
    /// # Errors
    /// One has a Unicode word boundary.
    pub(super) fn of_nfa(nfa: NFA, max_state_bytes: usize) -> Result<Self, Box<BuildError>> {
        let dfa = builder(max_state_bytes).build_from_nfa(nfa).map_err(Box::new)?;
        Ok(Self { dfa, caches: CacheOwner::new() })
    }

    /// The patterns as compiled.
    pub(super) fn nfa(&self) -> &NFA {
        self.dfa.get_nfa()
    }

    /// Calls `report` once with the number of each pattern that matches somewhere in a value, in no particular order.
    /// Only building states is counted, as time.
    ///
    /// # Errors
    /// It gave up; some patterns may have been reported.
    pub(super) fn search(
        &self,
        value: &[u8],
        budget: &WorkBudget,
        mut report: impl FnMut(usize),
    ) -> Result<(), GaveUp> {
        let kept = search_caches::take(&self.caches);
        let mut cache = kept.map_or_else(|| self.new_cache(budget), Ok)?;
        cache.begin();
        // The first search may find a cache that other values filled; the second one has a cache of its own.
        let result = self
            .search_once(&mut cache, value, budget, &mut report)
            .or_else(|GaveUp| self.search_once(&mut cache, value, budget, &mut report));
        search_caches::keep(&self.caches, cache);
        result
    }

    fn new_cache(&self, budget: &WorkBudget) -> Result<SearchCache, GaveUp> {
        let mut building = budget.building(self.nfa().states().len());
        if building.is_over() {
            return Err(GaveUp);
        }
        building.start_step();
        let reported_by = vec![0; self.dfa.pattern_len()];
        let cache = SearchCache { states: self.dfa.create_cache(), reported_by, search: 0 };
        building.end_step();
        Ok(cache)
    }

    fn search_once(
        &self,
        cache: &mut SearchCache,
        value: &[u8],
        budget: &WorkBudget,
        report: impl FnMut(usize),
    ) -> Result<(), GaveUp> {
        let number = cache.search;
        let left = cache.reported_by.iter().filter(|last| **last != number).count();
        let emptied = cache.states.clear_count();
        let building = budget.building(self.nfa().states().len());
        let search = PatternSearch {
            dfa: &self.dfa,
            emptied,
            cache,
            left,
            building,
            steps_until_check: STEPS_PER_TIME_CHECK,
            report,
        };
        search.run(value)
    }
}

fn builder(max_state_bytes: usize) -> regex_automata::hybrid::dfa::Builder {
    let config = DFA::config()
        .match_kind(MatchKind::All)
        .cache_capacity(max_state_bytes)
        .skip_cache_capacity_check(true)
        .minimum_cache_clear_count(None);
    let mut builder = DFA::builder();
    builder.configure(config);
    builder
}

impl SearchCache {
    fn begin(&mut self) {
        self.search = self.search.wrapping_add(1);
        if self.search == 0 {
            // The numbers of old searches would be taken for this one.
            self.reported_by.fill(0);
            self.search = 1;
        }
    }
}

/// One search.
struct PatternSearch<'s, R> {
    dfa: &'s DFA,
    cache: &'s mut SearchCache,
    /// How often the cache had been emptied when the search began.
    emptied: usize,
    /// The number of patterns that are not reported.
    left: usize,
    building: BuildingTime<'s>,
    steps_until_check: u32,
    report: R,
}

impl<R: FnMut(usize)> PatternSearch<'_, R> {
    fn run(mut self, value: &[u8]) -> Result<(), GaveUp> {
        let start = self.dfa.start_state_forward(&mut self.cache.states, &Input::new(value));
        let (mut state, mut last_match) = (start.map_err(|_| GaveUp)?, None);
        for &byte in value {
            state = self.next(state, byte)?;
            if !state.is_tagged() {
                continue;
            }
            if state.is_dead() {
                return Ok(());
            }
            if state.is_quit() {
                return Err(GaveUp);
            }
            // A state that repeats reports the same patterns.
            if state.is_match() && last_match != Some(state) {
                self.report_all(state);
                last_match = Some(state);
                if self.left == 0 {
                    return Ok(());
                }
            }
        }
        self.end(state)
    }

    /// The state that a byte leads to. It is built if it is not known.
    fn next(&mut self, state: LazyStateID, byte: u8) -> Result<LazyStateID, GaveUp> {
        if state.is_tagged() {
            // Whether the transition is known cannot be seen.
            self.steps_until_check = self.steps_until_check.saturating_sub(1);
            if self.steps_until_check > 0 {
                let next = self.dfa.next_state(&mut self.cache.states, state, byte);
                self.check_cache()?;
                return next.map_err(|_| GaveUp);
            }
            self.steps_until_check = STEPS_PER_TIME_CHECK;
        } else {
            let next = self.dfa.next_state_untagged(&self.cache.states, state, byte);
            if !next.is_unknown() {
                return Ok(next);
            }
        }
        if self.building.is_over() {
            return Err(GaveUp);
        }
        self.building.start_step();
        let next = self.dfa.next_state(&mut self.cache.states, state, byte);
        self.building.end_step();
        // The state before may have had the same number until the cache was emptied.
        self.check_cache()?;
        next.map_err(|_| GaveUp)
    }

    /// Reads the end of the value. Whether that builds a state cannot be seen.
    fn end(mut self, state: LazyStateID) -> Result<(), GaveUp> {
        if self.building.is_over() {
            return Err(GaveUp);
        }
        self.building.start_step();
        let end = self.dfa.next_eoi_state(&mut self.cache.states, state);
        self.building.end_step();
        let end = end.map_err(|_| GaveUp)?;
        if end.is_match() {
            self.report_all(end);
        }
        self.check_cache()
    }

    /// Gives up if the cache was emptied during this search.
    fn check_cache(&self) -> Result<(), GaveUp> {
        match self.cache.states.clear_count() == self.emptied {
            true => Ok(()),
            false => Err(GaveUp),
        }
    }

    fn report_all(&mut self, state: LazyStateID) {
        for index in 0..self.dfa.match_len(&self.cache.states, state) {
            let pattern = self.dfa.match_pattern(&self.cache.states, state, index).as_usize();
            let reported_by = &mut self.cache.reported_by[pattern];
            if *reported_by != self.cache.search {
                *reported_by = self.cache.search;
                self.left -= 1;
                (self.report)(pattern);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(automaton: &ValueAutomaton, value: &[u8]) -> Result<Vec<usize>, GaveUp> {
        let mut found = Vec::new();
        automaton.search(value, &WorkBudget::with_building(), |pattern| found.push(pattern))?;
        found.sort_unstable();
        Ok(found)
    }

    #[test]
    fn every_pattern_that_matches_is_reported_once() {
        let patterns = ["a+", r"\Ab", r"c\z", "(?i)word", r"(?-u:\b)cat(?-u:\b)", "", ".*z.*"];
        let automaton = ValueAutomaton::new(&patterns).unwrap();
        let set = regex::bytes::RegexSet::new(patterns).unwrap();
        for value in [
            "", "a", "aaaa", "b", "ab", "bc", "cb", "WoRd", "xwordx", "a cat", "cats", "zaz",
            "abcz", "\n",
        ] {
            let expected: Vec<usize> = set.matches(value.as_bytes()).iter().collect();
            assert_eq!(found(&automaton, value.as_bytes()), Ok(expected), "{value:?}");
        }
    }

    #[test]
    fn a_word_boundary_next_to_other_bytes_is_decided() {
        let automaton = ValueAutomaton::new(&[r"(?-u:\b)cat(?-u:\b)"]).unwrap();
        assert_eq!(found(&automaton, "naïve cat".as_bytes()), Ok(vec![0]));
        assert_eq!(found(&automaton, b"\xff\xfecat\xff"), Ok(vec![0]));
        assert!(ValueAutomaton::new(&[r"\bcat\b"]).is_err(), "those of Unicode cannot be");
    }

    #[test]
    fn what_other_values_left_in_the_cache_makes_no_value_give_up() {
        let automaton = ValueAutomaton::new(&["[ab][^n]{9}x", "[cd][^n]{9}y"]).unwrap();
        let mut draw = fastrand::Rng::with_seed(2);
        let mut emptied = 0;
        for _ in 0..4_000 {
            let value: Vec<u8> = (0..200).map(|_| draw.choice(*b"abcdxy").unwrap()).collect();
            assert!(found(&automaton, &value).is_ok());
            let cache = search_caches::take(&automaton.caches).unwrap();
            emptied = cache.states.clear_count();
            search_caches::keep(&automaton.caches, cache);
        }
        assert!(emptied > 0, "the values fill the cache");
    }

    #[test]
    fn a_value_that_needs_many_states_gives_up() {
        // Each of the last twenty bytes is remembered, so nearly every byte leads to a new state.
        let patterns: Vec<String> = (0..500).map(|n| format!("[ab]{n}[^{n}]{{20}}x")).collect();
        let automaton = ValueAutomaton::new(&patterns).unwrap();
        let mut draw = fastrand::Rng::with_seed(1);
        let value: Vec<u8> = (0..32_000).map(|_| draw.choice(*b"ab0123456789").unwrap()).collect();
        assert_eq!(found(&automaton, &value), Err(GaveUp));
        assert_eq!(found(&automaton, b"a1bbbbbbbbbbbbbbbbbbbbx"), Ok(vec![1]), "and recovers");
    }

    #[test]
    fn without_time_known_states_are_read_and_none_is_built() {
        let automaton = ValueAutomaton::new(&["x"]).unwrap();
        let search = |value: &[u8]| {
            let mut reported = 0;
            let budget = WorkBudget::without_building();
            (automaton.search(value, &budget, |_| reported += 1), reported)
        };
        assert_eq!(search(b"aaxa"), (Err(GaveUp), 0));
        assert_eq!(found(&automaton, b"aaxa"), Ok(vec![0]));
        assert_eq!(search(b"aaxa"), (Ok(()), 1), "it is known");
        assert_eq!(search(b"aab"), (Err(GaveUp), 0), "its end is not");
    }

    #[test]
    fn the_numbers_of_searches_start_again() {
        let automaton = ValueAutomaton::new(&["a"]).unwrap();
        assert_eq!(found(&automaton, b"a"), Ok(vec![0]));
        let mut cache = search_caches::take(&automaton.caches).unwrap();
        cache.search = u32::MAX - 1;
        search_caches::keep(&automaton.caches, cache);
        for _ in 0..4 {
            assert_eq!(found(&automaton, b"a"), Ok(vec![0]));
        }
    }

    #[test]
    fn patterns_that_need_too_much_memory_are_not_combined() {
        let patterns: Vec<String> = (0..200).map(|n| format!("{n}[^x]{{1000}}")).collect();
        assert!(ValueAutomaton::new(&patterns).is_err());
    }
}
