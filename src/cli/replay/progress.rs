//! How far a replay is, on a terminal.

use std::io::{self, IsTerminal as _, Write as _};

/// Lines between two updates.
const STEP: u64 = 100_000;

/// Shows the number of lines that were read, in the same line of the terminal. Nothing is written where there is no terminal.
pub(super) struct ProgressLine {
    is_shown: bool,
    next: u64,
    has_written: bool,
}

impl ProgressLine {
    /// Begins.
    pub(super) fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), next: STEP, has_written: false }
    }

    /// So many lines were read.
    pub(super) fn show(&mut self, lines: u64) {
        if !self.is_shown || lines < self.next {
            return;
        }
        self.next = lines.saturating_add(STEP);
        self.has_written = true;
        // A terminal that takes nothing shows nothing.
        let _ = write!(io::stderr().lock(), "\r{lines} lines read");
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.has_written {
            // Without its end the line of progress is only less tidy.
            let _ = writeln!(io::stderr().lock());
        }
    }
}
