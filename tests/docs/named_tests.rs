//! Tests that the documentation names exist, and each letter of the table of events in README.md names one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::pages;

/// The sources of the tests, with their paths from the folder of the tests.
fn sources() -> Vec<(PathBuf, String)> {
    let folder = pages::root().join("tests");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).unwrap();
        (file.strip_prefix(&folder).unwrap().to_owned(), text)
    };
    files.into_iter().map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// A test that a text names: its file, and its name, which may be cut at either end by `..`.
type Named = (String, String);

/// Every test in a text: `` `FILE.rs`: `NAME`, `NAME` ``.
fn named(text: &str) -> Vec<Named> {
    let mut found = Vec::new();
    for (at, opening) in text.match_indices(".rs`: `") {
        let file = text[..at].rsplit('`').next().unwrap();
        let mut rest = &text[at + opening.len()..];
        while let Some((name, behind)) = rest.split_once('`').filter(|(name, _)| is_name(name)) {
            found.push((format!("{file}.rs"), name.to_owned()));
            rest = behind.strip_prefix(", `").unwrap_or_default();
        }
    }
    found
}

/// Files may follow the names.
fn is_name(text: &str) -> bool {
    let is_in_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c);
    text.chars().all(is_in_names) && !text.ends_with(".rs")
}

fn exists((file, name): &Named, sources: &[(PathBuf, String)]) -> bool {
    let begin = if name.starts_with("..") { "" } else { "fn " };
    let end = if name.ends_with("..") { "" } else { "(" };
    let wanted = format!("{begin}{}{end}", name.trim_matches('.'));
    let mut files = sources.iter().filter(|(path, _)| path.ends_with(file));
    files.any(|(_, text)| {
        let mut functions =
            text.split("fn ").skip(1).filter_map(|rest| rest.split_once(['(', '<']));
        functions.any(|(function, _)| format!("fn {function}(").contains(&wanted))
    })
}

fn readme_of_tests() -> String {
    std::fs::read_to_string(pages::root().join("tests/README.md")).unwrap()
}

#[test]
fn every_named_test_exists() {
    let sources = sources();
    let mut texts = vec![("tests/README.md".to_owned(), readme_of_tests())];
    texts.extend(pages::all().into_iter().map(|page| (page.file.display().to_string(), page.text)));
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in texts {
        for (file, name) in named(&text) {
            count += 1;
            if !exists(&(file.clone(), name.clone()), &sources) {
                wrong.push(format!("{page}: {file}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 60, "{count}");
}

#[test]
fn a_name_is_looked_up_in_its_file() {
    let source = (PathBuf::from("stores/nodes.rs"), "async fn four_nodes_admit() {}".to_owned());
    let is_there = |file: &str, name: &str| {
        exists(&(file.to_owned(), name.to_owned()), std::slice::from_ref(&source))
    };
    assert!(is_there("nodes.rs", "four_nodes_admit") && is_there("stores/nodes.rs", "four_.."));
    assert!(is_there("nodes.rs", ".._admit") && !is_there("links.rs", "four_nodes_admit"));
    assert!(!is_there("nodes.rs", "four_nodes") && !is_there("nodes.rs", "nodes_admit"));
    let text = "| x | `a.rs`: `one_two`, `three..`; see `b` | `c/d.rs`: `four` |";
    let expected = [("a.rs", "one_two"), ("a.rs", "three.."), ("c/d.rs", "four")];
    assert_eq!(named(text), expected.map(|(file, name)| (file.to_owned(), name.to_owned())));
}

/// The rows of the table under a heading, without its head.
fn rows(text: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    lines.map(cells).collect()
}

/// The letters in brackets: `(a)`, `(c, f)`.
fn letters(text: &str) -> BTreeSet<String> {
    let brackets = text.split('(').skip(1).map(|rest| rest.split(')').next().unwrap());
    let letters = brackets.flat_map(|inside| inside.split(", "));
    letters.filter(|word| word.len() == 1).map(str::to_owned).collect()
}

#[test]
fn each_cell_of_the_table_of_events_has_its_test() {
    let readme = std::fs::read_to_string(pages::root().join("README.md")).unwrap();
    let (heading, shown) =
        ("What an event costs", "What an event costs, and the test that shows it");
    let mut used = BTreeSet::new();
    for row in rows(&readme, heading) {
        assert_eq!(row.len(), 6, "{row:?}");
        for (column, cell) in row.iter().enumerate().skip(1) {
            // What has nothing to lose, and what is as in another cell.
            let needs_none = ["as ", "nothing: it writes none", "has none"];
            let has_test = !letters(cell).is_empty();
            let is_exempt = needs_none.iter().any(|begin| cell.starts_with(begin));
            assert!(has_test || is_exempt, "{}, column {column}: {cell}", row[0]);
        }
    }
    let section = readme.split_once(&format!("## {heading}\n")).unwrap().1;
    used.extend(letters(section.split("\n## ").next().unwrap()));
    let mut tests = BTreeMap::new();
    for row in rows(&readme_of_tests(), shown) {
        let [letter, by] = row.as_slice() else { panic!("{row:?}") };
        assert!(!named(by).is_empty(), "{letter} names no test");
        assert!(tests.insert(letter.clone(), by.clone()).is_none(), "{letter} twice");
    }
    assert!(used.iter().eq(tests.keys()), "used: {used:?}, named: {:?}", tests.keys());
}
