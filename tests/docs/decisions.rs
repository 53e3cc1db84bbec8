//! The pages for those who change the code: their links lead somewhere, and every source path that they name exists.

use std::path::Path;

use super::links;
use super::pages::{self, Page};

/// How the paths of the repository's folders begin.
const FOLDERS: [&str; 8] =
    ["benches/", "conf/", "docs/", "examples/", "fuzz/", "scripts/", "src/", "tests/"];

/// How the names of source files end.
const EXTENSIONS: [&str; 2] = ["rs", "lua"];

#[test]
fn every_source_path_exists() {
    let mut wrong = Vec::new();
    for page in pages::for_contributors() {
        for (line, code) in page.inline_code() {
            if is_path(&code) && !pages::root().join(&code).exists() {
                wrong.push(format!(
                    "{}:{line}: {code}: no such file; paths begin at the root of the repository",
                    page.file.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a text in backticks is the path of a file or folder of this repository: it begins with one of its folders, or
/// it ends as the name of a source file or of a folder does.
fn is_path(code: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let names_source = Path::new(code)
        .extension()
        .is_some_and(|extension| EXTENSIONS.iter().any(|source| extension == *source));
    let is_below_root = FOLDERS.iter().any(|folder| code.starts_with(folder));
    code.bytes().all(is_plain)
        && !code.starts_with('/')
        && (is_below_root || names_source || code.ends_with('/'))
}

#[test]
fn paths_are_told_from_other_code() {
    for path in [
        "src/edge/pace.rs",
        "edge/pace.rs",
        "charge.lua",
        "src/store/redis/",
        "redis/",
        "fuzz/targets",
    ] {
        assert!(is_path(path), "{path}");
    }
    for other in
        ["Policy::path_sources", "/api/v4/projects/group%2Fproject", "/", "10/1s", "src/*.rs", "h2"]
    {
        assert!(!is_path(other), "{other}");
    }
}

#[test]
fn every_link_for_contributors_leads_somewhere() {
    let pages = pages::for_contributors();
    let wrong: Vec<String> = pages.iter().flat_map(|page| links::broken(page, &pages)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_decision_is_in_the_index_once_under_its_title() {
    let pages = pages::for_contributors();
    let decisions: Vec<&Page> =
        pages.iter().filter(|page| page.file.starts_with("docs/decisions")).collect();
    let index = decisions.iter().find(|page| page.file.ends_with("README.md")).unwrap();
    for page in &decisions {
        let name = page.file.file_name().unwrap().to_str().unwrap();
        if name == "README.md" || name == "dependencies.md" {
            continue;
        }
        let title = page.text.lines().next().unwrap().trim_start_matches("# ");
        let entry = format!("- [{title}]({name})");
        let listed = index.text.lines().filter(|line| *line == entry).count();
        assert_eq!(listed, 1, "the index has no single line {entry}");
    }
}
