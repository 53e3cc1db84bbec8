//! Reads typed values out of the source tree and records every mistake with its location.
//!
//! A read that finds a mistake records it and returns `None`. Its caller continues with the other
//! values, so that one pass finds all mistakes and no mistake causes another. Nothing here knows
//! which keys a configuration has.

use std::path::Path;

use super::environment::{self, is_variable};
use super::error::{ConfigError, Location};
use super::expected_keys::{example, unknown_key_cure};
use super::source::{FileIndex, SourceContent, SourceEntry, SourceNode};
use super::syntax::VARIABLE_CURE;

pub(super) use super::error_list::{ErrorList, SourceFile};
pub(super) use super::suggestions::did_you_mean;

/// For `env:NAME` at a key that does not read the environment.
const ENV_CURE: &str = "env:NAME is possible for an address, a server and a url; write the value itself, or a file that holds it";

/// A node of the source with its path in the configuration.
#[derive(Clone, Debug)]
pub(super) struct Located<'n> {
    node: &'n SourceNode,
    /// The location that errors point to: that of the name, or of the node itself.
    pub(super) location: Location,
    pub(super) path: String,
    errors: &'n ErrorList<'n>,
}

/// A mapping with known keys, which is read key by key.
#[derive(Debug)]
pub(super) struct Mapping<'n> {
    at: Located<'n>,
    /// The keys that were requested so far. All others are unknown.
    known: Vec<&'static str>,
}

/// An entry of a mapping whose names the operator chooses.
#[derive(Clone, Debug)]
pub(super) struct NamedValue<'n> {
    pub(super) name: &'n str,
    /// The value; its errors point to the name.
    pub(super) at: Located<'n>,
}

impl<'n> Located<'n> {
    /// The top level of a file.
    pub(super) fn root(node: &'n SourceNode, errors: &'n ErrorList<'n>) -> Self {
        Self { node, location: node.location, path: String::new(), errors }
    }

    /// An entry of a mapping; errors point to its name.
    pub(super) fn of_entry(entry: &'n SourceEntry, path: &str, errors: &'n ErrorList<'n>) -> Self {
        let path = join(path, &entry.name);
        Self { node: &entry.value, location: entry.location, path, errors }
    }

    /// Records a mistake.
    pub(super) fn error(&self, message: impl Into<String>) {
        self.record(message.into(), None);
    }

    /// Records a mistake and what to write instead.
    pub(super) fn error_with(&self, message: impl Into<String>, cure: impl Into<String>) {
        self.record(message.into(), Some(cure.into()));
    }

    fn record(&self, message: String, cure: Option<String>) {
        let index = self.file_index();
        // The caller knows the name of the file itself.
        let file = (index > 0).then(|| self.file_name().to_owned());
        let (location, path) = (Some(self.location), self.path.clone());
        let error = ConfigError { file, location, path, message, cure };
        self.errors.push(index, error);
    }

    /// Which of the files it is in.
    pub(super) const fn file_index(&self) -> FileIndex {
        self.node.file
    }

