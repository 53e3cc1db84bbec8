//! Reads the imports of every source file and fails when a layer reaches upward, or when a room
//! knows what it must not know.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from the bottom to the top. Those that share a number never import each other.
const LAYERS: [(&str, u8); 18] = [
    ("clock", 0),
    ("histogram", 1),
    ("limit", 1),
    ("log_sampler", 1),
    ("signals", 1),
    ("tokens", 1),
    ("policy", 2),
    ("config", 3),
    ("estimator", 3),
    ("store", 3),
    ("engine", 4),
    ("http", 5),
    ("edge", 6),
    ("limiter", 6),
    ("proxy", 7),
    ("ops", 8),
    ("server", 9),
    ("cli", 10),
];

/// Crates and the rooms, or single files of rooms, that may name them.
const KEPT: [(&str, &[&str]); 11] = [
    (
        "pingora",
        &[
            "http/framework.rs",
            "edge",
            "limiter/judged.rs",
            "limiter/plugin.rs",
            "proxy",
            "ops",
            "server",
        ],
    ),
    ("pingora_proxy", &["edge", "limiter/plugin.rs", "proxy", "server"]),
    ("pingora_limits", &["estimator"]),
    ("serde_yaml", &["config"]),
    ("saphyr_parser", &["config"]),
    ("prometheus", &["ops"]),
    ("redis", &["store"]),
    ("jsonwebtoken", &["tokens"]),
    ("ring", &["tokens", "edge", "server"]),
    ("signal_hook", &["signals"]),
    ("tokio", &["signals", "store", "engine", "limiter", "edge", "proxy", "ops", "server"]),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every `crate::ROOM` and `KRATE::` that stands in code (not in a comment).
fn mentions(text: &str) -> Vec<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let mut found = Vec::new();
    for line in code {
        for (at, _) in line.match_indices("::") {
            let before = &line[..at];
            let start = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_'));
            let start = start.map_or(0, |at| at + 1);
            let word = &before[start..];
            // `crate::store::redis::` is a room of ours, and no crate.
            if before[..start].ends_with("::") {
                continue;
            }
            if word == "crate" {
                let rest = &line[at + 2..];
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                found.push(format!("crate::{}", &rest[..end.unwrap_or(rest.len())]));
            } else {
                found.push(word.to_owned());
            }
        }
    }
    found
}

fn level(room: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == room).map(|(_, level)| *level)
}

/// What a file (by its path in `src`) imports that it must not.
fn violations(file: &str, text: &str) -> Vec<String> {
    let room = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let mut found = Vec::new();
    for mention in mentions(text) {
        if let Some(other) = mention.strip_prefix("crate::") {
            if let (Some(own), Some(level)) = (level(room), level(other))
                && (level > own || (level == own && other != room))
            {
                found.push(format!("{room} imports {other}"));
            }
        } else if let Some((name, rooms)) = KEPT.iter().find(|(name, _)| *name == mention)
            && !rooms.iter().any(|kept| *kept == room || *kept == file)
        {
            found.push(format!("{room} knows {name}"));
        }
    }
    found
}

#[test]
fn imports_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 20, "the sources were not found");
    let mut all = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&root).unwrap();
        let room = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if matches!(room, "main" | "lib") {
            continue;
        }
        assert!(level(room).is_some(), "{room} is not a layer: name it here");
        let text = fs::read_to_string(&file).unwrap();
        let name = inside.to_str().unwrap();
        all.extend(violations(name, &text).into_iter().map(|v| format!("{}: {v}", file.display())));
    }
    assert!(all.is_empty(), "{all:#?}");
}

/// A panic beside a lock of std poisons it, and every request after that.
#[test]
fn no_lock_can_be_poisoned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let poisons = |text: &str| {
        let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        lines.any(|line| {
            line.contains("std::sync")
                && ["Mutex", "RwLock", "Condvar", "::*"].iter().any(|lock| line.contains(lock))
        })
    };
    assert!(poisons("use std::sync::{Arc, Mutex};") && poisons("x: std::sync::RwLock<u8>"));
    let found: Vec<_> =
        files.iter().filter(|file| poisons(&fs::read_to_string(file).unwrap())).collect();
    assert!(found.is_empty(), "parking_lot has the same without poison: {found:?}");
}

#[test]
fn an_upward_import_is_seen() {
    assert_eq!(violations("limit", "use crate::policy::Facts;"), ["limit imports policy"]);
    assert_eq!(violations("store", "fn f(x: crate::config::Config) {}"), ["store imports config"]);
    assert_eq!(violations("engine", "use pingora::Result;"), ["engine knows pingora"]);
    assert_eq!(violations("edge/tls.rs", "use crate::proxy::Live;"), ["edge imports proxy"]);
    assert_eq!(violations("http/render.rs", "use pingora::Result;"), ["http knows pingora"]);
    assert!(violations("http/framework.rs", "use pingora::Result;").is_empty());
    assert!(violations("proxy", "use crate::engine::Engine; // crate::cli::main").is_empty());
}
