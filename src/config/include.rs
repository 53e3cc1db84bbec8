//! `include`: finds and reads the files that a configuration includes, and puts their sections into its tree.
//!
//! One level: an included file includes nothing. The sections of the included files come first, in the order of the
//! files, and those of the file itself follow. Every value keeps the file and the location where it was typed. What must
//! always hold: the texts that are put together were in force at one instant, so that a half-written set of files is
//! never a policy ([`ReadFiles::are_unchanged`]).

use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use hashbrown::HashMap;

use super::error::ConfigError;
use super::files::{FileVersion, read_text_file};
use super::fingerprint::FileHasher;
use super::reader::{ErrorList, Located, SourceFile};
use super::source::{self, MAX_BYTES, SourceContent, SourceEntry, SourceNode};

/// Most files that a configuration includes. A reload reads them all.
const MAX_FILES: usize = 1_000;

/// Most bytes of a configuration with all files that it includes: four of the largest files. It bounds how long a check
/// or a reload takes.
const MAX_TOTAL_BYTES: usize = 4 * MAX_BYTES;

/// What an included file may contain.
pub(crate) const INCLUDED_SECTIONS: [&str; 4] = ["classes", "origins", "limits", "routes"];

/// What only the file itself may contain.
const MAIN_SECTIONS: [&str; 11] = [
    "threads",
    "listeners",
    "admin",
    "clients",
    "store",
    "defaults",
    "responses",
    "limits_of_this_proxy",
    "access_log",
    "check",
    "fleet",
];

/// Cases of policy tests stand next to policies, and are none.
const TEST_SUFFIX: &str = ".test.yaml";

/// The files that were read, in the version that was read, and the patterns by which they were found.
#[derive(Default)]
pub(super) struct ReadFiles {
    /// Sums up the texts in the order in which they were read.
    pub(super) hasher: FileHasher,
    versions: Vec<(PathBuf, FileVersion)>,
    patterns: Vec<(IncludePattern, Vec<PathBuf>)>,
}

/// A pattern of `include` with the folder that it is relative to.
#[derive(Clone, Debug)]
pub(super) struct IncludePattern {
    /// For the matcher: what is special in the folder's name is escaped.
    glob: String,
    /// Whether it may match several files.
    has_star: bool,
}

impl ReadFiles {
    pub(super) fn add(&mut self, file: &Path, version: FileVersion) {
        self.versions.push((file.to_owned(), version));
    }

    /// Whether no file changed since it was read, so that there was an instant at which all of them were as they were
    /// read. A new file that matches a pattern is a change too.
    pub(super) fn are_unchanged(&self) -> bool {
        // One file alone was checked while it was read; a pipe cannot be read again.
        if self.patterns.is_empty() {
            return true;
        }
        let is_same = |(file, version): &(PathBuf, FileVersion)| {
            *version == FileVersion::Special || FileVersion::of_name(file) == Some(*version)
        };
        self.versions.iter().all(is_same)
            && self.patterns.iter().all(|(pattern, found)| pattern.files().as_ref() == Ok(found))
    }
}

