//! `tollgate run`: serves until a signal ends the process.

use std::path::Path;
use std::process::ExitCode;

use super::REFUSED;
use crate::config;
use crate::ops;
use crate::server;
use crate::signals::Signals;

/// Serves. The exit status is 2 if the configuration is refused.
pub(super) fn run(file: &Path, upgrade: bool) -> ExitCode {
    // Before anything else, because a HUP without a handler kills the process.
    let requests = match Signals::install().and_then(Signals::listen) {
        Ok(requests) => requests,
        Err(error) => return failed(&format!("cannot take signals: {error}")),
    };
    let loaded = match config::load(file) {
        Ok(loaded) => loaded,
        Err(errors) => {
            for line in errors.lines() {
                eprintln!("{line}");
            }
            return ExitCode::from(REFUSED);
        }
    };
    if let Err(error) = ops::init_log() {
        return failed(&format!("cannot start the log: {error}"));
    }
    for warning in &loaded.warnings {
        log::warn!("{warning}");
    }
    match server::run(loaded.config, file, upgrade, requests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("tollgate: {why}");
    ExitCode::FAILURE
}
