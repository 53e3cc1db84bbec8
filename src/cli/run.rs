//! `tollgate run`: serves until a signal ends the process.

use std::path::Path;

use super::input::ConfigInput;
use super::output::{self, Ending};
use crate::limiter::FileWatch;
use crate::ops::{self, LogForm, LogSettings};
use crate::server::{self, RunOptions};
use crate::signals::Signals;

/// Serves. A configuration with mistakes is refused; the answer is no if this machine does not allow a start.
pub(super) fn run(file: &Path, options: RunOptions, watches: bool, log: LogSettings) -> Ending {
    // Before anything else, because a HUP without a handler kills the process.
    let requests = match Signals::install().and_then(Signals::listen) {
        Ok(requests) => requests,
        Err(error) => {
            output::complain(&format!("tollgate: cannot take signals: {error}"));
            return Ending::Negative;
        }
    };
    if let Err(error) = ops::init_log(log) {
        output::complain(&format!("tollgate: cannot start the log: {error}"));
        return Ending::Negative;
    }
    // Before the file is read, so that a change during the start is seen.
    let is_file = file != Path::new("-");
    let watch = (watches && is_file).then(|| FileWatch::new(file.to_owned()));
    let input = ConfigInput::open(file);
    let loaded = input.as_ref().map_err(Clone::clone).and_then(ConfigInput::load);
    let (input, loaded) = match (input, loaded) {
        (Ok(input), Ok(loaded)) => (input, loaded),
        (Err(errors), _) | (_, Err(errors)) => {
            report(log.form, &errors.lines());
            return Ending::Refused;
        }
    };
    if watches && input.file().is_none() {
        let why = "--watch needs a file: standard input cannot be read again".to_owned();
        report(log.form, &[why]);
        return Ending::Refused;
    }
    match server::run(loaded, input.file(), options, watch, requests) {
        Ok(()) => Ending::Success,
        Err(errors) => {
            report(log.form, &errors.lines());
            Ending::Negative
        }
    }
}

/// Says why the process does not start: bare to people, as lines of the log to what reads JSON.
fn report(form: LogForm, lines: &[String]) {
    log::logger().flush();
    for line in lines {
        match form {
            LogForm::Text => output::complain(line),
            LogForm::Json => log::error!("{line}"),
        }
    }
    log::logger().flush();
}
