//! A pattern as it is searched for in values, within the budget of a request.
//!
//! Three searches, from the fastest to the surest: for texts that every match contains, by an automaton that builds its
//! states while it reads, and by a simulation that builds none. All of them agree; each is counted as what it costs.

use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::Hir;

use super::required_text::RequiredText;
use super::unreadable::Unreadable;
use super::value_automaton::{GaveUp, ValueAutomaton};
use super::word_boundaries::last_line;
use super::work_budget::WorkBudget;
use super::{counted_repetitions, nfa_simulation, required_text};

/// The largest compiled pattern, in bytes. A list of a few hundred words with `(?i)` fits.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The states that one thread keeps of one pattern, in bytes.
const MAX_STATE_BYTES: usize = 1 << 20;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct CompiledPattern {
    /// With ASCII word boundaries.
    text: Box<str>,
    required: Option<RequiredText>,
    automaton: ValueAutomaton,
}

impl CompiledPattern {
    /// Compiles a pattern without Unicode word boundaries.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let parsed = ParserBuilder::new().utf8(false).build().parse(text);
        let parsed = parsed.map_err(|error| last_line(&error.to_string()))?;
        let config = thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(MAX_PATTERN_BYTES));
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(&parsed);
        let nfa = nfa.map_err(|error| match error.size_limit() {
            Some(bytes) => format!(
                "the pattern needs more than {bytes} bytes when compiled: \\w, \\d and . stand for all of Unicode, and counts \
                 multiply them; write [A-Za-z0-9_] or smaller counts"
            ),
            None => last_line(&error.to_string()),
        })?;
        let automaton = ValueAutomaton::of_nfa(nfa, MAX_STATE_BYTES);
        let automaton = automaton.map_err(|error| last_line(&error.to_string()))?;
        Ok(Self { text: text.into(), required: required_text::search(&parsed), automaton })
    }

    /// As compiled.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// As parsed, which is not kept: only warnings ask for it.
    pub(super) fn parsed(&self) -> Option<Hir> {
        ParserBuilder::new().utf8(false).build().parse(&self.text).ok()
    }

    /// The states that copies of counted repetitions add.
    pub(super) fn counted_copies(&self) -> usize {
        counted_repetitions::copies(&self.text, self.nfa())
    }

    /// The steps at each byte, on average, for a value that is made for the pattern: of its own letters in random order, without
    /// the one whose absence makes it dearest, since a match ends the search. An anchored pattern mostly follows a single
    /// state, however many it has.
    pub(super) fn steps_for_made_values(&self) -> u64 {
        let mut letters: Vec<u8> = self.text.bytes().filter(u8::is_ascii_alphanumeric).collect();
        letters.sort_unstable();
        letters.dedup();
        let without = |left_out: &u8| {
            let others: Vec<u8> = letters.iter().filter(|it| *it != left_out).copied().collect();
            self.steps_for_letters(&others)
        };
        letters.iter().map(without).max().unwrap_or(0)
    }

    fn steps_for_letters(&self, letters: &[u8]) -> u64 {
        const LENGTH: usize = 500;
        let mut draw = fastrand::Rng::with_seed(1);
        let value: Vec<u8> = (0..LENGTH).filter_map(|_| draw.choice(letters).copied()).collect();
        let budget = WorkBudget::unlimited();
        // An unlimited budget is never used up, and only its sum is of interest.
        let _ = nfa_simulation::is_match(self.nfa(), &value, &budget);
        budget.work() / LENGTH as u64
    }

    /// As states.
    pub(super) fn nfa(&self) -> &NFA {
        self.automaton.nfa()
    }

    /// Whether the pattern matches somewhere in a value.
    ///
    /// # Errors
    /// The request has no work left.
    pub(super) fn is_match(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        if let Some(required) = &self.required
            && !required.is_in(value, budget)?
        {
            return Ok(false);
        }
        budget.charge(value.len())?;
        let mut is_match = false;
        match self.automaton.search(value, budget, |_| is_match = true) {
            Ok(()) => Ok(is_match),
            Err(GaveUp) => nfa_simulation::is_match(self.nfa(), value, budget),
        }
    }
}

#[cfg(test)]
mod tests {
    use regex::bytes::Regex;

    use super::*;

