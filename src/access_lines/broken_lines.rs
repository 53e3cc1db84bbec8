//! Counts the lines that have no record, without their text.

use super::record::LineError;

/// Line numbers that are kept of each kind, for the operator to look at.
const MAX_NUMBERS: usize = 5;

/// The lines of a log that have no record, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokenLines {
    kinds: [BrokenKind; LineError::ALL.len()],
}

/// The lines that are broken in the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokenKind {
    /// How many they are.
    pub count: u64,
    /// The numbers of the first five.
    pub first_lines: Vec<u64>,
}

impl BrokenLines {
    /// Counts a line by its number. Comments and blank lines are not broken, but counted too.
    pub fn record(&mut self, line: u64, error: LineError) {
        let kind = &mut self.kinds[error.index()];
        kind.count += 1;
        if kind.first_lines.len() < MAX_NUMBERS {
            kind.first_lines.push(line);
        }
    }

    /// Adds those of another part of the log, which came later.
    pub fn add(&mut self, later: &Self) {
        for (kind, later) in self.kinds.iter_mut().zip(&later.kinds) {
            kind.count += later.count;
            let room = MAX_NUMBERS.saturating_sub(kind.first_lines.len());
            kind.first_lines.extend(later.first_lines.iter().take(room));
        }
    }

    /// The lines of a kind.
    pub fn of(&self, error: LineError) -> &BrokenKind {
        &self.kinds[error.index()]
    }

    /// The number of broken lines of all kinds, without comments and blank lines.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, kind)| kind.count).sum()
    }

    /// The kinds that occurred, without comments and blank lines.
    pub fn iter(&self) -> impl Iterator<Item = (LineError, &BrokenKind)> {
        let kinds = LineError::ALL.into_iter().zip(&self.kinds);
        kinds.filter(|(error, kind)| *error != LineError::NoRequest && kind.count > 0)
    }
}
