//! `tollgate completions`: a script for a shell, made from the command line itself.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::Cli;
use super::output::{self, Ending};

/// Prints the script.
pub(super) fn completions(shell: Shell) -> Ending {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "tollgate", &mut script);
    output::answer(&String::from_utf8_lossy(&script), Ending::Success)
}
