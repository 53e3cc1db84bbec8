//! Opens a state directory: whose it is, who uses it, and with which secret.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::FolderDisk;
use super::error::StateError;
use super::folder::{
    KEY_SECRET_BYTES, NewSecret, READABLE, check_owner, check_secret, fingerprint, has_logs,
    io_error, make_folder, move_old_files, random_secret, read_secret, take_lock, write_secret,
};
use super::held_folder::{HeldFolder, HeldLock};
use super::log::StateLog;
use super::progress::StateMetrics;
use super::recovery::{Recovery, StateSummary};

/// A state directory that this process holds.
pub struct StateDirectory {
    secret: [u8; KEY_SECRET_BYTES],
    recovery: Recovery,
    /// Held as long as the process uses the directory.
    lock: HeldLock,
}

/// What becomes of a directory whose keys are hashed with another secret than those of the process before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherSecret {
    /// It is refused.
    IsRefused,
    /// What it holds is moved into a folder inside it.
    IsIgnored,
}

/// What becomes of logs in a directory whose counts come from the process before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundLogs {
    /// They are older than the counts, and moved into a folder inside the directory. That process still counts, so nothing is
    /// lost if this one ends before it has saved everything.
    AreMoved,
    /// That process may have written them, and does not count any more: they stay until everything is saved anew.
    Stay,
}

impl StateDirectory {
    /// Opens a directory, and makes it if it does not exist. With `ignore`, what it holds is first moved into a folder inside it.
    ///
    /// # Errors
    /// Every [`StateError`]; the logs and the secret are then as they were, unless `ignore` has moved them.
    pub fn open(folder: &Path, ignore: bool, date_secs: u64) -> Result<Self, StateError> {
        make_folder(folder)?;
        check_owner(folder)?;
        let (lock, is_new_lock) = take_lock(folder)?;
        if ignore {
            // Before anything is moved: a full disk would have no room for it afterwards, and the start would fail.
            let new = NewSecret::prepare(folder, &random_secret()?)?;
            move_old_files(folder, date_secs, "the state is ignored")?;
            new.put()?;
        }
        let secret = match read_secret(folder)? {
            Some(secret) => secret,
            None if has_logs(&FolderDisk::new(folder.to_owned()))
                .map_err(io_error(folder, READABLE))? =>
            {
                let problem = "its key-secret is missing, so its keys cannot be found again";
                return Err(StateError::Secret { folder: folder.to_owned(), problem });
            }
            None => {
                // On the disk before anything is hashed with it.
                let secret = random_secret()?;
                write_secret(folder, &secret)?;
                secret
            }
        };
        let mut directory = Self::with_secret(folder, lock, secret)?;
        if is_new_lock {
            // Somebody has removed the lock, and whoever held it may not have noticed yet and write on.
            directory.recovery.expect_others();
        }
        Ok(directory)
    }

    /// Opens a directory whose counts come from the process before, with keys hashed with its `secret`. A directory without a
    /// secret gets this one. `found`: what becomes of its logs.
    ///
    /// # Errors
    /// Every [`StateError`]; another secret too, unless it is ignored.
    pub fn open_for_handover(
        folder: &Path,
        secret: &[u8; KEY_SECRET_BYTES],
        (found, other): (FoundLogs, OtherSecret),
        date_secs: u64,
    ) -> Result<Self, StateError> {
        LockedFolder::lock(folder, secret, other)?.open(found, date_secs)
    }

    fn open_locked(
        locked: LockedFolder,
        found: FoundLogs,
        date_secs: u64,
    ) -> Result<Self, StateError> {
        let LockedFolder { folder, secret, other, lock } = locked;
        let (folder, secret) = (folder.as_path(), &secret);
        let is_other = matches!(check_secret(folder, secret), Err(StateError::Secret { .. }));
        if is_other && other == OtherSecret::IsIgnored {
            let new = NewSecret::prepare(folder, secret)?;
            move_old_files(folder, date_secs, "the state is ignored")?;
            new.put()?;
        } else if found == FoundLogs::AreMoved {
            let why = "the running process does not hold this directory, and what was in it may be older than the counts";
            move_old_files(folder, date_secs, why)?;
        }
        if read_secret(folder)?.is_none() {
            write_secret(folder, secret)?;
        }
        Self::with_secret(folder, lock, *secret)
    }

    /// Reads the logs of a locked directory.
    fn with_secret(
        folder: &Path,
        lock: File,
        secret: [u8; KEY_SECRET_BYTES],
    ) -> Result<Self, StateError> {
        let lock = Arc::new(Mutex::new(lock));
        let disk = FolderDisk::held(folder.to_owned(), Box::new(HeldFolder::new(secret, &lock)));
        let recovery = Recovery::scan(Arc::new(disk), Some(fingerprint(&secret)));
        let recovery = recovery.map_err(|error| error.at(folder))?;
        Ok(Self { secret, recovery, lock })
    }

    /// Whether [`StateDirectory::open_for_handover`] can succeed once nobody else uses the directory. It is made if it
    /// does not exist.
    ///
    /// # Errors
    /// As there.
    pub fn check_for(
        folder: &Path,
        secret: &[u8; KEY_SECRET_BYTES],
        other: OtherSecret,
    ) -> Result<(), StateError> {
        make_folder(folder)?;
        check_owner(folder)?;
        match check_secret(folder, secret) {
            // The running process would hold it with its own secret, so whoever holds it is another one: its files stay.
            Err(StateError::Secret { .. }) if other == OtherSecret::IsIgnored => {
                take_lock(folder).map(drop)
            }
            checked => checked,
        }
    }

    /// The secret that its keys are hashed with.
    pub const fn secret(&self) -> &[u8; KEY_SECRET_BYTES] {
        &self.secret
    }

    /// What it holds.
    pub const fn summary(&self) -> &StateSummary {
        self.recovery.summary()
    }

    /// What can be restored.
    pub const fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The logs, to go on writing, and the lock, to be kept as long as they are written.
    pub fn into_log(self, metrics: Arc<StateMetrics>) -> (StateLog, StateLock) {
        let log = self.recovery.into_log(fingerprint(&self.secret), metrics);
        (log, StateLock { _file: self.lock })
    }
}

/// A directory that is locked and in which nothing was changed. Dropping it gives it back as it is.
pub struct LockedFolder {
    folder: PathBuf,
    secret: [u8; KEY_SECRET_BYTES],
    other: OtherSecret,
    lock: File,
}

impl LockedFolder {
    /// Locks a directory for [`StateDirectory::open_for_handover`].
    ///
    /// # Errors
    /// As there.
    pub fn lock(
        folder: &Path,
        secret: &[u8; KEY_SECRET_BYTES],
        other: OtherSecret,
    ) -> Result<Self, StateError> {
        StateDirectory::check_for(folder, secret, other)?;
        let (lock, _) = take_lock(folder)?;
        Ok(Self { folder: folder.to_owned(), secret: *secret, other, lock })
    }

    /// Opens it. The process before must be known to serve on, and not to hold it: `found` is about its logs.
    ///
    /// # Errors
    /// As [`StateDirectory::open_for_handover`].
    pub fn open(self, found: FoundLogs, date_secs: u64) -> Result<StateDirectory, StateError> {
        StateDirectory::open_locked(self, found, date_secs)
    }
}

/// The lock of a state directory. Dropping it lets another process use the directory.
#[derive(Debug)]
pub struct StateLock {
    _file: HeldLock,
}
