//! Each case of `mistakes/` is a test: a file that is wrong, or right and surprising, with the line, the words and the cure
//! of every error, or the code and the cure of every warning. The real reader reads it from a folder of its own.
//!
//! `cargo test --test mistakes 'limits::'` runs the cases of one file.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its cases shall fail")]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use serde_yaml::Value;
use support::cases::{self, Case};
use tollgate::config::{self, ConfigErrors, Location};

/// Fewer cases than this mean that a file was not found.
const MIN_CASES: &[(&str, usize)] = &[
    ("", 440),
    ("limits::", 90),
    ("include::", 20),
    ("everyday::", 50),
    ("no_effect::", 30),
    ("fleet::", 25),
];

/// What is read before a case: the file that it belongs to.
struct Page {
    before: String,
    after: String,
    /// Whether the cases are files of policy tests.
    is_tests: bool,
}

/// An error or a warning, as expected or as found.
#[derive(Clone, Debug)]
struct Report {
    /// `None`: the file itself.
    file: Option<String>,
    /// `None`: no line.
    line: Option<usize>,
    /// The code of a warning.
    code: String,
    /// Words of the message, or all of it with the cure.
    text: String,
    cure: String,
}

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    cases::run(MIN_CASES, files.iter().flat_map(|file| cases_of(file)).collect())
}

fn cases_of(file: &Path) -> Vec<Case> {
    let all: Value = serde_yaml::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
    let case = |case: &Value| {
        let page = Page {
            before: text(&all, "before"),
            after: text(&all, "after"),
            is_tests: text(&all, "kind") == "tests",
        };
        let case = case.clone();
        Case::new(format!("{name}::{}", text(&case, "name")), move || check(&page, &case))
    };
    all["cases"].as_sequence().unwrap().iter().map(case).collect()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn check(page: &Page, case: &Value) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, bytes).unwrap();
        file
    };
    for (name, content) in case["files"].as_mapping().into_iter().flatten() {
        write(name.as_str().unwrap(), content.as_str().unwrap().into());
    }
    let whole = format!("{}{}{}", page.before, text(case, "text"), page.after);
    let file = write("policy.yaml", encoded(&whole, &text(case, "encoding")));
    let skipped = page.before.lines().count();
    let found = match page.is_tests {
        true => config::load_cases(&file).map(|_| Vec::new()),
        false => config::load(&file).map(|loaded| loaded.warnings),
    };
    let included = |name: &str| {
        let name = Path::new(name).strip_prefix(folder.path()).unwrap().display().to_string();
        Some(name).filter(|name| name != "policy.yaml")
    };
    let line = |file: &Option<String>, at: Option<Location>| {
        at.map(|at| at.line - if file.is_none() { skipped } else { 0 })
    };
    let (errors, warnings) = match found {
        Err(ConfigErrors { file: own, errors }) => {
            let report = |error: &config::ConfigError| {
                let file = included(error.file.as_ref().unwrap_or(&own));
                let line = line(&file, error.location);
                let cure = error.cure.clone().unwrap_or_default();
                Report { line, file, code: String::new(), text: error.to_string(), cure }
            };
            (errors.iter().map(report).collect::<Vec<_>>(), Vec::new())
        }
        Ok(warnings) => {
            let report = |warning: &config::Warning| {
                let file = included(&warning.file);
                let line = line(&file, Some(warning.location));
                let (code, cure) = (warning.code.to_owned(), warning.cure.clone());
                Report { line, file, code, text: warning.to_string(), cure }
            };
            (Vec::new(), warnings.iter().map(report).collect())
        }
    };
    let below = format!("{}/", folder.path().display());
    let strip = |report: Report| Report {
        text: report.text.replace(&below, ""),
        cure: report.cure.replace(&below, ""),
        ..report
    };
    let errors: Vec<Report> = errors.into_iter().map(strip).collect();
    compare("errors", &expected(case, "errors")?, &errors)?;
    compare("warnings", &expected(case, "warnings")?, &warnings)
}

fn encoded(text: &str, encoding: &str) -> Vec<u8> {
    match encoding {
        "" => text.into(),
        "utf-8 with a byte order mark" => format!("\u{feff}{text}").into(),
        "utf-16" => {
            let units = std::iter::once(0xFEFF).chain(text.encode_utf16());
            units.flat_map(u16::to_le_bytes).collect()
        }
        "utf-16 without a byte order mark" => {
            text.encode_utf16().flat_map(u16::to_le_bytes).collect()
        }
        "latin-1" => text.chars().map(|c| u8::try_from(c).unwrap()).collect(),
        other => panic!("unknown encoding {other:?}"),
    }
}

/// What a case expects. Each entry names words of the message and of the cure.
fn expected(case: &Value, key: &str) -> Result<Vec<Report>, String> {
    let entries = case[key].as_sequence().cloned().unwrap_or_default();
    let report = |entry: Value| {
        let report = Report {
            file: entry["file"].as_str().map(str::to_owned),
            line: entry["line"].as_u64().map(|line| line as usize),
            code: text(&entry, "code"),
            text: text(&entry, "says"),
            cure: text(&entry, "cure"),
        };
        let is_complete = !report.text.is_empty() && !report.cure.is_empty();
        is_complete.then_some(report).ok_or_else(|| format!("{key} need says and cure: {entry:?}"))
    };
    entries.into_iter().map(report).collect()
}

/// The same number, and each in its line with its words, the words of the cure behind those of the message.
fn compare(what: &str, expected: &[Report], found: &[Report]) -> Result<(), String> {
    let is_same = |(expected, found): (&Report, &Report)| {
        let cure =
            found.text.find(&expected.text).map(|at| &found.text[at + expected.text.len()..]);
        expected.file == found.file
            && expected.line == found.line
            && expected.code == found.code
            && cure.is_some_and(|rest| rest.contains(&expected.cure))
            && (found.cure.is_empty() || found.cure.contains(&expected.cure))
    };
    if expected.len() == found.len() && expected.iter().zip(found).all(is_same) {
        return Ok(());
    }
    let lines: Vec<String> = found.iter().map(|report| format!("{report:?}")).collect();
    Err(format!("expected {what} {expected:#?}, found\n{}", lines.join("\n")))
}