/// Reads the files that `tree` includes and puts their sections into it. `files` holds the file itself and receives the
/// included ones. Returns which of the patterns match no file. `Err`: what keeps a file from being read; nothing else is
/// known then.
pub(super) fn include(
    tree: &mut SourceNode,
    files: &mut Vec<SourceFile>,
    read: &mut ReadFiles,
    main_bytes: usize,
) -> Result<Vec<usize>, Vec<ConfigError>> {
    let found = find(tree, files, read)?;
    let mut trees = Vec::new();
    let mut errors = Vec::new();
    let mut bytes = main_bytes;
    for path in &found.files {
        let index = files.len();
        let name = path.display().to_string();
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        files.push(SourceFile { name: name.clone(), folder });
        let parsed = read_included(path, index, read, &mut bytes);
        match parsed {
            Ok(tree) => trees.push(tree),
            Err(found) => errors.extend(
                found.into_iter().map(|error| ConfigError { file: Some(name.clone()), ..error }),
            ),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let errors = ErrorList::new(files);
    check_sections(&trees, &errors);
    merge(tree, trees, &errors);
    let errors = errors.into_sorted();
    if errors.is_empty() { Ok(found.empty) } else { Err(errors) }
}

fn read_included(
    path: &Path,
    index: usize,
    read: &mut ReadFiles,
    bytes: &mut usize,
) -> Result<SourceNode, Vec<ConfigError>> {
    if FileVersion::of_name(path) == Some(FileVersion::Special) {
        let message = "is not a file".to_owned();
        let cure = Some("leave it out of include".to_owned());
        return Err(vec![ConfigError { cure, ..ConfigError::of_file(message) }]);
    }
    let (text, version) = read_text_file(path, MAX_BYTES as u64).map_err(|error| vec![error])?;
    read.add(path, version);
    read.hasher.add(&text);
    *bytes += text.len();
    if *bytes > MAX_TOTAL_BYTES {
        let message =
            format!("with this file the configuration has more than {MAX_TOTAL_BYTES} bytes");
        let cure = Some("include less; keys for overrides fit into a key_file".to_owned());
        return Err(vec![ConfigError { cure, ..ConfigError::of_file(message) }]);
    }
    source::parse(&text, index, "write limits and routes, or remove the file")
}

struct IncludedFiles {
    files: Vec<PathBuf>,
    /// By index: the patterns that match no file.
    empty: Vec<usize>,
}

/// The files that the patterns match, each once, in the order of the patterns and of the names.
fn find(
    tree: &SourceNode,
    files: &[SourceFile],
    read: &mut ReadFiles,
) -> Result<IncludedFiles, Vec<ConfigError>> {
    let mut found = IncludedFiles { files: Vec::new(), empty: Vec::new() };
    let errors = ErrorList::new(files);
    let main = std::fs::canonicalize(&files[0].name).ok();
    for (index, (at, pattern)) in patterns(tree, &errors).into_iter().enumerate() {
        let matched = match pattern.files() {
            Ok(matched) => matched,
            Err(error) => {
                at.error_with(error, "write names as limits.d/*.yaml, relative to this file");
                continue;
            }
        };
        read.patterns.push((pattern.clone(), matched.clone()));
        if matched.is_empty() {
            let cure = "create it, or correct the name";
            match missing_folder(&at) {
                Some(folder) => {
                    at.error_with(format!("{}: there is no such folder", folder.display()), cure);
                }
                None if pattern.has_star => found.empty.push(index),
                None => at.error_with("there is no such file", cure),
            }
        }
        if !pattern.has_star && matched.first().is_some_and(|path| path.is_dir()) {
            let text = at.text().unwrap_or_default().trim_end_matches('/');
            at.error_with("this is a folder", format!("write {text}/*.yaml"));
            continue;
        }
        for path in matched {
            if main.is_some() && std::fs::canonicalize(&path).ok() == main {
                at.error_with(
                    "this pattern matches the file itself",
                    "put what is included into a folder of its own, as limits.d/*.yaml",
                );
            } else if !found.files.contains(&path) {
                found.files.push(path);
            }
        }
        if found.files.len() > MAX_FILES {
            let message = format!("more than {MAX_FILES} files are included");
            at.error_with(message, "put several limits and routes into one file");
            break;
        }
    }
    let errors = errors.into_sorted();
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The patterns of `include`.
fn patterns<'n>(
    tree: &'n SourceNode,
    errors: &'n ErrorList<'n>,
) -> Vec<(Located<'n>, IncludePattern)> {
    if !matches!(&tree.content, SourceContent::Mapping(_)) {
        return Vec::new();
    }
    let include = Located::root(tree, errors).mapping().and_then(|mut map| map.get("include"));
    let Some(at) = include else {
        return Vec::new();
    };
    let items = at.list_or_single();
    let pattern = |at: Located<'n>| {
        let text = at.text()?;
        let wrong = if text.contains("**") {
            "** is not possible in include"
        } else if Pattern::new(text).is_err() {
            "this is not a pattern"
        } else {
            let folder = Pattern::escape(&at.folder().to_string_lossy());
            let glob = Path::new(&folder).join(text).to_string_lossy().into_owned();
            return Some((at, IncludePattern { glob, has_star: has_star(text) }));
        };
        at.error_with(wrong, "* stands for any characters of a name: limits.d/*.yaml");
        None
    };
    items.into_iter().filter_map(pattern).collect()
}

/// The patterns that a file names; none if it cannot be read.
pub(super) fn patterns_of(file: &Path) -> Vec<IncludePattern> {
    let Ok((text, _)) = read_text_file(file, MAX_BYTES as u64) else {
        return Vec::new();
    };
    let Ok(tree) = source::parse(&text, 0, "") else {
        return Vec::new();
    };
    let files = [SourceFile::main(file)];
    let errors = ErrorList::new(&files);
    patterns(&tree, &errors).into_iter().map(|(_, pattern)| pattern).collect()
}

impl IncludePattern {
    /// The files that it matches, sorted by name. Where it has a star, it leaves out hidden files (Kubernetes keeps
    /// versions in some) and cases of policy tests.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, String> {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        let matched = glob::glob_with(&self.glob, options).map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        // One more than allowed is enough to know that there are too many.
        for path in matched.take(MAX_FILES + 1) {
            let path =
                path.map_err(|error| format!("{}: {}", error.path().display(), error.error()))?;
            let is_test = path.to_string_lossy().ends_with(TEST_SUFFIX);
            if !(self.has_star && (is_test || path.is_dir())) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }
}

fn has_star(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The folder in which a pattern looks, if it does not exist.
fn missing_folder(at: &Located<'_>) -> Option<PathBuf> {
    let text = at.text()?;
    let named = Path::new(text).ancestors().skip(1);
    let folder = named.into_iter().find(|folder| !has_star(&folder.to_string_lossy()))?;
    let folder = at.folder().join(folder);
    let is_there = folder.as_os_str().is_empty() || folder.is_dir();
    (!is_there).then_some(folder)
}

/// Refuses what an included file may not contain.
fn check_sections(trees: &[SourceNode], errors: &ErrorList<'_>) {
    for tree in trees {
        let Some(mut map) = Located::root(tree, errors).mapping() else {
            continue;
        };
        if let Some(at) = map.get("version")
            && !at.is_text("1")
        {
            at.error_with("an unknown version of the configuration", "write version: 1");
        }
        if let Some(at) = map.get("include") {
            let cure = "name all files in include of the file that includes this one";
            at.error_with("an included file cannot include others", cure);
        }
        if let Some(at) = map.get("cases") {
            let cure = "name it NAME.test.yaml, or leave it out of include";
            at.error_with("this is a file of policy tests", cure);
        }
        for section in MAIN_SECTIONS {
            if let Some(at) = map.get(section) {
                let cure = "move it into the file that includes this one";
                at.error_with(format!("{section} cannot be in an included file"), cure);
            }
        }
        for section in INCLUDED_SECTIONS {
            let Some(at) = map.get(section) else { continue };
            match section {
                "routes" => drop(at.list()),
                _ => drop(at.named_values()),
            }
        }
        map.finish();
    }
}

/// A section that is put together.
struct MergedSection {
    entry: SourceEntry,
    /// Where each name of a mapping stands in it.
    positions: HashMap<String, usize>,
}

/// Puts the sections of the included files before those of the file itself.
fn merge(tree: &mut SourceNode, trees: Vec<SourceNode>, errors: &ErrorList<'_>) {
    let mut sections: Vec<MergedSection> = Vec::new();
    for node in trees {
        let SourceContent::Mapping(entries) = node.content else { continue };
        for entry in entries.into_iter().filter(|entry| INCLUDED_SECTIONS.contains(&&*entry.name)) {
            append(&mut sections, entry, errors);
        }
    }
    let SourceContent::Mapping(main) = &mut tree.content else { return };
    for entry in std::mem::take(main) {
        match INCLUDED_SECTIONS.contains(&&*entry.name) {
            true => append(&mut sections, entry, errors),
            false => main.push(entry),
        }
    }
    main.extend(sections.into_iter().map(|section| section.entry));
}

/// Adds a section to the one of the same name, if there is one.
fn append(sections: &mut Vec<MergedSection>, entry: SourceEntry, errors: &ErrorList<'_>) {
    if entry.value.is_nothing() && sections.iter().any(|known| known.entry.name == entry.name) {
        return;
    }
    let Some(known) = sections.iter_mut().find(|known| known.entry.name == entry.name) else {
        let positions = positions(&entry.value);
        sections.push(MergedSection { entry, positions });
        return;
    };
    match (&mut known.entry.value.content, entry.value.content) {
        (SourceContent::List(items), SourceContent::List(more)) => items.extend(more),
        (SourceContent::Mapping(entries), SourceContent::Mapping(more)) => {
            for added in more {
                if let Some(first) = known.positions.get(&added.name) {
                    report_twice(&entry.name, &entries[*first], &added, errors);
                    continue;
                }
                known.positions.insert(added.name.clone(), entries.len());
                entries.push(added);
            }
        }
        // One of the two is nothing, or has a mistake, which its reader reports.
        (_, content) => {
            let value = SourceNode { content, ..entry.value };
            let positions = positions(&value);
            *known = MergedSection { entry: SourceEntry { value, ..entry }, positions };
        }
    }
}

fn positions(value: &SourceNode) -> HashMap<String, usize> {
    let entries = match &value.content {
        SourceContent::Mapping(entries) => entries.as_slice(),
        SourceContent::Scalar { .. } | SourceContent::List(_) => &[],
    };
    entries.iter().enumerate().map(|(index, entry)| (entry.name.clone(), index)).collect()
}

/// Two files define the same name.
fn report_twice(section: &str, first: &SourceEntry, second: &SourceEntry, errors: &ErrorList<'_>) {
    let first = Located::of_entry(first, section, errors);
    let second = Located::of_entry(second, section, errors);
    let name = second.path.rsplit('.').next().unwrap_or_default();
    second.error_with(
        format!("{name:?} is defined in two files"),
        format!("rename or remove one of them; the other is {}", first.seen_from(&second)),
    );
}
