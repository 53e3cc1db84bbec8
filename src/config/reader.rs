//! Reading a tree: typed values out of nodes, every mistake noted where it stands.
//!
//! A reader that finds a mistake notes it and answers `None`; its callers go on, so that one pass
//! finds all mistakes, and none of them hides or causes another.

use std::cell::RefCell;

use crate::config::error::{ConfigError, Location};
use crate::config::source::{SourceContent, SourceNode};

/// The mistakes found so far.
#[derive(Debug, Default)]
pub(super) struct ErrorList(RefCell<Vec<ConfigError>>);

/// A node with its path in the configuration.
#[derive(Clone, Debug)]
pub(super) struct Located<'n> {
    pub(super) node: &'n SourceNode,
    /// Where its name stands, or the node itself: what an error points to.
    pub(super) location: Location,
    pub(super) path: String,
    errors: &'n ErrorList,
}

/// A mapping that is read key by key.
#[derive(Debug)]
pub(super) struct Mapping<'n> {
    at: Located<'n>,
    /// Keys asked for so far: the known ones.
    known: Vec<&'static str>,
}

impl ErrorList {
    pub(super) fn push(&self, error: ConfigError) {
        self.0.borrow_mut().push(error);
    }

    /// All of them in the order of the file.
    pub(super) fn into_sorted(self) -> Vec<ConfigError> {
        let mut errors = self.0.into_inner();
        errors.sort_by(|a, b| a.location.cmp(&b.location).then_with(|| a.path.cmp(&b.path)));
        errors.dedup();
        errors
    }
}

impl<'n> Located<'n> {
    /// The whole file.
    pub(super) fn root(node: &'n SourceNode, errors: &'n ErrorList) -> Self {
        Self { node, location: node.location, path: String::new(), errors }
    }

    /// Notes a mistake here.
    pub(super) fn error(&self, message: impl Into<String>) {
        self.note(message.into(), None);
    }

    /// Notes a mistake here, and what to write instead.
    pub(super) fn error_with(&self, message: impl Into<String>, cure: impl Into<String>) {
        self.note(message.into(), Some(cure.into()));
    }

    fn note(&self, message: String, cure: Option<String>) {
        let (location, path) = (Some(self.location), self.path.clone());
        self.errors.push(ConfigError { location, path, message, cure });
    }

    /// A scalar's text as it was typed.
    pub(super) fn text(&self) -> Option<&'n str> {
        match &self.node.kind {
            SourceContent::Scalar { text, .. } if !self.node.is_nothing() => Some(text),
            SourceContent::Scalar { .. } | SourceContent::List(_) | SourceContent::Map(_) => {
                self.error(format!("expected a value, found {}", self.node.describe()));
                None
            }
        }
    }

    /// A scalar as `T`; what cannot be read is noted with the reader's own words.
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

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let cure =
                did_you_mean(text, &all).unwrap_or_else(|| format!("one of {}", all.join(", ")));
            self.error_with(format!("unknown word {text:?}"), cure);
        }
        found.map(|(_, value)| *value)
    }

    /// A list's items.
    pub(super) fn list(&self) -> Vec<Self> {
        match &self.node.kind {
            SourceContent::List(items) => self.items(items),
            SourceContent::Scalar { .. } | SourceContent::Map(_) => {
                self.error(format!("expected a list, found {}", self.node.describe()));
                Vec::new()
            }
        }
    }

    /// A list's items, or the one thing that stands instead of a list.
    pub(super) fn one_or_more(&self) -> Vec<Self> {
        match &self.node.kind {
            SourceContent::List(items) => self.items(items),
            SourceContent::Scalar { .. } | SourceContent::Map(_) => vec![self.clone()],
        }
    }

    fn items(&self, items: &'n [SourceNode]) -> Vec<Self> {
        let item = |(i, node): (usize, &'n SourceNode)| Self {
            node,
            location: node.location,
            path: format!("{}[{i}]", self.path),
            errors: self.errors,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// A mapping to be read key by key.
    pub(super) fn map(&self) -> Option<Mapping<'n>> {
        match &self.node.kind {
            SourceContent::Map(_) => Some(Mapping { at: self.clone(), known: Vec::new() }),
            SourceContent::Scalar { .. } | SourceContent::List(_) => {
                self.error(format!("expected a mapping, found {}", self.node.describe()));
                None
            }
        }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.kind, SourceContent::Map(_))
    }

    /// A mapping whose names the operator chose, each with its value.
    pub(super) fn named(&self) -> Vec<(&'n str, Self)> {
        let SourceContent::Map(entries) = &self.node.kind else {
            if !self.node.is_nothing() {
                self.error(format!("expected a mapping, found {}", self.node.describe()));
            }
            return Vec::new();
        };
        let entry = |(key, node): &'n (crate::config::source::SourceKey, SourceNode)| {
            let at = Self {
                node,
                location: key.location,
                path: join(&self.path, &key.text),
                errors: self.errors,
            };
            (key.text.as_str(), at)
        };
        entries.iter().map(entry).collect()
    }
}

impl<'n> Mapping<'n> {
    /// The value of a key, if it is there.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Located<'n>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        let entries = match &self.at.node.kind {
            SourceContent::Map(entries) => entries,
            SourceContent::Scalar { .. } | SourceContent::List(_) => return None,
        };
        let (_, node) = entries.iter().find(|(found, _)| found.text == key)?;
        Some(Located {
            node,
            location: node.location,
            path: join(&self.at.path, key),
            errors: self.at.errors,
        })
    }

    /// The value of a key that must be there.
    pub(super) fn require(&mut self, key: &'static str, cure: &str) -> Option<Located<'n>> {
        let found = self.get(key);
        if found.is_none() {
            self.at.error_with(format!("{key} is missing"), cure);
        }
        found
    }

    /// The names in a mapping of names, whether or not their values can be read.
    pub(super) fn names_in(&mut self, key: &'static str) -> Vec<&'n str> {
        match self.get(key).map(|at| &at.node.kind) {
            Some(SourceContent::Map(entries)) => {
                entries.iter().map(|(key, _)| key.text.as_str()).collect()
            }
            Some(SourceContent::Scalar { .. } | SourceContent::List(_)) | None => Vec::new(),
        }
    }

    /// Where the mapping itself stands.
    pub(super) const fn at(&self) -> &Located<'n> {
        &self.at
    }

    /// Refuses every key that nobody asked for.
    pub(super) fn finish(self) {
        let SourceContent::Map(entries) = &self.at.node.kind else {
            return;
        };
        for (key, _) in entries {
            let name = key.text.as_str();
            if self.known.contains(&name) {
                continue;
            }
            let at = Located {
                location: key.location,
                path: join(&self.at.path, name),
                ..self.at.clone()
            };
            let cure = did_you_mean(name, &self.known)
                .unwrap_or_else(|| format!("known here: {}", self.known.join(", ")));
            at.error_with(format!("unknown key {name:?}"), cure);
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// `did you mean "writes"?`, if one of the words is near enough.
pub(super) fn did_you_mean(typed: &str, words: &[&str]) -> Option<String> {
    let distance = |word: &&&str| strsim::damerau_levenshtein(typed, word);
    let near = words.iter().min_by_key(distance)?;
    let enough = distance(&near) <= 1 + typed.len() / 4;
    enough.then(|| format!("did you mean {near:?}?"))
}
