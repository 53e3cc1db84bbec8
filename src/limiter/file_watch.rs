//! Notices that a policy file has to be read: it, or a file that it includes, has changed and is no longer being written,
//! or its last reload failed.
//!
//! A version counts as read only when its reload has ended. A reload that failed is tried again: the cause may pass without
//! a change of a file (a file that the policy names is back, a disk answers again). Nothing here reads the policy or knows the
//! time; the caller looks at regular times.

use std::path::PathBuf;

use crate::config::{ConfigVersion, VersionWatch};

/// The most looks between two attempts to read the same version.
const MAX_PAUSE: u32 = 16;

/// A policy file with what it includes, and the version of them that was read last.
#[derive(Debug)]
pub struct FileWatch {
    versions: VersionWatch,
    read: Option<ConfigVersion>,
    /// The version at the last look.
    seen: Option<ConfigVersion>,
    /// Why the last reload failed; `None` if it did not.
    failure: Option<ReloadFailure>,
}

/// A reload that failed.
#[derive(Debug)]
struct ReloadFailure {
    message: String,
    /// Looks between this attempt and the next one.
    pause: u32,
    /// Looks that remain until the next attempt.
    remaining: u32,
}

impl FileWatch {
    /// The present version counts as read.
    pub(crate) fn new(file: PathBuf) -> Self {
        let versions = VersionWatch::new(file);
        let mut watch = Self { versions, read: None, seen: None, failure: None };
        watch.read = watch.versions.version();
        watch.seen = watch.read;
        watch
    }

    /// Looks at the file. Returns the version to read now: another one than was read, or one whose reload failed and is
    /// to be tried again. It is the same as at the last look, so that nobody is in the middle of writing it. A file that
    /// is missing is waited for.
    pub(crate) fn look(&mut self) -> Option<ConfigVersion> {
        let version = self.versions.version();
        let is_still = std::mem::replace(&mut self.seen, version) == version;
        let version = version.filter(|_| is_still)?;
        if self.read != Some(version) {
            return Some(version);
        }
        let failure = self.failure.as_mut()?;
        failure.remaining = failure.remaining.saturating_sub(1);
        (failure.remaining == 0).then_some(version)
    }

    /// Records that a version is in force.
    pub(crate) fn succeeded(&mut self, version: ConfigVersion) {
        self.read = Some(version);
        self.failure = None;
    }

    /// Records that another policy is in force now: a version that failed is not tried again. A change of the file is
    /// still read.
    pub(crate) fn superseded(&mut self) {
        self.failure = None;
    }

