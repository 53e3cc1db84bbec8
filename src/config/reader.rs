//! Reads typed values out of the source tree and records every mistake with its location.
//!
//! A read that finds a mistake records it and returns `None`. Its caller continues with the other
//! values, so that one pass finds all mistakes and no mistake causes another. Nothing here knows
//! which keys a configuration has.

use std::cell::RefCell;

use super::error::{ConfigError, Location};
use super::source::{SourceContent, SourceEntry, SourceNode};

/// The mistakes that were found so far.
#[derive(Debug, Default)]
pub(super) struct ErrorList(RefCell<Vec<ConfigError>>);

/// A node of the source with its path in the configuration.
#[derive(Clone, Debug)]
pub(super) struct Located<'n> {
    node: &'n SourceNode,
    /// The location that errors point to: that of the name, or of the node itself.
    pub(super) location: Location,
    pub(super) path: String,
    errors: &'n ErrorList,
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

impl ErrorList {
    fn push(&self, error: ConfigError) {
        self.0.borrow_mut().push(error);
    }

    /// All mistakes in the order of the file.
    pub(super) fn into_sorted(self) -> Vec<ConfigError> {
        let mut errors = self.0.into_inner();
        errors.sort_by(|a, b| a.location.cmp(&b.location).then_with(|| a.path.cmp(&b.path)));
        errors.dedup();
        errors
    }
}

impl<'n> Located<'n> {
    /// The top level of a file.
    pub(super) fn root(node: &'n SourceNode, errors: &'n ErrorList) -> Self {
        Self { node, location: node.location, path: String::new(), errors }
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
        let (location, path) = (Some(self.location), self.path.clone());
        self.errors.push(ConfigError { location, path, message, cure });
    }

    /// The text of a scalar, as typed.
    pub(super) fn text(&self) -> Option<&'n str> {
        match &self.node.content {
            SourceContent::Scalar { text, .. } if !self.node.is_nothing() => Some(text),
            SourceContent::Scalar { .. } | SourceContent::List(_) | SourceContent::Mapping(_) => {
                self.error(format!("expected a value, found {}", self.node.describe()));
                None
            }
        }
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
            let cure =
                did_you_mean(text, &all).unwrap_or_else(|| format!("one of {}", all.join(", ")));
            self.error_with(format!("unknown word {text:?}"), cure);
        }
        chosen.map(|(_, value)| value.clone())
    }

    /// The items of a list.
    pub(super) fn list(&self) -> Vec<Self> {
        match &self.node.content {
            SourceContent::List(items) => self.items(items),
            SourceContent::Scalar { .. } | SourceContent::Mapping(_) => {
                self.error(format!("expected a list, found {}", self.node.describe()));
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
        let item = |(index, node): (usize, &'n SourceNode)| Self {
            node,
            location: node.location,
            path: format!("{}[{index}]", self.path),
            errors: self.errors,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// A mapping with known keys. The caller must call [`Mapping::finish`].
    pub(super) fn mapping(&self) -> Option<Mapping<'n>> {
        if self.is_mapping() {
            return Some(Mapping { at: self.clone(), known: Vec::new() });
        }
        self.error(format!("expected a mapping, found {}", self.node.describe()));
        None
    }

    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.node.content, SourceContent::Mapping(_))
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
                self.error(format!("expected a mapping, found {}", self.node.describe()));
            }
            return Vec::new();
        };
        let named = |entry: &'n SourceEntry| NamedValue {
            name: &entry.name,
            at: Self {
                node: &entry.value,
                location: entry.location,
                path: join(&self.path, &entry.name),
                errors: self.errors,
            },
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
    pub(super) fn finish(self) {
        for entry in self.entries() {
            let name = entry.name.as_str();
            if self.known.contains(&name) {
                continue;
            }
            let path = join(&self.at.path, name);
            let at = Located { location: entry.location, path, ..self.at.clone() };
            let cure = did_you_mean(name, &self.known)
                .unwrap_or_else(|| format!("known here: {}", self.known.join(", ")));
            at.error_with(format!("unknown key {name:?}"), cure);
        }
    }

    fn entries(&self) -> &'n [SourceEntry] {
        match &self.at.node.content {
            SourceContent::Mapping(entries) => entries,
            SourceContent::Scalar { .. } | SourceContent::List(_) => &[],
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// `did you mean "writes"?`, if one of the words is similar enough.
pub(super) fn did_you_mean(typed: &str, words: &[&str]) -> Option<String> {
    let distance = |word: &&&str| strsim::damerau_levenshtein(typed, word);
    let nearest = words.iter().min_by_key(distance)?;
    let is_similar = distance(&nearest) <= 1 + typed.len() / 4;
    is_similar.then(|| format!("did you mean {nearest:?}?"))
}
