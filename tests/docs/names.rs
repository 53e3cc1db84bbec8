//! Commands, targets, metrics, reasons and warnings that the documentation names exist, and those
//! that exist are in it.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Parser;
use tollgate::cli::Cli;
use tollgate::config;

use super::pages;

fn page(file: &str) -> String {
    std::fs::read_to_string(pages::book().join(file)).unwrap()
}

/// The words of a line of shell, up to a comment, a pipe or another command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, ' ') => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            (None, '#' | '&' | '|' | '>' | ';') => break,
            _ => word.push(letter),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[test]
fn every_command_line_is_one_that_the_program_takes() {
    let makefile = std::fs::read_to_string(pages::root().join("Makefile")).unwrap();
    let mut checked = 0;
    for page in pages::all() {
        for block in page.blocks().iter().filter(|block| block.language == "sh") {
            for line in block.text.lines() {
                let words = words(line);
                match words.first().map(String::as_str) {
                    Some("tollgate") => {
                        if let Err(error) = Cli::try_parse_from(&words) {
                            panic!("{}: {line}: {error}", page.file.display());
                        }
                        checked += 1;
                    }
                    Some("make") => {
                        let rule = format!("\n{}:", words[1]);
                        assert!(makefile.contains(&rule), "{}: {line}", page.file.display());
                        checked += 1;
                    }
                    _ => {}
                }
            }
        }
    }
    assert!(checked > 10, "{checked}");
}

/// Every `tollgate_...` in a text, without the suffixes of a histogram.
fn metrics(text: &str, before: char) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let opening = format!("{before}tollgate_");
    for rest in text.split(&opening).skip(1) {
        let name: String =
            rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
        found.insert(format!("tollgate_{name}"));
    }
    found
}

fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_metric_is_described_and_every_described_metric_exists() {
    let mut text = String::new();
    sources(&pages::root().join("src"), &mut text);
    let there = metrics(&text, '"');
    let described = metrics(&page("operating/metrics.md"), '`');
    assert_eq!(described, there);
    for page in pages::all() {
        for name in metrics(&page.text, '`') {
            assert!(there.contains(&name), "{}: {name}", page.file.display());
        }
    }
}

/// `tests/dashboards` checks what the rules say; here the page has a row for each of them and names no other.
#[test]
fn every_alert_is_described_and_every_described_alert_exists() {
    let file = pages::root().join("conf/prometheus/alerts.yaml");
    let rules = std::fs::read_to_string(file).unwrap();
    let there: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(there.len() > 10, "{there:?}");
    let text = page("operating/alerts.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `Tollgate"));
    let described: BTreeSet<String> =
        rows.map(|row| format!("Tollgate{}", row.split('`').next().unwrap())).collect();
    assert!(described.iter().map(String::as_str).eq(there.iter().copied()), "{described:?}");
    for page in pages::all() {
        for rest in page.text.split("`Tollgate").skip(1) {
            let name = format!("Tollgate{}", rest.split('`').next().unwrap());
            assert!(there.contains(&*name), "{}: {name}", page.file.display());
        }
    }
}

/// The words that `reader` lists as the allowed ones, in the error about an empty one.
fn allowed(text: &str) -> BTreeSet<String> {
    let errors = config::read_text(text, "f", Path::new("")).unwrap_err().lines().join("\n");
    let list = errors.split("one of ").nth(1).unwrap_or_else(|| panic!("{errors}"));
    list.lines().next().unwrap().split(", ").map(str::to_owned).collect()
}

#[test]
fn every_warning_is_described() {
    let there = allowed(
        "version: 1\nlisteners: [{ address: 127.0.0.1:1 }]\norigins: { o: { servers: [127.0.0.1:1] } }\n\
         routes: [{ name: r }]\ncheck: { silence: [\"\"] }\n",
    );
    assert_eq!(first_cells(&page("warnings.md")), there);
}

/// The names in the first cells of a page's tables.
fn first_cells(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" |").next().unwrap());
    cells
        .flat_map(|cell| cell.split("`, `"))
        .map(|name| name.trim_matches('`').to_owned())
        .collect()
}

#[test]
fn every_reason_is_described() {
    let there: BTreeSet<String> =
        tollgate::http::RejectReason::ALL.iter().map(|reason| reason.name().to_owned()).collect();
    let text = page("security/refused.md");
    let described = first_cells(text.split("## Reasons").nth(1).unwrap());
    assert_eq!(described, there);
}
