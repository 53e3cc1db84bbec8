//! What all commands have in common: exit statuses, standard input, answers that cannot be written, completions, man pages.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn tollgate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

const POLICY: &str = "conf/examples/two-tier-site.yaml";
const CASES: &str = "conf/examples/two-tier-site.test.yaml";

/// Every command that answers on standard output.
const ANSWERS: [&[&str]; 10] = [
    &["check", POLICY],
    &["check", "--json", POLICY],
    &["explain", "-c", POLICY, "GET", "http://a/"],
    &["explain", "--json", "-c", POLICY, "GET", "http://a/"],
    &["test", "-c", POLICY, CASES],
    &["state", "tests/state/fixtures/format-1"],
    &["schema"],
    &["completions", "zsh"],
    &["--help"],
    &["--version"],
];

#[test]
fn an_answer_that_cannot_be_written_has_a_status_of_its_own() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for args in ANSWERS.iter().chain(&[&["demo"][..]]) {
        let output = tollgate(args).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {told}");
        let expected = "tollgate: cannot write to standard output: No space left on device";
        assert!(told.starts_with(expected) && told.lines().count() == 1, "{args:?}: {told}");
    }
    for args in ANSWERS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = tollgate(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {told}");
        assert!(told.contains("Broken pipe") && !told.contains("panicked"), "{args:?}: {told}");
    }
    let junit = ["test", "-c", POLICY, "--junit", "/dev/full", CASES];
    assert_eq!(tollgate(&junit).output().unwrap().status.code(), Some(3));
    let man = ["man", "/dev/null/none"];
    assert_eq!(tollgate(&man).output().unwrap().status.code(), Some(3));
    // A message that cannot be written changes no status.
    for (args, status) in [
        (&["explain", "-c", "none", "GET", "http://a/"][..], 2),
        (&["test", "-c", "none", CASES], 2),
        (&["run", "-c", "none"], 2),
        (&["state", "none"], 2),
        (&["replay"], 2),
        (&["nothing"], 2),
        (&["schema"], 3),
    ] {
        let output = tollgate(args).stdout(full()).stderr(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}");
    }
}

fn with_input(args: &[&str], input: &Path) -> Output {
    tollgate(args).stdin(File::open(input).unwrap()).output().unwrap()
}

#[test]
fn a_dash_is_standard_input() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (policy, cases) = (root.join(POLICY), root.join(CASES));
    for args in [
        &["check", "-"][..],
        &["check", "-c", "-"],
        &["explain", "-c", "-", "GET", "http://a/"],
        &["test", "--config", "-", CASES],
    ] {
        let output = with_input(args, &policy);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(with_input(&["test", "-c", POLICY, "-"], &cases).status.code(), Some(0));
    for args in [&["test", "-c", "-", "-"][..], &["check", "-", "-"]] {
        let output = with_input(args, &policy);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("standard input (-) can be read once only"));
    }
    // Mistakes are told with their location.
    let mut folder = tempfile::NamedTempFile::new().unwrap();
    folder.write_all(b"version: 2\n\xff").unwrap();
    let output = with_input(&["check", "-"], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).starts_with("<stdin>"), "{}", text(&output.stdout));
    let bad = root.join("Cargo.toml");
    let output = with_input(&["run", "-c", "-"], &bad);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("<stdin>:"), "{}", text(&output.stderr));
}

#[test]
fn bash_completes_commands_and_options() {
    let offered = |words: &str| {
        let script = format!(
            "source <({} completions bash); COMP_WORDS=(tollgate {words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _tollgate tollgate \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            env!("CARGO_BIN_EXE_tollgate")
        );
        let output = Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let commands = offered("''");
    for command in ["run", "check", "explain", "test", "state", "schema", "completions", "demo"] {
        assert!(commands.iter().any(|offered| offered == command), "{command}: {commands:?}");
    }
    assert_eq!(offered("che"), ["check"]);
    assert_eq!(offered("check --st"), ["--strict"]);
    assert_eq!(offered("run --log-format j"), ["json"]);
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = tollgate(&["completions", shell]).output().unwrap();
        assert!(script.status.success() && text(&script.stdout).contains("explain"), "{shell}");
    }
}

#[test]
fn man_pages_render_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let written = tollgate(&["man", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(written.status.success(), "{}", text(&written.stderr));
    let mut pages: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    let names: Vec<_> =
        pages.iter().map(|page| page.file_name().unwrap().to_str().unwrap()).collect();
    assert!(names.contains(&"tollgate.1") && names.contains(&"tollgate-check.1"), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with("tollgate-man")), "{names:?}");
    for page in &pages {
        let shown =
            Command::new("groff").args(["-man", "-ww", "-Tutf8", "-P-cbou"]).arg(page).output();
        let shown = shown.unwrap();
        assert!(shown.status.success() && shown.stderr.is_empty(), "{}", text(&shown.stderr));
        let shown = text(&shown.stdout);
        assert!(shown.contains("SYNOPSIS"), "{}: {shown}", page.display());
    }
    let mut groff = Command::new("groff");
    groff.args(["-man", "-Tutf8", "-P-cbou"]).arg(folder.path().join("tollgate.1"));
    // Lines are adjusted with more blanks.
    let page = text(&groff.output().unwrap().stdout);
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("3 the answer cannot be written"), "{page}");
}
