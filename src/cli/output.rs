//! What commands write, and how they end.
//!
//! What must always hold: an answer that could not be written, to a full device or a pipe that nobody reads, ends the
//! command with a message and a status of its own. A message that cannot be written changes nothing, least of all into a
//! panic.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::http::is_no_text;

/// How a command ends. docs/src/commands.md says what each means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It did what it was asked to do.
    Success,
    /// The answer is no: not valid, a failed case, a server that could not start.
    Negative,
    /// The command line or a file that the command needs is refused.
    Refused,
    /// The answer could not be written.
    Unwritten,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        Self::from(match ending {
            Ending::Success => 0,
            Ending::Negative => 1,
            Ending::Refused => 2,
            Ending::Unwritten => 3,
        })
    }
}

/// Writes the answer of a command to standard output. The command ends with `ending` if that succeeds.
pub(super) fn answer(text: &str, ending: Ending) -> Ending {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ending,
        Err(error) => unwritten("standard output", &error),
    }
}

/// Says that an answer could not be written.
pub(super) fn unwritten(target: &str, error: &io::Error) -> Ending {
    complain(&format!("tollgate: cannot write to {target}: {error}"));
    Ending::Unwritten
}

/// Says why a command is refused.
pub(super) fn refuse(command: &str, why: &str) -> Ending {
    complain(&format!("tollgate {command}: {why}"));
    Ending::Refused
}

/// Writes a line to standard error, if that is possible. What a terminal would obey, in the name of a file or in a text that
/// is quoted from one, is escaped.
pub(super) fn complain(line: &str) {
    let mut printable = String::with_capacity(line.len() + 1);
    for letter in line.chars() {
        match is_no_text(letter) && !matches!(letter, '\n' | '\t') {
            true => printable.extend(letter.escape_default()),
            false => printable.push(letter),
        }
    }
    printable.push('\n');
    // One write, so that no line of a log gets into it.
    let _ = io::stderr().lock().write_all(printable.as_bytes());
}

/// Answers a command line that is refused, or that asks for help or the version.
pub(super) fn usage(error: &clap::Error) -> Ending {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match (error.use_stderr(), printed) {
        (true, _) => Ending::Refused,
        (false, Ok(())) => Ending::Success,
        (false, Err(error)) => unwritten("standard output", &error),
    }
}
