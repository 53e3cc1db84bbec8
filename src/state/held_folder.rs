//! The state directory that a process holds: that it stays so, and becomes so again when somebody removes it or a part of it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::disk::{FolderGuard, create_folder};
use super::error::StateError;
use super::folder::{
    KEY_SECRET, KEY_SECRET_BYTES, LOCK, READABLE, check_owner, create_ignored, io_error,
    read_secret, take_lock, write_secret,
};

/// The lock file. It is another one when somebody has removed the directory.
pub(super) type HeldLock = Arc<Mutex<File>>;

/// How a process holds a directory.
pub(super) struct HeldFolder {
    secret: [u8; KEY_SECRET_BYTES],
    /// Gone when the process uses the directory no more.
    lock: Weak<Mutex<File>>,
}

/// Which file it is, whatever its name.
#[derive(PartialEq, Eq)]
struct InodeIdentity {
    device: u64,
    inode: u64,
}

impl InodeIdentity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl HeldFolder {
    pub(super) fn new(secret: [u8; KEY_SECRET_BYTES], lock: &HeldLock) -> Self {
        Self { secret, lock: Arc::downgrade(lock) }
    }

    /// Whether the directory has its secret; an error if it has another one.
    fn has_secret(&self, folder: &Path) -> Result<bool, StateError> {
        match read_secret(folder)? {
            None => Ok(false),
            Some(found) if found == self.secret => Ok(true),
            Some(_) => {
                let problem = "its key-secret was replaced while it was used";
                Err(StateError::Secret { folder: folder.to_owned(), problem })
            }
        }
    }

    fn hold_again(&self, folder: &Path, lock: &mut File) -> Result<bool, StateError> {
        create_folder(folder).map_err(io_error(folder, "create it"))?;
        check_owner(folder)?;
        let path = folder.join(LOCK);
        let is_held = is_named(lock, folder).map_err(io_error(&path, READABLE))?;
        if !is_held {
            (*lock, _) = take_lock(folder)?;
        }
        match self.has_secret(folder) {
            Ok(true) => {}
            // In a directory that was held all the time, the logs are written with this secret.
            Ok(false) => write_secret(folder, &self.secret)?,
            Err(StateError::Secret { .. } | StateError::Open { .. }) if is_held => {
                write_secret(folder, &self.secret)?;
            }
            Err(error) => return Err(error),
        }
        Ok(!is_held)
    }
}

impl FolderGuard for HeldFolder {
    // Without the lock another process would use the directory too; without the secret the next start would be refused.
    fn check(&self, folder: &Path) -> io::Result<()> {
        let Some(lock) = self.lock.upgrade() else {
            return Ok(());
        };
        let is_missing = |name: &str| {
            io::Error::new(io::ErrorKind::NotFound, format!("{name} was removed while it was used"))
        };
        if !is_named(&lock.lock(), folder)? {
            return Err(is_missing(LOCK));
        }
        match self.has_secret(folder) {
            Ok(true) => Ok(()),
            Ok(false) => Err(is_missing(KEY_SECRET)),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn restore(&self, folder: &Path) -> io::Result<bool> {
        match self.lock.upgrade() {
            Some(lock) => self.hold_again(folder, &mut lock.lock()).map_err(|error| match &error {
                // A full disk stays one.
                StateError::Io { error: cause, .. } => {
                    io::Error::new(cause.kind(), error.to_string())
                }
                _ => io::Error::other(error),
            }),
            None => create_folder(folder).map(|()| false),
        }
    }

    fn move_away(&self, folder: &Path, names: &[String]) -> io::Result<()> {
        // The time of their last change is as good as any, and asks no clock.
        let changed = names.iter().filter_map(|name| fs::metadata(folder.join(name)).ok());
        let latest = changed.map(|found| found.mtime()).max().unwrap_or(0);
        let ignored = create_ignored(folder, u64::try_from(latest).unwrap_or(0))?;
        for name in names {
            fs::rename(folder.join(name), ignored.join(name))?;
        }
        log::warn!(
            "{}: somebody else has written logs there; they are kept in {}",
            folder.display(),
            ignored.display()
        );
        Ok(())
    }
}

/// Whether the lock file is the one that this process has locked.
fn is_named(lock: &File, folder: &Path) -> io::Result<bool> {
    let held = InodeIdentity::of(&lock.metadata()?);
    match fs::metadata(folder.join(LOCK)) {
        Ok(named) => Ok(InodeIdentity::of(&named) == held),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
