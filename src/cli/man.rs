//! `tollgate man`: a man page for the program and one for each command, made from the command line itself. `make man` runs
//! it.

use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory;

use super::Cli;
use super::output::{self, Ending};

/// Writes the pages into a directory, which is created if it is missing.
pub(super) fn man(directory: &Path) -> Ending {
    match write_pages(directory) {
        Ok(()) => Ending::Success,
        Err(error) => output::unwritten(&directory.display().to_string(), &error),
    }
}

fn write_pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
}
