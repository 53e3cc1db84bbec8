//! The public items, as docs/public-api.txt lists them. A difference is a change of the API: look at it, then write the
//! file anew with `TOLLGATE_API_WRITE=1 cargo test --test public_api`.
//!
//! The list is read from the sources, which rustfmt has formatted: the names that the crate's root shows, then each
//! type's public fields, variants, methods and implemented traits. Derived traits are in the line of their type.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join("src").join(file)).unwrap()
}

/// The texts of all source files.
fn sources(folder: &Path, texts: &mut Vec<String>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            sources(&entry, texts);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            texts.push(fs::read_to_string(entry).unwrap());
        }
    }
}

/// Joins lines until one ends a declaration, and removes the bodies.
fn joined<'t>(lines: impl Iterator<Item = &'t str>) -> String {
    let mut text = String::new();
    for line in lines {
        let line = line.trim();
        if line.starts_with("//") || line.starts_with("#[") {
            continue;
        }
        if !text.is_empty() && !text.ends_with(['(', '<']) && !line.starts_with([')', '>', '.']) {
            text.push(' ');
        }
        text.push_str(line);
        if line.ends_with(['{', ';']) {
            break;
        }
    }
    let text = text.replace(",)", ")").replace(", )", ")");
    text.trim_end_matches([' ', '{', ';', ',']).to_owned()
}

/// The names that `pub use` lines of a file show: the name outside, and the name inside.
fn shown(text: &str) -> Vec<(String, String)> {
    let flat = joined_statements(text);
    let uses = flat.iter().filter_map(|statement| statement.strip_prefix("pub use "));
    let mut names = Vec::new();
    for path in uses {
        let list = match path.split_once('{') {
            Some((_, list)) => list.trim_end_matches('}').to_owned(),
            None => path.rsplit("::").next().unwrap().to_owned(),
        };
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (inside, outside) = item.split_once(" as ").unwrap_or((item, item));
            names.push((outside.to_owned(), inside.to_owned()));
        }
    }
    names
}

/// The `pub use` statements at the margin, each in one line.
fn joined_statements(text: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with("pub use ") {
            continue;
        }
        let mut statement = line.to_owned();
        while !statement.ends_with(';') {
            statement.push_str(lines.next().unwrap().trim());
        }
        statements.push(statement.trim_end_matches(';').to_owned());
    }
    statements
}

/// Everything public of one type (or one function), as it is declared in some source.
fn describe(path: &str, name: &str, texts: &[String]) -> Vec<String> {
    let mut list = Vec::new();
    for text in texts {
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let declares =
                ["pub struct ", "pub enum ", "pub trait ", "pub fn "].into_iter().find(|word| {
                    line.strip_prefix(word).is_some_and(|rest| {
                        rest.strip_prefix(name).is_some_and(|rest| {
                            !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                        })
                    })
                });
            if let Some(word) = declares {
                let attributes = lines[..index].iter().rev();
                let attributes =
                    attributes.take_while(|line| line.starts_with("#[") || line.starts_with("///"));
                let mut attributes: Vec<&str> =
                    attributes.filter(|line| line.starts_with("#[")).copied().collect();
                attributes.reverse();
                let kind = word.trim_end();
                let head = match word {
                    "pub fn " => joined(lines[index..].iter().copied())
                        .replace(&format!("fn {name}"), &format!("fn {path}")),
                    _ => format!("{kind} {path}"),
                };
                list.push([attributes.as_slice(), &[&head]].concat().join(" "));
                if line.ends_with('{') && word != "pub fn " {
                    list.extend(members(&lines[index + 1..], word));
                }
            } else if line.starts_with("impl") && line.ends_with('{') {
                list.extend(implementation(line, &lines[index + 1..], name));
            }
        }
    }
    list
}

/// Public fields, variants or the trait's items.
fn members(lines: &[&str], word: &str) -> Vec<String> {
    let body: Vec<&str> = lines.iter().copied().take_while(|line| *line != "}").collect();
    let mut list = Vec::new();
    for (index, line) in body.iter().enumerate() {
        let inner =
            line.strip_prefix("    ").filter(|inner| !inner.starts_with([' ', '/', '#', '}']));
        let Some(inner) = inner else { continue };
        match word {
            "pub struct " if inner.starts_with("pub ") => {
                list.push(format!("    {}", joined(body[index..].iter().copied().take(1))))
            }
            "pub enum " => {
                let end =
                    body[index..].iter().position(|line| line.starts_with("    }")).unwrap_or(0);
                let until = if inner.ends_with('{') { index + end + 1 } else { index + 1 };
                let fields = body[index..until].iter().map(|line| line.trim());
                let fields: Vec<&str> =
                    fields.filter(|line| !line.starts_with(['/', '#'])).collect();
                list.push(format!("    {}", fields.join(" ").trim_end_matches(',')));
            }
            "pub trait " if inner.starts_with("fn ") => {
                list.push(format!("    {}", joined(body[index..].iter().copied())))
            }
            _ => {}
        }
    }
    list
}

