//! Whether a pattern matches a value, found by following all its states at once.
//!
//! This is slower than an automaton whose states are built already, but it builds none, and every step of it is counted.
//! So it decides the values that lazy automata are no good for, within the budget of a request.

use regex_automata::nfa::thompson::{NFA, State};
use regex_automata::util::primitives::StateID;

use super::unreadable::Unreadable;
use super::work_budget::WorkBudget;

/// A list of transitions that is this long costs one more unit.
const TRANSITIONS_PER_UNIT: usize = 8;

/// States whose set is cleared for one unit.
const CLEARED_PER_UNIT: usize = 16;

/// Whether one of the patterns of an automaton matches somewhere in a value.
///
/// # Errors
/// The request has no work left.
pub(super) fn is_match(nfa: &NFA, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
    budget.charge(nfa.states().len() / CLEARED_PER_UNIT)?;
    let mut simulation = Simulation { nfa, value, current: StateSet::of(nfa), pending: Vec::new() };
    let mut next = StateSet::of(nfa);
    for at in 0..=value.len() {
        let mut work = simulation.reach(nfa.start_anchored(), at);
        let Some(&byte) = value.get(at).filter(|_| !simulation.current.matches) else {
            budget.charge(work)?;
            break;
        };
        std::mem::swap(&mut simulation.current, &mut next);
        simulation.current.clear();
        for &state in &next.states {
            let (target, units) = step(nfa.state(state), byte);
            work += units;
            if let Some(target) = target {
                work += simulation.reach(target, at + 1);
            }
        }
        budget.charge(work)?;
    }
    Ok(simulation.current.matches)
}

/// A simulation at one byte of the value.
struct Simulation<'s> {
    nfa: &'s NFA,
    value: &'s [u8],
    current: StateSet,
    /// States that are reached and not yet followed.
    pending: Vec<StateID>,
}

/// The states that wait for a byte.
struct StateSet {
    states: Vec<StateID>,
    /// For each state of the automaton the round in which it was last reached.
    reached_in: Vec<u32>,
    round: u32,
    /// Whether one of them is the end of a pattern.
    matches: bool,
}

impl StateSet {
    fn of(nfa: &NFA) -> Self {
        let reached_in = vec![0; nfa.states().len()];
        Self { states: Vec::new(), reached_in, round: 1, matches: false }
    }

    fn clear(&mut self) {
        self.states.clear();
        self.matches = false;
        // Values are far shorter than this counter is long.
        self.round += 1;
    }

    /// Whether the state was not reached before in this round.
    fn reach(&mut self, state: StateID) -> bool {
        let reached_in = &mut self.reached_in[state.as_usize()];
        std::mem::replace(reached_in, self.round) != self.round
    }
}

impl Simulation<'_> {
    /// Adds a state and all that it leads to without a byte. Returns the units of work.
    fn reach(&mut self, from: StateID, at: usize) -> usize {
        let mut work = 0;
        self.pending.push(from);
        while let Some(id) = self.pending.pop() {
            work += 1;
            if !self.current.reach(id) {
                continue;
            }
            match self.nfa.state(id) {
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => {
                    self.current.states.push(id);
                }
                State::Look { look, next } => {
                    if self.nfa.look_matcher().matches(*look, self.value, at) {
                        self.pending.push(*next);
                    }
                }
                State::Union { alternates } => self.pending.extend(alternates.iter()),
                State::BinaryUnion { alt1, alt2 } => self.pending.extend([*alt1, *alt2]),
                State::Capture { next, .. } => self.pending.push(*next),
                State::Fail => {}
                State::Match { .. } => self.current.matches = true,
            }
        }
        work
    }
}

/// The state that a byte leads to, and the units of work.
fn step(state: &State, byte: u8) -> (Option<StateID>, usize) {
    match state {
        State::ByteRange { trans } => (trans.matches_byte(byte).then_some(trans.next), 1),
        State::Sparse(sparse) => {
            let units = 1 + sparse.transitions.len() / TRANSITIONS_PER_UNIT;
            (sparse.matches_byte(byte), units)
        }
        State::Dense(dense) => (dense.matches_byte(byte), 1),
        State::Look { .. }
        | State::Union { .. }
        | State::BinaryUnion { .. }
        | State::Capture { .. }
        | State::Fail
        | State::Match { .. } => (None, 1),
    }
}
