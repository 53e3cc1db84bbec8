//! `access_log`: where requests are logged, in which form, how many of them, and how much of each.

use std::path::Path;

use crate::config::model::{
    AccessLog, HiddenFields, LogAddress, LogField, LogFormat, LogKey, LogPath, LogTarget,
    LogTemplate, TemplateError,
};
use crate::config::reader::{Located, Mapping, did_you_mean};
use crate::config::scalars::{boolean, share};

/// `access_log`. Without it every request is logged in full to standard output.
pub(crate) fn access_log(root: &mut Mapping<'_>, folder: &Path) -> AccessLog {
    let mut log = AccessLog {
        to: LogTarget::Stdout,
        format: LogFormat::Json,
        sample_ppm: AccessLog::ALL_PPM,
        sample_denied_ppm: AccessLog::ALL_PPM,
        client_ip: LogAddress::Full,
        path: LogPath::Full,
        log_key: LogKey::None,
        replay: false,
        // Known when the limits are.
        hidden: HiddenFields::default(),
    };
    let Some(at) = root.get("access_log") else {
        return log;
    };
    if ["off", "false", "no", "none"].into_iter().any(|word| at.is_text(word)) {
        at.error_with("expected a mapping, found a value", "write { to: none }");
        return log;
    }
    let Some(mut map) = at.mapping() else {
        return log;
    };
    if let Some(target) = map.get("to").and_then(|at| target(&at, folder)) {
        log.to = target;
    }
    if let Some(format) = map.get("format").and_then(|at| format(&at)) {
        log.format = format;
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
    let keys = [("none", LogKey::None), ("hash", LogKey::Hash), ("prefix", LogKey::Prefix)];
    if let Some(key) = map.get("log_key").and_then(|at| at.choice(&keys)) {
        log.log_key = key;
    }
    if let Some(at) = map.get("replay")
        && let Some(replay) = at.parse(boolean)
    {
        log.replay = replay;
        check_replay(&at, &log);
    }
    map.finish();
    log
}

/// Refuses `replay` where a line would lack what a replay reads besides.
fn check_replay(at: &Located<'_>, log: &AccessLog) {
    let lacking = match log {
        AccessLog { replay: false, .. } | AccessLog { to: LogTarget::None, .. } => None,
        AccessLog { format, .. } if *format != LogFormat::Json => Some("format: json"),
        AccessLog { client_ip, .. } if *client_ip != LogAddress::Full => Some("client_ip: full"),
        AccessLog { path, .. } if *path != LogPath::Full => Some("path: full"),
        AccessLog { sample_ppm, .. } if *sample_ppm < AccessLog::ALL_PPM => Some("sample: 100%"),
        AccessLog { sample_denied_ppm, .. } if *sample_denied_ppm < AccessLog::ALL_PPM => {
            Some("sample_denied: 100%")
        }
        AccessLog { .. } => None,
    };
    if let Some(needed) = lacking {
        at.error_with(
            format!("replay needs {needed}"),
            format!("write {needed}, or leave replay out"),
        );
    }
}

/// A word, or a template, which has a `$`.
fn format(at: &Located<'_>) -> Option<LogFormat> {
    const WORDS: [(&str, LogFormat); 4] = [
        ("json", LogFormat::Json),
        ("ecs", LogFormat::Ecs),
        ("otel", LogFormat::Otel),
        ("combined", LogFormat::Combined),
    ];
    let text = at.text_as_typed()?;
    if let Some((_, format)) = WORDS.iter().find(|(word, _)| *word == text) {
        return Some(format.clone());
    }
    if !text.contains('$') {
        let words = WORDS.map(|(word, _)| word);
        let cure = did_you_mean(text, &words).unwrap_or_else(|| {
            "json, ecs, otel, combined, or a template as '$client_ip $status'".to_owned()
        });
        at.error_with(format!("unknown format {text:?}"), cure);
        return None;
    }
    match LogTemplate::parse(text) {
        Ok(template) => Some(LogFormat::Template(template)),
        Err(error) => {
            at.error_with(error.to_string(), template_cure(&error));
            None
        }
    }
}

fn template_cure(error: &TemplateError) -> String {
    let names: Vec<&str> = LogField::ALL.iter().map(|field| field.name()).collect();
    match error {
        TemplateError::UnknownField { name, .. } => match TemplateError::own_name(name) {
            Some(own) => format!("its name here is ${own}"),
            None => did_you_mean(name, &names).map_or_else(
                || format!("known here: ${}", names.join(", $")),
                |cure| cure.replacen('"', "\"$", 1),
            ),
        },
        TemplateError::NoName(_) => {
            "write $$ for a dollar sign, and $name without braces".to_owned()
        }
        TemplateError::Control(_) => "a line of the log is one line; leave it out".to_owned(),
        TemplateError::TooLong => "leave out what the reader of the log does not need".to_owned(),
        TemplateError::NoField => {
            "name fields, as '$client_ip $status'; $$ stands for a dollar sign".to_owned()
        }
    }
}

/// What other products send logs to.
const FOREIGN_TARGETS: [&str; 6] = ["syslog", "udp", "tcp", "http", "https", "unix"];

fn target(at: &Located<'_>, folder: &Path) -> Option<LogTarget> {
    match at.text()? {
        "stdout" => Some(LogTarget::Stdout),
        "stderr" => Some(LogTarget::Stderr),
        "none" => Some(LogTarget::None),
        text if text
            .split_once(':')
            .is_some_and(|(scheme, _)| FOREIGN_TARGETS.contains(&scheme)) =>
        {
            let cure = "write stdout, and let what runs tollgate pass the lines on, or a file as ./access.log";
            at.error_with(format!("{text:?} is no file"), cure);
            None
        }
        // A slash or a dot distinguishes a file from a misspelled word.
        file if file.contains(['/', '.']) => Some(LogTarget::File(folder.join(file))),
        word => {
            let cure = "stdout, stderr, none, or a file as ./access.log";
            at.error_with(format!("unknown word {word:?}"), cure);
            None
        }
    }
}
