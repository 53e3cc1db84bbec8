//! Notices that a policy file has changed and is no longer being written.

use std::path::PathBuf;
use std::time::SystemTime;

/// A file and the version of it that was read last.
#[derive(Debug)]
pub(super) struct FileWatch {
    file: PathBuf,
    read: Option<PolicyVersion>,
    /// The version at the last look.
    seen: Option<PolicyVersion>,
}

/// What differs between two versions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PolicyVersion {
    modified: SystemTime,
    bytes: u64,
}

impl FileWatch {
    /// The present version counts as read.
    pub(super) fn new(file: PathBuf) -> Self {
        let mut watch = Self { file, read: None, seen: None };
        watch.read = watch.version();
        watch.seen = watch.read;
        watch
    }

    /// Looks at the file. Returns whether to read it: it is another version than the one that was read, and the same as
    /// at the last look, so that nobody is in the middle of writing it. The version then counts as read. A file that is
    /// missing is waited for.
    pub(super) fn take_change(&mut self) -> bool {
        let version = self.version();
        let is_still = std::mem::replace(&mut self.seen, version) == version;
        let changed = is_still && version.is_some() && version != self.read;
        if changed {
            self.read = version;
        }
        changed
    }

    fn version(&self) -> Option<PolicyVersion> {
        let found = std::fs::metadata(&self.file).ok()?;
        Some(PolicyVersion { modified: found.modified().ok()?, bytes: found.len() })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_change_is_taken_once_and_when_the_file_is_still() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.yaml");
        fs::write(&file, "a").unwrap();
        let mut watch = FileWatch::new(file.clone());
        let mut looks = |expected: &[bool]| {
            let seen: Vec<bool> = expected.iter().map(|_| watch.take_change()).collect();
            assert_eq!(seen, expected);
        };
        looks(&[false, false]);
        fs::write(&file, "ab").unwrap();
        looks(&[false]);
        fs::write(&file, "abc").unwrap();
        looks(&[false, true, false]);
        fs::remove_file(&file).unwrap();
        looks(&[false, false]);
        fs::write(&file, "abcd").unwrap();
        looks(&[false, true, false]);
    }
}
