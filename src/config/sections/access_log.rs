//! `access_log`: where requests are logged, how many of them, and how much of each.

use std::path::Path;

use crate::config::model::{AccessLog, LogAddress, LogPath, LogTarget};
use crate::config::reader::{Located, Mapping};
use crate::config::scalars::share;

/// `access_log`. Without it every request is logged in full to standard output.
pub(crate) fn access_log(root: &mut Mapping<'_>, folder: &Path) -> AccessLog {
    let mut log = AccessLog {
        to: LogTarget::Stdout,
        sample_ppm: 1_000_000,
        sample_denied_ppm: 1_000_000,
        client_ip: LogAddress::Full,
        path: LogPath::Full,
    };
    let Some(mut map) = root.get("access_log").and_then(|at| at.mapping()) else {
        return log;
    };
    if let Some(target) = map.get("to").and_then(|at| target(&at, folder)) {
        log.to = target;
    }
    if let Some(ppm) = map.get("sample").and_then(|at| at.parse(share)) {
        log.sample_ppm = ppm;
    }
    if let Some(ppm) = map.get("sample_denied").and_then(|at| at.parse(share)) {
        log.sample_denied_ppm = ppm;
    }
    let addresses =
        [("full", LogAddress::Full), ("prefix", LogAddress::Prefix), ("none", LogAddress::None)];
    if let Some(address) = map.get("client_ip").and_then(|at| at.choice(&addresses)) {
        log.client_ip = address;
    }
    let paths = [("full", LogPath::Full), ("route", LogPath::Route)];
    if let Some(path) = map.get("path").and_then(|at| at.choice(&paths)) {
        log.path = path;
    }
    map.finish();
    log
}

fn target(at: &Located<'_>, folder: &Path) -> Option<LogTarget> {
    match at.text()? {
        "stdout" => Some(LogTarget::Stdout),
        "stderr" => Some(LogTarget::Stderr),
        "none" => Some(LogTarget::None),
        // A slash or a dot distinguishes a file from a misspelled word.
        file if file.contains(['/', '.']) => Some(LogTarget::File(folder.join(file))),
        word => {
            let cure = "stdout, stderr, none, or a file as ./access.log";
            at.error_with(format!("unknown word {word:?}"), cure);
            None
        }
    }
}
