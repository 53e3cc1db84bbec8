//! `tollgate check`: prints every mistake of a configuration, or, if there is none, its warnings and
//! what its limits promise.
//!
//! It rehearses a start with the code of `run`, so that it refuses what `run` refuses on this machine.

use std::path::{Path, PathBuf};

use clap::Args;

use super::input::ConfigInput;
use super::output::{self, Ending};
use crate::config::{Config, ConfigErrors, LoadedConfig, Warning};
use crate::server::{self, Rehearsal, RehearsalScope};

mod json;
mod limit;
mod memory;
mod report;

/// Configurations to check.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configurations; - is standard input.
    #[arg(required_unless_present = "config", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A configuration, named as for the other commands.
    #[arg(short, long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Fail on warnings too.
    #[arg(long)]
    strict: bool,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
    /// Ask the store, the servers of the origins and the URLs of keys too, and warn of those that cannot be used.
    #[arg(long)]
    connect: bool,
    /// The files are for another machine: do not try their addresses and access logs here.
    #[arg(long, conflicts_with = "connect")]
    elsewhere: bool,
}

/// What is known of a file after its check.
struct CheckedFile {
    file: String,
    errors: Option<ConfigErrors>,
    /// Those of the rehearsal and those of the file.
    warnings: Vec<Warning>,
    /// `None` if the file has a mistake.
    config: Option<Config>,
    rehearsal: Rehearsal,
}

/// Checks every file. The answer is no if one of them is not valid, or has a warning under `--strict`.
pub(super) fn check(args: &CheckArgs) -> Ending {
    let files: Vec<&Path> = args.config.iter().chain(&args.files).map(PathBuf::as_path).collect();
    if let Err(why) = super::input::check_read_once(&files) {
        return output::refuse("check", &why);
    }
    let scope = match (args.elsewhere, args.connect) {
        (true, _) => RehearsalScope::Files,
        (false, false) => RehearsalScope::Machine,
        (false, true) => RehearsalScope::Network,
    };
    let checked: Vec<CheckedFile> = files.iter().map(|file| check_file(file, scope)).collect();
    let is_accepted = |file: &CheckedFile| {
        let warnings_pass = !args.strict || file.warnings.is_empty();
        file.errors.is_none() && warnings_pass
    };
    let accepted = checked.iter().all(is_accepted);
    let ending = if accepted { Ending::Success } else { Ending::Negative };
    if args.json {
        return output::answer(&json::report(&checked, accepted), ending);
    }
    let mut text = Vec::new();
    for file in &checked {
        // Writing to a vector cannot fail.
        let _ = report::write_report(&mut text, file, args.strict);
    }
    output::answer(&String::from_utf8_lossy(&text), ending)
}

fn check_file(file: &Path, scope: RehearsalScope) -> CheckedFile {
    let mut checked = CheckedFile {
        file: super::input::name(file),
        errors: None,
        warnings: Vec::new(),
        config: None,
        rehearsal: Rehearsal::default(),
    };
    match ConfigInput::open(file).and_then(|input| input.load()) {
        Ok(loaded) => {
            match server::rehearse(&loaded, scope) {
                Ok(rehearsal) => {
                    checked.warnings.clone_from(&rehearsal.warnings);
                    checked.rehearsal = rehearsal;
                }
                Err(errors) => checked.errors = Some(errors),
            }
            let LoadedConfig { config, warnings, .. } = loaded;
            checked.warnings.extend(warnings);
            checked.warnings.sort_by_key(|warning| warning.location);
            checked.config = Some(config);
        }
        Err(errors) => checked.errors = Some(errors),
    }
    checked
}
