//! The version of a configuration's files, by which a watcher sees that one of them has changed. It reads the file itself
//! only to know what it includes, and only where it has changed.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use super::files::FileVersion;
use super::include::{IncludePattern, patterns_of};

/// Differs between two versions of a configuration: of its file, or of the files that it includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConfigVersion {
    main: FileVersion,
    /// A hash of the names and versions of the included files.
    included: u64,
}

/// Looks at the files of a configuration.
#[derive(Debug)]
pub(crate) struct VersionWatch {
    file: PathBuf,
    /// The version of the file whose patterns are known.
    main: Option<FileVersion>,
    patterns: Vec<IncludePattern>,
}

impl VersionWatch {
    pub(crate) const fn new(file: PathBuf) -> Self {
        Self { file, main: None, patterns: Vec::new() }
    }

    /// The present version; `None` while there is no file.
    pub(crate) fn version(&mut self) -> Option<ConfigVersion> {
        let main = FileVersion::of_name(&self.file)?;
        // What comes through a pipe can be read once.
        if self.main != Some(main) && main != FileVersion::Special {
            self.main = Some(main);
            self.patterns = patterns_of(&self.file);
        }
        let mut hasher = DefaultHasher::new();
        for pattern in &self.patterns {
            for file in pattern.files().unwrap_or_default() {
                hash_file(&file, &mut hasher);
            }
        }
        Some(ConfigVersion { main, included: hasher.finish() })
    }
}

fn hash_file(file: &Path, hasher: &mut DefaultHasher) {
    file.hash(hasher);
    FileVersion::of_name(file).hash(hasher);
}
