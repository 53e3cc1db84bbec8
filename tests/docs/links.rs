//! Links within the repository lead somewhere, and every page is in the book's table of contents.

use std::path::{Component, Path, PathBuf};

use super::pages::{self, Page};

/// Where the repository's files are on the web: pages of the book link to files outside of it so.
const REPOSITORY: &str = "https://github.com/tollgate-proxy/tollgate/";

#[test]
fn every_link_leads_to_a_file_or_a_heading() {
    let pages = pages::all();
    let wrong: Vec<String> = pages.iter().flat_map(|page| broken(page, &pages)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The links of a page that lead nowhere, each with the reason.
pub(crate) fn broken(page: &Page, pages: &[Page]) -> Vec<String> {
    let links = page.links().into_iter();
    links
        .filter_map(|(line, target)| {
            let why = problem(page, &target, pages)?;
            Some(format!("{}:{line}: {target}: {why}", page.file.display()))
        })
        .collect()
}

fn problem(page: &Page, target: &str, pages: &[Page]) -> Option<&'static str> {
    if let Some(path) = target.strip_prefix(REPOSITORY) {
        let path = path.strip_prefix("blob/main/").or_else(|| path.strip_prefix("tree/main/"));
        return match path {
            Some(path) if pages::root().join(path).exists() => None,
            Some(_) => Some("no such file in this repository"),
            None => Some("write blob/main/FILE or tree/main/FOLDER"),
        };
    }
    if target.starts_with("https://") {
        // Another site: nothing here can say whether it is there.
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.file.parent().unwrap();
    let file = if path.is_empty() { page.file.clone() } else { normal(&folder.join(path)) };
    if !pages::root().join(&file).exists() {
        return Some("no such file");
    }
    let in_book = page.file.starts_with("docs/src");
    if in_book && !file.starts_with("docs/src") {
        return Some("the book does not contain this file; link to it on the web");
    }
    if anchor.is_empty() {
        return None;
    }
    let Some(other) = pages.iter().find(|other| other.file == file) else {
        return Some("only pages have headings");
    };
    let found = other.anchors().iter().any(|other| other == anchor);
    (!found).then_some("no such heading")
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let pages = pages::all();
    let summary = pages.iter().find(|page| page.file.ends_with("SUMMARY.md")).unwrap();
    let mut listed: Vec<PathBuf> =
        summary.links().iter().map(|(_, target)| Path::new("docs/src").join(target)).collect();
    listed.sort();
    let mut there: Vec<PathBuf> = pages
        .iter()
        .map(|page| page.file.clone())
        .filter(|file| file.starts_with("docs/src") && !file.ends_with("SUMMARY.md"))
        .collect();
    there.sort();
    assert_eq!(listed, there);
}

#[test]
fn readme_is_short() {
    let pages = pages::all();
    let readme = pages.iter().find(|page| page.file.ends_with("README.md")).unwrap();
    let lines = readme.text.lines().count();
    assert!(lines <= 150, "{lines} lines; move details to docs/");
}