    /// The name of the file that it is in.
    pub(super) fn file_name(&self) -> &'n str {
        &self.errors.file(self.node.file).name
    }

    /// Where relative names of other files start.
    pub(super) fn folder(&self) -> &'n Path {
        &self.errors.file(self.node.file).folder
    }

    /// `line 4`, or with the name of the file if it is another one than that of `other`.
    pub(super) fn seen_from(&self, other: &Self) -> String {
        let Location { line, column } = self.location;
        match self.node.file == other.node.file {
            true => format!("on line {line}"),
            false => format!("in {}:{line}:{column}", self.file_name()),
        }
    }

    /// The text of a scalar, as typed. A text that names an environment variable is a mistake.
    pub(super) fn text(&self) -> Option<&'n str> {
        let text = self.text_of_client()?;
        if environment::is_reference(text) {
            self.error_with(format!("{text:?} is not read from the environment"), ENV_CURE);
            return None;
        }
        Some(text)
    }

    /// A text that is compared with what clients send, and may be `env:NAME`.
    pub(super) fn text_of_client(&self) -> Option<&'n str> {
        let text = self.text_as_typed()?;
        if is_variable(text) {
            let message = format!("environment variables such as {text:?} are not expanded");
            self.error_with(message, VARIABLE_CURE);
            return None;
        }
        Some(text)
    }

    /// The text of a scalar where `$name` has a meaning.
    pub(super) fn text_as_typed(&self) -> Option<&'n str> {
        let cure = match &self.node.content {
            SourceContent::Scalar { text, .. } if !self.node.is_nothing() => return Some(text),
            SourceContent::Scalar { .. } => "write one after the colon, or leave the key out",
            SourceContent::List(_) => "write one value, without [ ] or dashes",
            SourceContent::Mapping(_) => "write one value, without { } or keys below it",
        };
        self.error_with(format!("expected a value, found {}", self.node.describe()), cure);
        None
    }

    /// The same, or the value of an environment variable, where `env:NAME` stands. An error does not show that value: it
    /// may hold a password. `form`: what the variable should hold.
    pub(super) fn parse_or_env<T>(
        &self,
        read: impl FnOnce(&str) -> Result<T, String>,
        form: &str,
    ) -> Option<T> {
        let Some(name) = self.text_as_typed()?.strip_prefix(environment::PREFIX) else {
            return self.parse(read);
        };
        let value = match environment::value(name) {
            Ok(value) => value,
            Err(error) => {
                self.error_with(error.to_string(), error.cure());
                return None;
            }
        };
        let read = read(&value).ok();
        if read.is_none() {
            self.error_with(
                format!("environment variable {name} does not hold {form}"),
                format!("set {name} to {form}, and restart"),
            );
        }
        read
    }

    /// A scalar as a `T`. An error of `read` is recorded as a mistake.
    pub(super) fn parse<T>(&self, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text()?;
        match read(text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.error(message);
                None
            }
        }
    }

    /// A scalar that has to be one of a few words, each with its value.
    pub(super) fn choice<T: Clone>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let chosen = words.iter().find(|(word, _)| *word == text);
        if chosen.is_none() {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let cure = did_you_mean(text, &all).unwrap_or_else(|| match all.as_slice() {
                [only] => format!("write {only}"),
                all => format!("one of {}", all.join(", ")),
            });
            self.error_with(format!("unknown word {text:?}"), cure);
        }
        chosen.map(|(_, value)| value.clone())
    }

    /// The items of a list.
    pub(super) fn list(&self) -> Vec<Self> {
        match &self.node.content {
            SourceContent::List(items) => self.items(items),
            SourceContent::Scalar { .. } | SourceContent::Mapping(_) => {
                let has_dash = |entry: &SourceEntry| entry.name.starts_with('-');
                let cure = match &self.node.content {
                    SourceContent::Mapping(entries) if entries.iter().any(has_dash) => {
                        "write a blank behind each dash"
                    }
                    _ => "begin each item with a dash and a blank, or write [ITEM, ITEM]",
                };
                self.error_with(format!("expected a list, found {}", self.node.describe()), cure);
                Vec::new()
            }
        }
    }

    /// The items of a list, or a single value as a list of one item.
    pub(super) fn list_or_single(&self) -> Vec<Self> {
        match &self.node.content {
            SourceContent::List(items) => self.items(items),
            SourceContent::Scalar { .. } | SourceContent::Mapping(_) => vec![self.clone()],
        }
    }

    fn items(&self, items: &'n [SourceNode]) -> Vec<Self> {
        // A list of several files counts in each of them from 0.
        let (mut file, mut next) = (self.node.file, 0);
        let item = |node: &'n SourceNode| {
            if node.file != file {
                (file, next) = (node.file, 0);
            }
            let path = format!("{}[{next}]", self.path);
            next += 1;
            Self { node, location: node.location, path, errors: self.errors }
        };
        items.iter().map(item).collect()
    }

    /// A mapping with known keys. The caller must call [`Mapping::finish`].
    pub(super) fn mapping(&self) -> Option<Mapping<'n>> {
        if self.is_mapping() {
            return Some(Mapping { at: self.clone(), known: Vec::new() });
        }
        self.expected_mapping();
        None
    }

    fn expected_mapping(&self) {
        let cure = match (example(&self.path), self.node.is_nothing()) {
            _ if self.path.is_empty() => {
                "begin with version: 1, and write one key: value a line".to_owned()
            }
            (Some(example), false) => format!("write for example {example}"),
            (Some(example), true) => {
                format!("write its keys, indented below it, for example {example}")
            }
            (None, _) => "write keys with values, as { KEY: VALUE }".to_owned(),
        };
        self.error_with(format!("expected a mapping, found {}", self.node.describe()), cure);
    }

    /// The text of a scalar, for the words of an error.
    pub(super) fn scalar(&self) -> Option<&'n str> {
        match &self.node.content {
            SourceContent::Scalar { text, .. } => Some(text),
            SourceContent::List(_) | SourceContent::Mapping(_) => None,
        }
    }

    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.node.content, SourceContent::Mapping(_))
    }

    /// Whether the value is left empty.
    pub(super) fn is_nothing(&self) -> bool {
        self.node.is_nothing()
    }

    /// Whether it is a list without items.
    pub(super) fn is_empty_list(&self) -> bool {
        matches!(&self.node.content, SourceContent::List(items) if items.is_empty())
    }

    /// Whether it is a mapping without entries.
    pub(super) fn is_empty_mapping(&self) -> bool {
        matches!(&self.node.content, SourceContent::Mapping(entries) if entries.is_empty())
    }

    /// Whether it is a scalar with this text.
    pub(super) fn is_text(&self, expected: &str) -> bool {
        matches!(&self.node.content, SourceContent::Scalar { text, .. } if text == expected)
    }

    /// The entries of a mapping whose names the operator chooses.
    pub(super) fn named_values(&self) -> Vec<NamedValue<'n>> {
        let SourceContent::Mapping(entries) = &self.node.content else {
            if !self.node.is_nothing() {
                self.expected_mapping();
            }
            return Vec::new();
        };
        let named = |entry: &'n SourceEntry| NamedValue {
            name: &entry.name,
            at: Self::of_entry(entry, &self.path, self.errors),
        };
        entries.iter().map(named).collect()
    }
}

