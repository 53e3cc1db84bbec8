//! Where the keys of a configuration stand in its file, for what is found out after the file was read: an address that
//! cannot be listened on, a certificate that expires, a server that does not answer.
//!
//! It does not know what a path refers to. What must always hold: whatever the path, an error or a warning has a location,
//! at worst that of the nearest key around it that the file has.

use super::error::{ConfigError, ConfigErrors, Warning};
use super::error_list::SourceFile;
use super::source::{FileIndex, SourceContent, SourceNode};
use super::warnings::{Code, SilencedCodes};

/// The file that was read, among those of a configuration.
const MAIN_FILE: FileIndex = 0;

/// The keys of a file, with their locations.
#[derive(Debug)]
pub struct SourceMap {
    /// The file itself, then those that it includes.
    files: Vec<SourceFile>,
    root: SourceNode,
    silenced: SilencedCodes,
}

impl SourceMap {
    pub(super) const fn new(
        files: Vec<SourceFile>,
        root: SourceNode,
        silenced: SilencedCodes,
    ) -> Self {
        Self { files, root, silenced }
    }

    /// The mistakes, in the order of the files and their lines.
    pub fn errors(&self, mut errors: Vec<ConfigError>) -> ConfigErrors {
        let file_index = |error: &ConfigError| {
            let name = error.file.as_ref();
            name.and_then(|name| self.files.iter().position(|file| file.name == *name))
        };
        errors.sort_by(|a, b| {
            let key = |error: &ConfigError| (file_index(error), error.location);
            key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path))
        });
        errors.dedup();
        ConfigErrors { file: self.file_name(MAIN_FILE), errors }
    }

    /// A mistake at a path such as `listeners[0].address`; without a location if the path is empty.
    pub fn error(&self, path: &str, message: String, cure: Option<String>) -> ConfigError {
        if path.is_empty() {
            let location = None;
            return ConfigError { file: None, location, path: String::new(), message, cure };
        }
        let (path, node) = self.find(path);
        let file = (node.file != MAIN_FILE).then(|| self.file_name(node.file));
        ConfigError { file, location: Some(node.location), path, message, cure }
    }

    /// A warning at a path; `None` if its code is silenced.
    pub fn warning(&self, code: Code, path: &str, message: String, cure: &str) -> Option<Warning> {
        if self.silenced.contains(code) {
            return None;
        }
        let (path, node) = self.find(path);
        let (file, location) = (self.file_name(node.file), node.location);
        Some(Warning { code: code.name(), file, location, path, message, cure: cure.to_owned() })
    }

    fn file_name(&self, index: FileIndex) -> String {
        self.files.get(index).map(|file| file.name.clone()).unwrap_or_default()
    }

    /// The longest beginning of a path that the file has, and where it stands. A single value stands for a list of one
    /// item, as everywhere.
    fn find(&self, path: &str) -> (String, &SourceNode) {
        let (mut node, mut found) = (&self.root, String::new());
        for step in path.split(['.', '[']) {
            let next = match (&node.content, step.strip_suffix(']')) {
                (SourceContent::List(items), Some(index)) => {
                    index.parse().ok().and_then(|index: usize| items.get(index))
                }
                (SourceContent::Scalar { .. } | SourceContent::Mapping(_), Some("0")) => continue,
                (SourceContent::Mapping(entries), None) => {
                    entries.iter().find(|entry| entry.name == step).map(|entry| &entry.value)
                }
                _ => None,
            };
            let Some(next) = next else { break };
            node = next;
            match step.ends_with(']') {
                true => found.push('['),
                false if !found.is_empty() => found.push('.'),
                false => {}
            }
            found.push_str(step);
        }
        (found, node)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::error::Location;
    use crate::config::source::parse;

    #[test]
    fn a_path_is_found_or_the_nearest_key_around_it() {
        let text = "a:\n  - b: { c: 1 }\n  - { b: [x, y] }\nd: e\n";
        let silenced = SilencedCodes::default();
        let map = SourceMap::new(
            vec![SourceFile::main(Path::new("f"))],
            parse(text, MAIN_FILE, "").unwrap(),
            silenced,
        );
        for (path, expected, line, column) in [
            ("a[0].b.c", "a[0].b.c", 2, 13),
            ("a[0].b[0].c", "a[0].b.c", 2, 13),
            ("a[1].b[1]", "a[1].b[1]", 3, 14),
            ("a[1].b[7]", "a[1].b", 3, 10),
            ("a[2]", "a", 2, 3),
            ("d[0]", "d", 4, 4),
            ("d.e", "d", 4, 4),
            ("nothing", "", 1, 1),
        ] {
            let error = map.error(path, String::new(), None);
            let location = Some(Location { line, column });
            assert_eq!((&*error.path, error.location), (expected, location), "{path}");
        }
    }
}