/// The public items of `impl NAME`, or the trait of `impl TRAIT for NAME`.
fn implementation(head: &str, lines: &[&str], name: &str) -> Vec<String> {
    let head = head.trim_end_matches(" {");
    let is_name = |text: &str| {
        let text = text.split_once(" where").map_or(text, |(text, _)| text).trim();
        text == name || text.strip_prefix(name).is_some_and(|rest| rest.starts_with('<'))
    };
    match head.split_once(" for ") {
        Some((_, of)) if is_name(of) => return vec![format!("    {head}")],
        // A conversion from the type into another one.
        Some((from, _)) if from.ends_with(&format!("From<{name}>")) => {
            return vec![format!("    {head}")];
        }
        Some(_) => return Vec::new(),
        None => {}
    }
    if !is_name(head.trim_start_matches("impl ")) {
        return Vec::new();
    }
    let body: Vec<&str> = lines.iter().copied().take_while(|line| *line != "}").collect();
    let items = body.iter().enumerate().filter(|(_, line)| {
        ["    pub fn ", "    pub const ", "    pub async fn "]
            .iter()
            .any(|word| line.starts_with(word))
    });
    items.map(|(index, _)| format!("    {}", joined(body[index..].iter().copied()))).collect()
}

fn listing() -> String {
    let mut texts = Vec::new();
    sources(&root().join("src"), &mut texts);
    let mut items: BTreeMap<String, String> = BTreeMap::new();
    for (outside, inside) in shown(&read("lib.rs")) {
        if outside != "plugin" {
            items.insert(outside, inside);
        }
    }
    for (outside, inside) in shown(&read("clock/mod.rs")) {
        items.insert(format!("clock::{outside}"), inside);
    }
    for line in read("limiter/plugin.rs").lines() {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            let name = rest.split([' ', ';', '(', '{']).next().unwrap();
            items.insert(format!("plugin::{name}"), name.to_owned());
        }
    }
    let mut out = String::new();
    for (outside, inside) in &items {
        // `cli::main` is one of many functions of this name.
        let (texts, inside) = match outside.as_str() {
            "command_line" => (&[read("cli/mod.rs")][..].to_vec(), inside),
            _ => (&texts, inside),
        };
        let lines = describe(&format!("tollgate::{outside}"), inside, texts);
        let declared = lines.iter().filter(|line| !line.starts_with(' ')).count();
        assert_eq!(declared, 1, "{outside} is declared {declared} times: {lines:#?}");
        let (mut heads, members): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| !line.starts_with(' '));
        heads.extend(members);
        out.push_str(&heads.join("\n"));
        out.push_str("\n\n");
    }
    format!("{}\n", out.trim_end())
}

#[test]
fn the_public_items_are_those_of_the_list() {
    let (file, found) = (root().join("docs/public-api.txt"), listing());
    if std::env::var_os("TOLLGATE_API_WRITE").is_some() {
        fs::write(&file, &found).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let new: Vec<&str> =
        found.lines().filter(|line| !written.lines().any(|old| old == *line)).collect();
    let gone: Vec<&str> =
        written.lines().filter(|line| !found.lines().any(|new| new == *line)).collect();
    assert!(
        written == found,
        "the public API differs from docs/public-api.txt\nnew: {new:#?}\ngone: {gone:#?}"
    );
}

/// The documentation of a type: the lines of `///` above it, over its attributes.
fn documentation<'t>(texts: &'t [String], name: &str) -> Option<Vec<&'t str>> {
    let declares = |line: &str| {
        ["pub struct ", "pub enum ", "pub trait "].iter().any(|keyword| {
            let rest = line.strip_prefix(keyword).and_then(|rest| rest.strip_prefix(name));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    texts.iter().find_map(|text| {
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| declares(line))?;
        let above = lines[..at].iter().rev().copied();
        Some(above.take_while(|line| line.starts_with("///") || line.starts_with("#[")).collect())
    })
}

#[test]
fn every_public_type_has_an_example() {
    let list = fs::read_to_string(root().join("docs/public-api.txt")).unwrap();
    let mut texts = Vec::new();
    sources(&root().join("src"), &mut texts);
    let types = list.lines().filter(|line| !line.starts_with(' ') && !line.contains("pub fn "));
    let names = types.filter_map(|line| line.rsplit_once("::").map(|(_, name)| name));
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 15 && names.contains(&"Judged"), "{names:?}");
    let has_example = |name: &&&str| {
        let lines = documentation(&texts, name).unwrap_or_default();
        lines.iter().any(|line| line.starts_with("/// ```"))
    };
    let without: Vec<&&str> = names.iter().filter(|name| !has_example(name)).collect();
    assert!(without.is_empty(), "{without:?}");
}
