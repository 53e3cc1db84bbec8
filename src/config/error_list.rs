//! The files of a configuration, and the mistakes in them, in the order in which they are found.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::source::FileIndex;

/// A file of a configuration.
#[derive(Debug)]
pub(super) struct SourceFile {
    /// As the caller gave it, or as it was found.
    pub(super) name: String,
    /// Where relative names of other files start.
    pub(super) folder: PathBuf,
}

impl SourceFile {
    /// A configuration's own file.
    pub(super) fn main(file: &Path) -> Self {
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        Self { name: file.display().to_string(), folder }
    }
}

/// The mistakes that were found so far, and the files that they are in.
#[derive(Debug)]
pub(super) struct ErrorList<'f> {
    files: &'f [SourceFile],
    errors: RefCell<Vec<(FileIndex, ConfigError)>>,
}

impl<'f> ErrorList<'f> {
    /// `files`: the file itself, and those that it includes.
    pub(super) const fn new(files: &'f [SourceFile]) -> Self {
        Self { files, errors: RefCell::new(Vec::new()) }
    }

    pub(super) fn file(&self, index: FileIndex) -> &'f SourceFile {
        &self.files[index]
    }

    pub(super) fn push(&self, file: FileIndex, error: ConfigError) {
        self.errors.borrow_mut().push((file, error));
    }

    /// Forgets the mistakes that are not to be kept.
    pub(super) fn retain(&self, keep: impl Fn(FileIndex, &ConfigError) -> bool) {
        self.errors.borrow_mut().retain(|(file, error)| keep(*file, error));
    }

    /// All mistakes in the order of the files and their lines.
    pub(super) fn into_sorted(self) -> Vec<ConfigError> {
        let mut errors = self.errors.into_inner();
        errors.sort_by(|(a_file, a), (b_file, b)| {
            let key = |error: &ConfigError| error.location;
            (a_file, key(a)).cmp(&(b_file, key(b))).then_with(|| a.path.cmp(&b.path))
        });
        errors.dedup();
        errors.into_iter().map(|(_, error)| error).collect()
    }
}