impl<'n> Mapping<'n> {
    /// The value of an optional key.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Located<'n>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let entry = self.entries().iter().find(|entry| entry.name == key)?;
        Some(Located {
            node: &entry.value,
            location: entry.value.location,
            path: join(&self.at.path, key),
            errors: self.at.errors,
        })
    }

    /// The value of a required key.
    pub(super) fn require(&mut self, key: &'static str, cure: &str) -> Option<Located<'n>> {
        let value = self.get(key);
        if value.is_none() {
            self.at.error_with(format!("{key} is missing"), cure);
        }
        value
    }

    /// The names in the mapping under `key`, whether or not their values are valid.
    pub(super) fn names_in(&mut self, key: &'static str) -> Vec<&'n str> {
        match self.get(key).map(|at| &at.node.content) {
            Some(SourceContent::Mapping(entries)) => {
                entries.iter().map(|entry| entry.name.as_str()).collect()
            }
            Some(SourceContent::Scalar { .. } | SourceContent::List(_)) | None => Vec::new(),
        }
    }

    /// The mapping itself, for errors that concern all of it.
    pub(super) const fn at(&self) -> &Located<'n> {
        &self.at
    }

    /// Records an error for every key that was not requested.
    ///
    /// Returns whether there was none.
    pub(super) fn finish(self) -> bool {
        let mut is_known = true;
        for entry in self.entries() {
            let name = entry.name.as_str();
            if self.known.contains(&name) {
                continue;
            }
            is_known = false;
            let path = join(&self.at.path, name);
            let at = Located { location: entry.location, path, ..self.at.clone() };
            let value = match &entry.value.content {
                SourceContent::Scalar { text, .. } => text.as_str(),
                SourceContent::List(_) | SourceContent::Mapping(_) => "",
            };
            let cure = unknown_key_cure(name, value, &self.known, &at.path)
                .or_else(|| did_you_mean(name, &self.known));
            if let Some(cure) = &cure {
                self.forget_missing(cure);
                self.forget_empty(cure);
            }
            let cure = cure.unwrap_or_else(|| format!("known here: {}", self.known.join(", ")));
            at.error_with(format!("unknown key {name:?}"), cure);
        }
        is_known
    }

    /// A key that is misspelt is not missing too: one mistake is one error.
    fn forget_missing(&self, cure: &str) {
        let named = |key: &str| {
            cure.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == key)
        };
        self.at.errors.retain(|file, error| {
            let is_here = file == self.at.file_index() && error.path == self.at.path;
            let missing = error.message.split(" is missing").next().filter(|_| is_here);
            !missing.is_some_and(|key| key.len() < error.message.len() && named(key))
        });
    }

    /// A mapping is not empty too, if the keys that belong into it stand on its own level.
    fn forget_empty(&self, cure: &str) {
        let level = cure.strip_prefix("it belongs to ").and_then(|rest| rest.split(' ').next());
        let Some(path) = level.map(|level| join(&self.at.path, level)) else {
            return;
        };
        self.at.errors.retain(|file, error| {
            let is_empty = error.message.ends_with("found nothing") && error.path == path;
            !(is_empty && file == self.at.file_index())
        });
    }

    fn entries(&self) -> &'n [SourceEntry] {
        match &self.at.node.content {
            SourceContent::Mapping(entries) => entries,
            SourceContent::Scalar { .. } | SourceContent::List(_) => &[],
        }
    }
}

/// The path of a key below another. A key with a `?` is a URL, whose query may be a secret.
fn join(path: &str, key: &str) -> String {
    let key = key.split('?').next().unwrap_or_default();
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
