//! What `conf/` has to deploy tollgate with: the unit of systemd, the image and its compose files, and the manifests for
//! Kubernetes. Each policy is valid, and each says of tollgate what is true: paths of probes, ports, users, directories, and
//! how long its end may take.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

mod compose;
mod kubernetes;
mod systemd;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use serde_yaml::Value;
use tollgate::cli::Cli;
use tollgate::config::{self, Config};

/// The user of the image.
const USER: u64 = 10_001;

fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf")
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Reads a policy that has neither mistakes nor warnings. Its secrets are those of a folder that has these files.
fn policy(text: &str, secrets: &[String]) -> Config {
    let folder = tempfile::tempdir().unwrap();
    for name in secrets {
        std::fs::write(folder.path().join(name), "sixteen characters or more\n").unwrap();
    }
    let text = text.replace("/run/secrets/tollgate", &folder.path().display().to_string());
    let loaded = config::read_text(&text, "policy.yaml", folder.path());
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}\nin\n{text}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    loaded.config
}

/// The longest time between TERM and the end of the process, as `docs/src/operating/signals.md` tells it: `drain`,
/// `finish`, a second to settle, and with a state directory five more for the last save.
fn longest_end(policy: &Config) -> Duration {
    let save = if policy.store.state().is_some() { 5 } else { 0 };
    policy.bounds.drain + policy.bounds.finish + Duration::from_secs(1 + save)
}

/// Checks that the program takes these arguments, and returns whether it would take over from a running process.
fn takes_over(arguments: &[&str]) -> bool {
    let words = std::iter::once("tollgate").chain(arguments.iter().copied());
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    arguments.contains(&"--upgrade")
}

/// The strings of a list.
fn strings(list: &Value) -> Vec<&str> {
    list.as_sequence().into_iter().flatten().map(|item| item.as_str().unwrap()).collect()
}