    const ATOMS: [&str; 26] = [
        "a",
        "b",
        "bot",
        "x0",
        ".",
        "[^b]",
        "[a-c]",
        "(?i:k)",
        "(?i:Bot)",
        "é",
        "[é-ω]",
        r"\d",
        r"\w",
        r"\s",
        r"(?-u:\b)",
        r"(?-u:\B)",
        "^",
        "$",
        r"\A",
        r"\z",
        "(?m:^)",
        "(?m:$)",
        "(?-u:[\\x80-\\xff])",
        "(?s:.)",
        "()",
        r"(?-u:\b{start})",
    ];
    const PIECES: [&str; 16] = [
        "a", "b", "bot", "BOT", "x0", "k", "\u{212a}", "é", "ω", " ", "\n", "0", "_", "ab", "c",
        "xx",
    ];

    /// A random pattern of so many levels.
    fn pattern(draw: &mut fastrand::Rng, depth: u8) -> String {
        let atom = |draw: &mut fastrand::Rng| draw.choice(ATOMS).unwrap().to_owned();
        if depth == 0 {
            return atom(draw);
        }
        let mut inner = || pattern(draw, depth - 1);
        let (first, second) = (inner(), inner());
        match draw.u8(..10) {
            0..=4 => format!("{first}{second}"),
            5 => format!("(?:{first}|{second})"),
            6 => format!("(?:{first})*{second}"),
            7 => format!("(?:{first})?{second}"),
            8 => format!("(?:{first}){{{},{}}}{second}", draw.u8(..3), draw.u8(3..9)),
            _ => format!("({first}|{second})+"),
        }
    }

    fn value(draw: &mut fastrand::Rng) -> Vec<u8> {
        let mut value = Vec::new();
        for _ in 0..draw.usize(..12) {
            match draw.u8(..12) {
                0 => value.push(draw.u8(..)),
                _ => value.extend_from_slice(draw.choice(PIECES).unwrap().as_bytes()),
            }
        }
        value
    }

    #[test]
    fn every_search_finds_what_regex_finds() {
        let mut draw = fastrand::Rng::with_seed(7);
        let (mut matches, mut with_texts) = (0, 0);
        for _ in 0..3_000 {
            let text = pattern(&mut draw, 3);
            let regex = Regex::new(&text).unwrap();
            let compiled = CompiledPattern::new(&text).unwrap();
            with_texts += usize::from(compiled.required.is_some());
            for _ in 0..8 {
                let value = value(&mut draw);
                let expected = regex.is_match(&value);
                matches += usize::from(expected);
                for budget in [WorkBudget::without_building(), WorkBudget::with_building()] {
                    let found = compiled.is_match(&value, &budget);
                    assert_eq!(found, Ok(expected), "{text} {value:?} {budget:?}");
                }
                let simulated =
                    nfa_simulation::is_match(compiled.nfa(), &value, &WorkBudget::default());
                assert_eq!(simulated, Ok(expected), "{text} {value:?}");
            }
        }
        assert!((5_000..19_000).contains(&matches), "{matches}");
        assert!((500..2_500).contains(&with_texts), "{with_texts}");
    }

    /// Not bytes are counted, but the states that are followed at each.
    #[test]
    fn a_counted_repetition_costs_what_it_does() {
        let compiled = CompiledPattern::new("(?i)(a|b)[^;]{0,300}x[0-9z]").unwrap();
        let mut draw = fastrand::Rng::with_seed(1);
        let hostile: Vec<u8> = (0..30_000).map(|_| draw.choice(*b"abx").unwrap()).collect();
        assert_eq!(compiled.is_match(&hostile, &WorkBudget::default()), Err(Unreadable));
        let budget = WorkBudget::without_building();
        assert_eq!(compiled.is_match(&hostile[..400], &budget), Ok(false));
        assert!((200_000..300_000).contains(&budget.work()), "{}", budget.work());
        let budget = WorkBudget::without_building();
        let agent =
            b"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/124.0";
        assert_eq!(compiled.is_match(agent, &budget), Ok(false));
        assert!(budget.work() < 3_000, "{}", budget.work());
    }

    #[test]
    fn a_value_without_a_required_text_is_hardly_read() {
        for (text, value, work) in [
            ("(a|b)[^;]{0,300}x0", "abc".repeat(10_000), 1_875),
            ("(?i)(a|b)[^;]{0,300}x0", "abc".repeat(10_000), 30_000),
            ("(?i)bot|crawl|spider", "boa".repeat(10_000), 30_000),
            (r"\d+(?:bot|crawl)\w*", "0123".repeat(7_500), 30_000),
        ] {
            let (compiled, budget) = (CompiledPattern::new(text).unwrap(), WorkBudget::default());
            assert_eq!(compiled.is_match(value.as_bytes(), &budget), Ok(false));
            assert_eq!(budget.work(), work, "{text}");
        }
    }
}