    /// Records why a version could not be reloaded. It is tried again, with pauses that double. Returns whether to report
    /// it: each version is reported once, and once more if the reason is another one.
    pub(crate) fn failed(&mut self, version: ConfigVersion, message: &str) -> bool {
        let is_same_version = self.read == Some(version);
        self.read = Some(version);
        let before = self.failure.take().filter(|_| is_same_version);
        let pause = before.as_ref().map_or(1, |before| (before.pause * 2).min(MAX_PAUSE));
        let is_new = before.is_none_or(|before| before.message != message);
        let message = message.to_owned();
        self.failure = Some(ReloadFailure { message, pause, remaining: pause });
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Watched {
        watch: FileWatch,
        file: PathBuf,
        _folder: tempfile::TempDir,
    }

    fn watched() -> Watched {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.yaml");
        fs::write(&file, "a").unwrap();
        Watched { watch: FileWatch::new(file.clone()), file, _folder: folder }
    }

    impl Watched {
        /// Looks, and records each attempt as `outcome` says. Returns whether each look was an attempt.
        fn looks(&mut self, looks: usize, outcome: Result<(), &str>) -> Vec<bool> {
            let look = |_| {
                let version = self.watch.look();
                if let Some(version) = version {
                    match outcome {
                        Ok(()) => self.watch.succeeded(version),
                        Err(message) => drop(self.watch.failed(version, message)),
                    }
                }
                version.is_some()
            };
            (0..looks).map(look).collect()
        }
    }

    #[test]
    fn a_change_is_read_once_and_when_the_file_is_still() {
        let mut watched = watched();
        assert_eq!(watched.looks(2, Ok(())), [false, false]);
        fs::write(&watched.file, "ab").unwrap();
        assert_eq!(watched.looks(1, Ok(())), [false]);
        fs::write(&watched.file, "abc").unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
        fs::remove_file(&watched.file).unwrap();
        assert_eq!(watched.looks(2, Ok(())), [false, false]);
        fs::write(&watched.file, "abcd").unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
    }

    #[test]
    fn a_failed_reload_is_tried_again_with_longer_and_longer_pauses() {
        let mut watched = watched();
        fs::write(&watched.file, "ab").unwrap();
        let attempts = watched.looks(60, Err("broken"));
        let at: Vec<usize> = (0..60).filter(|look| attempts[*look]).collect();
        assert_eq!(at, [1, 2, 4, 8, 16, 32, 48]);
        assert_eq!(watched.looks(16, Ok(())).iter().filter(|attempt| **attempt).count(), 1);
        assert_eq!(watched.looks(40, Ok(())), [false; 40], "it is in force");
    }

    #[test]
    fn a_version_that_failed_is_not_tried_over_a_later_policy() {
        let mut watched = watched();
        fs::write(&watched.file, "ab").unwrap();
        assert_eq!(watched.looks(2, Err("broken")), [false, true]);
        watched.watch.superseded();
        assert_eq!(watched.looks(40, Ok(())), [false; 40]);
        fs::write(&watched.file, "abc").unwrap();
        assert_eq!(watched.looks(2, Ok(())), [false, true]);
    }

    #[test]
    fn a_change_ends_the_pause() {
        let mut watched = watched();
        fs::write(&watched.file, "ab").unwrap();
        watched.looks(20, Err("broken"));
        fs::write(&watched.file, "abc").unwrap();
        assert_eq!(watched.looks(3, Err("broken")), [false, true, true]);
    }

    #[test]
    fn an_attempt_without_an_outcome_is_no_reading() {
        let mut watched = watched();
        fs::write(&watched.file, "ab").unwrap();
        assert!(watched.watch.look().is_none());
        assert!(watched.watch.look().is_some());
        assert!(watched.watch.look().is_some());
    }

    #[test]
    fn each_version_is_reported_once_for_each_reason() {
        let mut watched = watched();
        let mut version = || {
            let found = watched.watch.look();
            found.or_else(|| watched.watch.look()).unwrap()
        };
        fs::write(&watched.file, "ab").unwrap();
        let first = version();
        fs::write(&watched.file, "abc").unwrap();
        let second = version();
        let reports = [
            (first, "broken", true),
            (first, "broken", false),
            (first, "missing", true),
            (second, "missing", true),
            (second, "missing", false),
        ];
        for (version, message, expected) in reports {
            assert_eq!(watched.watch.failed(version, message), expected, "{message}");
        }
    }

    #[test]
    fn a_change_of_an_included_file_is_a_change() {
        let mut watched = watched();
        let folder = watched.file.with_file_name("limits.d");
        fs::create_dir(&folder).unwrap();
        fs::write(&watched.file, "include: [limits.d/*.yaml]").unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
        fs::write(folder.join("a.yaml"), "a").unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
        fs::write(folder.join("a.yaml"), "ab").unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
        fs::write(folder.join("a.txt"), "other").unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, false, false]);
        fs::remove_file(folder.join("a.yaml")).unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_of_the_same_size_and_time_that_replaces_it_is_a_change() {
        let mut watched = watched();
        let modified = fs::metadata(&watched.file).unwrap().modified().unwrap();
        let next = watched.file.with_extension("next");
        fs::write(&next, "b").unwrap();
        fs::File::options().write(true).open(&next).unwrap().set_modified(modified).unwrap();
        fs::rename(&next, &watched.file).unwrap();
        assert_eq!(watched.looks(3, Ok(())), [false, true, false]);
    }
}
