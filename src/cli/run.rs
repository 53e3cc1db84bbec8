//! `tollgate run`: serves until a signal ends the process.

use std::path::Path;
use std::process::ExitCode;

use super::REFUSED;
use crate::config;
use crate::ops::{self, LogForm, LogSettings};
use crate::server;
use crate::signals::Signals;

/// Serves. The exit status is 2 if the configuration is refused.
pub(super) fn run(file: &Path, upgrade: bool, log: LogSettings) -> ExitCode {
    // Before anything else, because a HUP without a handler kills the process.
    let requests = match Signals::install().and_then(Signals::listen) {
        Ok(requests) => requests,
        Err(error) => {
            eprintln!("tollgate: cannot take signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = ops::init_log(log) {
        eprintln!("tollgate: cannot start the log: {error}");
        return ExitCode::FAILURE;
    }
    let loaded = match config::load(file) {
        Ok(loaded) => loaded,
        Err(errors) => {
            for line in errors.lines() {
                report(log.form, &line);
            }
            log::logger().flush();
            return ExitCode::from(REFUSED);
        }
    };
    for warning in &loaded.warnings {
        log::warn!("{warning}");
    }
    match server::run(loaded.config, file, upgrade, requests) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(log.form, &format!("tollgate: {error}"));
            log::logger().flush();
            ExitCode::FAILURE
        }
    }
}

/// Says why the process does not start: bare to people, as a line of the log to what reads JSON.
fn report(form: LogForm, line: &str) {
    match form {
        LogForm::Text => eprintln!("{line}"),
        LogForm::Json => log::error!("{line}"),
    }
}
