//! Looks into a state directory that another process may be using, and changes nothing in it.
//!
//! The lock is not touched: whoever held it, if only for an instant, would make a start of the process fail. Whether a
//! process holds it is asked of the system instead. A process that saves removes logs, so a log may be gone between the
//! list and the reading; then everything is read again.

use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use super::disk::{FolderDisk, StateDisk, open_regular};
use super::error::StateError;
use super::folder::{KEY_SECRET, LOCK, READABLE, fingerprint, has_logs, io_error, read_secret};
use super::recovery::{Damage, Recovery, ScanError, StateSummary};

/// How often a directory is read again when a log was removed meanwhile. Logs are removed when a round is complete, so
/// that this happens rarely.
const MAX_READINGS: u32 = 5;

/// Whether a process uses a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryUse {
    /// The process of this number.
    By(u32),
    /// None that can be seen from here.
    Unused,
    /// The system does not tell.
    Unknown,
}

/// What was found of the secret of the keys. It is never shown.
#[derive(Debug)]
pub enum SecretFinding {
    /// The logs were written with it.
    Fits,
    /// The logs were written with another one.
    Other,
    /// There is none.
    Missing,
    /// It cannot be used.
    Unusable(StateError),
}

/// What was found in a directory.
pub struct Inspection {
    recovery: Recovery,
    secret: SecretFinding,
    usage: DirectoryUse,
}

impl Inspection {
    /// Reads all logs of a directory, and passes what was found to `read`, which may read the frames.
    ///
    /// # Errors
    /// [`StateError::NoState`], [`StateError::Version`], and [`StateError::Io`].
    pub fn with<T>(
        folder: &Path,
        mut read: impl FnMut(&Self) -> io::Result<T>,
    ) -> Result<T, StateError> {
        let cure = "run this as the user that the directory belongs to";
        let mut readings = 0;
        loop {
            readings += 1;
            let found = Self::scan(folder)?;
            let result = found.and_then(|found| read(&found));
            match result {
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && readings < MAX_READINGS => {}
                result => return result.map_err(io_error(folder, cure)),
            }
        }
    }

    /// The outer errors are final; the inner ones may come from a log that was removed.
    fn scan(folder: &Path) -> Result<io::Result<Self>, StateError> {
        let disk: Arc<dyn StateDisk> = Arc::new(FolderDisk::new(folder.to_owned()));
        check_folder(folder, disk.as_ref())?;
        // Asked before reading: a log that grows while it is read does so at its end only.
        let usage = usage(folder);
        let (known, mut secret) = match read_secret(folder) {
            Ok(Some(secret)) => (Some(fingerprint(&secret)), SecretFinding::Fits),
            Ok(None) => (None, SecretFinding::Missing),
            Err(error) => (None, SecretFinding::Unusable(error)),
        };
        let mut scanned = Recovery::scan(Arc::clone(&disk), known);
        if matches!(scanned, Err(ScanError::OtherSecret)) {
            secret = SecretFinding::Other;
            scanned = Recovery::scan(disk, None);
        }
        match scanned {
            Ok(recovery) => Ok(Ok(Self { recovery, secret, usage })),
            Err(ScanError::Io(error)) => Ok(Err(error)),
            Err(error) => Err(error.at(folder)),
        }
    }

    /// What the logs hold.
    pub const fn summary(&self) -> &StateSummary {
        self.recovery.summary()
    }

    /// What can be restored.
    pub const fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// What was found of the secret.
    pub const fn secret(&self) -> &SecretFinding {
        &self.secret
    }

    /// Whether a process uses the directory.
    pub const fn usage(&self) -> DirectoryUse {
        self.usage
    }

    /// Ranges that cannot be read. The end of the log that a process is writing now is none.
    pub fn damage(&self) -> impl Iterator<Item = &Damage> {
        let summary = self.summary();
        let written = match self.usage {
            DirectoryUse::By(_) => summary.logs.last().map(|log| log.number),
            DirectoryUse::Unused | DirectoryUse::Unknown => None,
        };
        let is_being_written = move |damage: &Damage| damage.is_tail && written == Some(damage.log);
        summary.damage.iter().filter(move |damage| !is_being_written(damage))
    }
}

/// Checks that a directory may be one of tollgate's.
fn check_folder(folder: &Path, disk: &dyn StateDisk) -> Result<(), StateError> {
    let no_state = |problem| StateError::NoState { folder: folder.to_owned(), problem };
    let metadata = match fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(no_state("there is no such directory"));
        }
        metadata => metadata.map_err(io_error(folder, READABLE))?,
    };
    if !metadata.is_dir() {
        return Err(no_state("this is no directory"));
    }
    let user = rustix::process::geteuid().as_raw();
    let names = match disk.names() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let path = folder.to_owned();
            return Err(StateError::Foreign { path, owner: metadata.uid(), user });
        }
        names => names.map_err(io_error(folder, READABLE))?,
    };
    let has_secret = names.iter().any(|name| name == KEY_SECRET);
    let has_logs = has_logs(disk).map_err(io_error(folder, READABLE))?;
    match has_secret || has_logs {
        true => Ok(()),
        false => Err(no_state("it holds no state: neither logs nor a key-secret")),
    }
}

/// Whether a process uses a directory, as far as this one can see. Processes of other PID name spaces may be hidden.
fn usage(folder: &Path) -> DirectoryUse {
    let path = folder.join(LOCK);
    let lock = match fs::metadata(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return DirectoryUse::Unused,
        Err(_) => return DirectoryUse::Unknown,
    };
    // The file names the last holder. It holds the lock as long as it has the file open.
    if let Some(process) = named_holder(&path).filter(|process| has_open(*process, &lock)) {
        return DirectoryUse::By(process);
    }
    match fs::read_to_string("/proc/locks") {
        Ok(locks) => holder_in(&locks, &lock).map_or(DirectoryUse::Unused, DirectoryUse::By),
        Err(_) => DirectoryUse::Unknown,
    }
}

fn named_holder(path: &Path) -> Option<u32> {
    let mut text = String::new();
    open_regular(path).ok()?.take(20).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn has_open(process: u32, file: &Metadata) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    let is_file = |entry: io::Result<fs::DirEntry>| {
        let opened = entry.and_then(|entry| fs::metadata(entry.path()));
        opened.is_ok_and(|opened| (opened.dev(), opened.ino()) == (file.dev(), file.ino()))
    };
    entries.into_iter().any(is_file)
}

/// The process that holds a lock of this file, in the text of `/proc/locks` (proc_locks(5)).
fn holder_in(locks: &str, file: &Metadata) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", file.ino());
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_lock = words.next() == Some("FLOCK");
        let process = words.nth(2)?;
        (is_lock && words.next() == Some(&*file)).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_its_file() {
        let file = fs::metadata("/proc/self/exe").unwrap();
        let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
        let named = format!("{major:02x}:{minor:02x}:{}", file.ino());
        let locks = format!(
            "1: POSIX  ADVISORY  WRITE 5 {named} 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 6 {named} 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 7 00:00:1 0 EOF\n\n4: FLOCK\n5: FLOCK  ADVISORY  WRITE 8 {named} 0 EOF\n"
        );
        assert_eq!(holder_in(&locks, &file), Some(8));
        assert_eq!(holder_in("", &file), None);
    }
}
