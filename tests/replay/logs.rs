//! Policies and logs as texts, and the report of a replay.

use std::io::Cursor;
use std::path::Path;

use serde_json::Value;
use tollgate::access_lines::{Format, Zone};
use tollgate::config::{self, Config};
use tollgate::replay::{KeyShare, Log, ReadSettings, ReplayOptions, SourceIndex, replay};

/// What a replay is asked.
#[derive(Default)]
pub(crate) struct Asked<'t> {
    /// The limits, and the routes with them.
    pub(crate) policy: &'t str,
    /// Another policy.
    pub(crate) other: Option<&'t str>,
    /// The format; empty to have it found.
    pub(crate) format: &'t str,
    /// Where fields of JSON lines stand.
    pub(crate) fields: &'t [&'t str],
    /// The zone; empty for UTC.
    pub(crate) zone: &'t str,
    /// `--suggest` in millionths.
    pub(crate) suggest: Option<u32>,
    /// Whether keys are shown as they are.
    pub(crate) show_keys: bool,
}

/// A configuration with these limits and routes.
pub(crate) fn config(policy: &str) -> Config {
    let text = format!(
        "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [\"127.0.0.1:2\"] }} }}\n{policy}"
    );
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/keys");
    match config::read_text(&text, "policy", &folder) {
        Ok(loaded) => loaded.config,
        Err(errors) => panic!("{errors}\n{text}"),
    }
}

/// The report as JSON.
pub(crate) fn report(asked: &Asked<'_>, logs: &[&str]) -> Value {
    let Asked { policy, other, format, fields, zone, suggest, show_keys } = *asked;
    let settings = ReadSettings {
        format: (!format.is_empty()).then(|| Format::parse(format).unwrap()),
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        zone: if zone.is_empty() { Zone::UTC } else { Zone::parse(zone).unwrap() },
        ..ReadSettings::default()
    };
    let read = |(index, text): (usize, &&str)| {
        let input = Cursor::new(text.as_bytes().to_vec());
        let source = SourceIndex(u32::try_from(index).unwrap());
        Log::read(&format!("log{index}"), input, source, &settings).unwrap()
    };
    let logs = logs.iter().enumerate().filter_map(read).collect();
    let options = ReplayOptions {
        policy: ("live".to_owned(), config(policy)),
        other: other.map(|other| ("other".to_owned(), config(other))),
        suggest: suggest.map(KeyShare::from_millionths),
        top: 10,
        show_keys,
        notes: Vec::new(),
    };
    serde_json::from_str(&replay(options, logs, |_| {}).json()).unwrap()
}

/// What a report says of a limit.
pub(crate) fn limit<'r>(report: &'r Value, name: &str) -> &'r Value {
    let limits = report["limits"].as_array().unwrap();
    limits.iter().find(|limit| limit["name"] == name).unwrap()
}

/// The bounds of a limit.
pub(crate) fn bounds(report: &Value, name: &str) -> Option<(u64, u64)> {
    let bounds = &limit(report, name)["bounds"];
    Some((bounds["lower"].as_u64()?, bounds["upper"].as_u64()?))
}

/// A line of a combined log: a request of the client `192.0.2.CLIENT`.
pub(crate) fn combined(client: u8, time: &str, request: &str, status: u16) -> String {
    format!("192.0.2.{client} - - [{time}] \"{request} HTTP/1.1\" {status} 5 \"-\" \"a\"\n")
}
