//! Reads the imports of every source file and fails when a layer reaches upward, or when a room
//! knows what it must not know.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from the bottom to the top. Those that share a number never import each other.
const LAYERS: [(&str, u8); 25] = [
    ("access_lines", 1),
    ("clock", 0),
    ("histogram", 1),
    ("history", 1),
    ("limit", 1),
    ("log_sampler", 1),
    ("signals", 1),
    ("tokens", 1),
    ("jwks", 2),
    ("policy", 2),
    ("config", 3),
    ("estimator", 3),
    ("state", 3),
    ("store", 3),
    ("engine", 4),
    ("http", 5),
    ("edge", 6),
    ("limiter", 6),
    ("refusals", 6),
    ("replay", 6),
    ("proxy", 7),
    ("handover", 8),
    ("ops", 8),
    ("server", 9),
    ("cli", 10),
];

/// Crates and the rooms, or single files of rooms, that may name them.
const KEPT: [(&str, &[&str]); 15] = [
    ("crc32fast", &["state"]),
    (
        "postcard",
        &[
            "engine/handed_state.rs",
            "engine/saved_records.rs",
            "handover",
            "history/saved_minutes.rs",
            "state",
        ],
    ),
    (
        "pingora",
        &[
            "http/framework.rs",
            "edge",
            "limiter/delay.rs",
            "limiter/judged.rs",
            "limiter/plugin.rs",
            "proxy",
            "ops",
            "server",
        ],
    ),
    (
        "pingora_proxy",
        &["edge", "limiter/delay.rs", "limiter/discard.rs", "limiter/plugin.rs", "proxy", "server"],
    ),
    ("pingora_limits", &["estimator"]),
    ("glob", &["config"]),
    ("serde_yaml", &["config"]),
    ("saphyr_parser", &["config"]),
    ("prometheus", &["ops"]),
    ("redis", &["store"]),
    ("jsonwebtoken", &["tokens"]),
    ("ring", &["tokens", "config/fingerprint.rs", "edge", "ops/admin/page.rs", "server"]),
    ("signal_hook", &["signals"]),
    (
        "tokio",
        &[
            "signals", "jwks", "store", "engine", "limiter", "edge", "proxy", "handover", "ops",
            "server", "cli",
        ],
    ),
    ("hyper", &["jwks", "cli"]),
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

/// Every `KRATE::` that stands in code (not in a comment).
fn crates(text: &str) -> Vec<&str> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let mut found = Vec::new();
    for line in code {
        for (at, _) in line.match_indices("::") {
            let before = &line[..at];
            let start = before.rfind(|c: char| !(c.is_alphanumeric() || c == '_'));
            let start = start.map_or(0, |at| at + 1);
            // `crate::store::redis::` is a room of ours, and no crate.
            if !before[..start].ends_with("::") {
                found.push(&before[start..]);
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
    let own = level(room);
    let mut found = Vec::new();
    for path in referred(&module(file), text) {
        if let (Some(other), Some(own)) = (path.first().filter(|other| *other != room), own)
            && level(other).is_some_and(|level| level >= own)
        {
            found.push(format!("{room} imports {other}"));
        }
    }
    for krate in crates(text) {
        if let Some((name, rooms)) = KEPT.iter().find(|(name, _)| *name == krate)
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

/// Files or folders of one folder that refer to each other in a circle: the code that owns a task, and that task. No
/// other circle may appear, and one that is gone leaves this list.
const CIRCLES: [(&str, &[&str]); 13] = [
    ("config/sections/limits", &["count", "limit", "overrides", "terms"]),
    (
        "config/warnings",
        &[
            "bodies",
            "classes",
            "clients",
            "costs",
            "fleet",
            "limit_uses",
            "limits",
            "list",
            "listeners",
            "paths_below",
            "patterns",
            "rewrites",
            "routes",
            "tokens",
            "unused_terms",
        ],
    ),
    ("edge", &["http2", "memory", "state"]),
    ("edge/connection", &["admit", "proxy_header", "server"]),
    ("edge/state", &["connection_state", "expected_response"]),
    ("edge/stream", &["client_stream", "read_ahead"]),
    ("http/validation", &["request", "target"]),
    ("limiter", &["builder", "judge", "judged"]),
    ("proxy", &["access_record", "context", "request_id", "tunnel"]),
    ("store/redis", &["bans", "redis_transport"]),
    ("store/redis", &["batcher", "worker"]),
    ("store/redis", &["connection", "server", "server_task"]),
    ("store/redis", &["reporter", "shared_store"]),
];

/// The module path of a file of `src`.
fn module(file: &str) -> Vec<String> {
    let mut path: Vec<String> =
        file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    path.pop_if(|last| last == "mod");
    path
}

/// The module paths that a file names by `crate::` and `super::`, lists in braces included.
fn referred(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for word in ["crate::", "super::"] {
        for (at, _) in code.match_indices(word) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let mut rest = &code[at..];
            let mut base = module.to_vec();
            if let Some(after) = rest.strip_prefix("crate::") {
                (base, rest) = (Vec::new(), after);
            }
            while let Some(after) = rest.strip_prefix("super::") {
                base.pop();
                rest = after;
            }
            let list = rest.strip_prefix('{').and_then(|list| list.split('}').next());
            let paths = list.map_or(vec![rest], |list| list.split(',').map(str::trim).collect());
            for path in paths {
                let end = path.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
                let names = path[..end.unwrap_or(path.len())].split("::").filter(|n| !n.is_empty());
                found.push(base.iter().cloned().chain(names.map(str::to_owned)).collect());
            }
        }
    }
    found
}

/// The sets of names that reach each other, each sorted.
fn circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(name) = open.pop() {
            for next in arrows.get(name).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|name| (name, reach(name))).collect();
    let circle = |name: &&String| {
        let members = reached
            .iter()
            .filter(|(other, back)| reached[name].contains(**other) && back.contains(*name));
        let members: Vec<String> = members.map(|(other, _)| (*other).clone()).collect();
        (members.len() > 1).then_some(members)
    };
    reached.keys().filter_map(circle).collect()
}

/// What refers to what inside each folder, from the files of `src` and their texts.
fn arrows_in_folders(
    files: &[(String, String)],
) -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let modules: BTreeSet<Vec<String>> = files.iter().map(|(file, _)| module(file)).collect();
    let exists = |path: &[String]| modules.iter().any(|module| module.starts_with(path));
    let mut folders: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (file, text) in files.iter().filter(|(file, _)| !file.ends_with("mod.rs")) {
        let from = module(file);
        let untested = text.split("#[cfg(test)]").next().unwrap_or_default();
        for to in referred(&from, untested) {
            let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            if common < from.len() && common < to.len() && exists(&to[..=common]) {
                let folder = folders.entry(from[..common].join("/")).or_default();
                folder.entry(from[common].clone()).or_default().insert(to[common].clone());
            }
        }
    }
    folders
}

#[test]
fn files_of_a_folder_do_not_refer_to_each_other_in_circles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    let files: Vec<_> = paths.iter().map(read).collect();
    let found: BTreeSet<(String, Vec<String>)> = arrows_in_folders(&files)
        .iter()
        .flat_map(|(folder, arrows)| {
            circles(arrows).into_iter().map(|circle| (folder.clone(), circle))
        })
        .collect();
    let known = CIRCLES.map(|(folder, members)| {
        (folder.to_owned(), members.iter().map(|name| (*name).to_owned()).collect())
    });
    assert_eq!(found, BTreeSet::from(known));
}

#[test]
fn a_circle_is_seen() {
    let files = [
        ("a/x.rs", "use super::{y::Y, z};"),
        ("a/y.rs", "use crate::a::x::X; // super::z"),
        ("a/z.rs", "mod inner {} #[cfg(test)] use super::x::X;"),
        ("b.rs", "use crate::a::x;"),
    ];
    let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
    let folders = arrows_in_folders(&files);
    assert_eq!(circles(&folders["a"]), BTreeSet::from([vec!["x".to_owned(), "y".to_owned()]]));
    assert!(circles(&folders[""]).is_empty());
}

#[test]
fn an_upward_import_is_seen() {
    assert_eq!(violations("limit", "use crate::policy::Facts;"), ["limit imports policy"]);
    assert_eq!(violations("store", "fn f(x: crate::config::Config) {}"), ["store imports config"]);
    assert_eq!(
        violations("limit/tick.rs", "use crate::{clock::Nanos, policy::Facts};"),
        ["limit imports policy"]
    );
    assert_eq!(
        violations("limit/tick.rs", "use super::super::policy::Facts;"),
        ["limit imports policy"]
    );
    assert_eq!(violations("engine", "use pingora::Result;"), ["engine knows pingora"]);
    assert_eq!(violations("edge/tls.rs", "use crate::proxy::Live;"), ["edge imports proxy"]);
    assert_eq!(violations("http/render.rs", "use pingora::Result;"), ["http knows pingora"]);
    assert!(violations("http/framework.rs", "use pingora::Result;").is_empty());
    assert!(violations("proxy", "use crate::engine::Engine; // crate::cli::main").is_empty());
}
