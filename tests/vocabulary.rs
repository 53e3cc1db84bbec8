//! The vocabulary of the sources: words that say nothing to a reader who has not met them here stay out of names, and a type's
//! name stands for one thing.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Words that no name contains, alone or as a part (`most_body`, `OpenPlaces`); their plurals neither.
const NOT_IN_NAMES: &[&str] = &[
    "aside",
    "beside",
    "book",
    "broom",
    "clerk",
    "data",
    "disbelief",
    "due",
    "fate",
    "handler",
    "helper",
    "home",
    "info",
    "manager",
    "meant",
    "most",
    "one",
    "owed",
    "part",
    "place",
    "porter",
    "process",
    "said",
    "seat",
    "ticket",
    "trouble",
    "turn",
    "util",
    "wagon",
    "whole",
];

/// Words that stand nowhere in the sources, in comments and texts neither.
const NOWHERE: &[&str] = &[
    "aside",
    "beside",
    "books",
    "broom",
    "clerk",
    "disbelief",
    "due",
    "dues",
    "meant",
    "owed",
    "place",
    "places",
    "porter",
    "said",
    "seat",
    "seats",
    "trouble",
    "wagon",
];

/// Names that others have given, so that they cannot be avoided. Only the whole name is exempt: `info` is a macro, and
/// `ConnectionInfo` would be ours.
const GIVEN_BY_OTHERS: &[&str] = &[
    // Rust, its library and its crates.
    "PhantomData",
    "futures_util",
    "http_body_util",
    "hyper_util",
    "hash_one",
    "info",
    "Info",
    "into_parts",
    "key_utils",
    "notify_one",
    "parts",
    "Parts",
    "sync_data",
    "process",
    "seal_in_place_separate_tag",
    "open_in_place",
    "user_data",
    "InvalidData",
    "setpriority_process",
    "util",
    "utils",
    "KeyUtils",
    // The framework.
    "ProcessCollector",
    "process_collector",
    "process_new",
    "process_new_http",
    "IntoConnectionInfo",
    "RedisConnectionInfo",
    "into_connection_info",
    "PushInfo",
    "set_ignore_info_resp",
    "TCP_INFO",
    "tcp_info",
    "tcpi_last_data_sent",
    // Frames of HTTP/2 (RFC 9113, section 6.1).
    "Data",
    "data_frame",
    "DATA",
];

/// Names of ours in which an avoided word is the standard term.
const STANDARD_NAMES: &[&str] = &[
    // What one source contributes to a key (docs/src/concepts/keys.md).
    "KeyPart",
    "part",
    "part_with",
    "write_part",
    // A process of the operating system.
    "InProcessStore",
    "a_file_is_cut_unless_another_process_wrote_to_it",
];

/// Avoided words that are standard terms in some folders, and there only: session tickets of TLS (RFC 8446, section
/// 4.6.1), which the server hands to its successor.
const STANDARD_IN: &[(&str, &[&str])] =
    &[("ticket", &["edge", "handover", "server"]), ("tickets", &["edge", "handover", "server"])];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "lua")
        {
            found.push(path);
        }
    }
}

fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 100, "the sources were not found");
    files.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(&root).unwrap().to_owned(), text)
    };
    files.into_iter().map(read).collect()
}

/// The code of a line: without its comment, and without what is between quotes. Lua's comments begin with `--`.
fn code(line: &str) -> String {
    let line = line.trim_start();
    if line.starts_with("--") {
        return String::new();
    }
    let line = line.split(" -- ").next().unwrap_or_default();
    let mut code = String::new();
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'/' if !quoted && line[at..].starts_with("//") => break,
            b'"' if !escaped => quoted = !quoted,
            _ if !quoted => code.push(char::from(byte)),
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
    }
    code
}

fn names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|name| !name.is_empty())
}

/// The words of a name, in lower case: `max_bodyParts` has `max`, `body`, `parts`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || c.is_ascii_digit() || (c.is_ascii_uppercase() && before.is_ascii_lowercase())
        {
            words.push(String::new());
        }
        if c.is_ascii_alphabetic() {
            words.last_mut().unwrap().push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn is_avoided(word: &str) -> bool {
    NOT_IN_NAMES
        .iter()
        .any(|avoided| word.strip_prefix(avoided).is_some_and(|end| matches!(end, "" | "s")))
}

fn is_exempt(name: &str) -> bool {
    GIVEN_BY_OTHERS.contains(&name) || STANDARD_NAMES.contains(&name)
}

/// Whether a word is a standard term in the file with this path in `src`.
fn is_standard(word: &str, file: &Path) -> bool {
    STANDARD_IN.iter().any(|(standard, folders)| {
        *standard == word && folders.iter().any(|folder| file.starts_with(folder))
    })
}

#[test]
fn no_name_contains_a_word_to_avoid() {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in texts() {
        for line in text.lines().map(code) {
            for name in names(&line).filter(|name| !is_exempt(name)) {
                if words(name).iter().any(|word| is_avoided(word) && !is_standard(word, &path)) {
                    found.entry(name.to_owned()).or_default().insert(path.display().to_string());
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_riddle_stands_in_a_comment() {
    let mut found = Vec::new();
    for (path, text) in texts() {
        for (number, line) in text.lines().enumerate() {
            let lower = line.to_ascii_lowercase();
            if let Some(word) = names(&lower).find(|word| NOWHERE.contains(word)) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{} lines: {found:#?}", found.len());
}

/// The name of the type that a line defines. An associated type is not one: its trait gives it the name.
fn defined_type(line: &str) -> Option<&str> {
    let text = line.trim_start();
    if text.starts_with("type ") && text.len() < line.len() {
        return None;
    }
    let visible = text.strip_prefix("pub(").and_then(|rest| rest.split_once(") "));
    let text = visible.map_or(text, |(_, rest)| rest);
    let text = text.strip_prefix("pub ").unwrap_or(text);
    let kinds = ["struct ", "enum ", "trait ", "type "];
    names(kinds.iter().find_map(|kind| text.strip_prefix(kind))?).next()
}

#[test]
fn the_name_of_a_type_stands_for_one_thing() {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in texts() {
        for name in text.lines().filter_map(defined_type) {
            defined.entry(name.to_owned()).or_default().push(path.display().to_string());
        }
    }
    assert!(defined.len() > 200, "the types were not found");
    defined.retain(|_, files| files.len() > 1);
    assert!(defined.is_empty(), "{defined:#?}");
}

#[test]
fn words_are_found_in_names() {
    assert_eq!(words("max_bodyParts2_ok"), ["max", "body", "parts", "ok"]);
    assert!(
        is_avoided("parts")
            && is_avoided("place")
            && !is_avoided("partial")
            && !is_avoided("replace")
    );
    assert!(is_exempt("parts") && !is_exempt("open_parts") && !is_exempt("ConnectionInfo"));
    assert!(is_standard("ticket", Path::new("edge/tls/ticket_keys.rs")));
    assert!(!is_standard("ticket", Path::new("store/table.rs")));
    assert_eq!(code(r#"let x = "place // \" y"; // seat"#), "let x = ; ");
}
