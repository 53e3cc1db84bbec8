//! The unit.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{conf, longest_end, policy, read, takes_over};

const UNIT: &str = "systemd/tollgate@.service";

/// How exposed `systemd-analyze security` may find it, in tenths.
const MAX_EXPOSURE: &str = "16";

/// The values of a directive, without those before an empty one, which clears the list.
fn values(text: &str, directive: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(&format!("{directive}=")));
    let all: Vec<String> = lines.map(str::to_owned).collect();
    all.rsplit(String::is_empty).next().unwrap().to_vec()
}

fn value(text: &str, directive: &str) -> String {
    match values(text, directive).as_slice() {
        [value] => value.clone(),
        other => panic!("{directive}: {other:?}"),
    }
}

fn unit() -> String {
    read(&conf().join(UNIT))
}

/// Runs `systemd-analyze` on the unit, in a folder in which the program exists.
fn analyze(arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let install = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text.replace("/usr/local/bin/tollgate", "/bin/true")).unwrap();
    };
    install("tollgate@.service", &unit());
    let output = Command::new("systemd-analyze")
        .args(arguments)
        .arg(folder.path().join("tollgate@.service"))
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()))
        .env("LC_ALL", "C")
        .output()
        .expect("systemd-analyze is installed by make test");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    // A key that it does not know is only a line.
    assert!(output.status.success() && told.is_empty(), "{arguments:?}: {told}");
}

#[test]
fn systemd_accepts_the_unit_and_finds_it_closed() {
    analyze(&["verify"]);
    analyze(&["security", "--offline=true", "--threshold", MAX_EXPOSURE]);
}

#[test]
fn the_state_directory_is_private_and_outlives_the_process() {
    let unit = unit();
    assert_eq!(value(&unit, "StateDirectory"), "tollgate");
    assert_eq!(value(&unit, "StateDirectoryMode"), "0700");
    assert_eq!(value(&unit, "UMask"), "0077");
    assert_ne!(value(&unit, "User"), "root");
    // What is documented is the directory that the unit makes.
    let documented =
        read(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/operating/systemd.md").as_path());
    assert!(documented.contains("state: /var/lib/tollgate }"));
}

#[test]
fn the_unit_waits_for_the_end_and_runs_what_the_program_takes() {
    let text = "
version: 1
listeners: [{ address: 127.0.0.1:1 }]
store: { embedded: { state: /var/lib/tollgate } }
origins: { site: { servers: [127.0.0.1:2] } }
routes: [{ name: all }]
";
    let wait = value(&unit(), "TimeoutStopSec");
    let wait = Duration::from_secs(wait.strip_suffix('s').unwrap().parse().unwrap());
    assert!(wait > longest_end(&policy(text, &[])), "{wait:?}");
    for directive in ["ExecStartPre", "ExecStart"] {
        let command = value(&unit(), directive);
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(words[0], "/usr/local/bin/tollgate");
        assert_eq!(takes_over(&words[1..]), directive == "ExecStart", "{directive}");
    }
}
