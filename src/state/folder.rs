//! What a state directory holds besides its logs: the lock, the secret of the keys, and whose all of it is.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use siphasher::sip::SipHasher13;

use super::disk::{FolderDisk, StateDisk, create_folder, open_regular};
use super::error::StateError;
use super::log::number_of;

/// Bytes of the secret of the keys.
pub const KEY_SECRET_BYTES: usize = 16;

/// Starts within one second that move files away.
const MAX_IGNORED: u32 = 100;

pub(super) const LOCK: &str = "lock";
pub(super) const KEY_SECRET: &str = "key-secret";

pub(super) const READABLE: &str = "make it readable for tollgate's user";

pub(super) fn io_error<'p>(
    path: &'p Path,
    cure: &'static str,
) -> impl Fn(io::Error) -> StateError + 'p {
    move |error| StateError::Io { path: path.to_owned(), error, cure }
}

pub(super) fn make_folder(folder: &Path) -> Result<(), StateError> {
    let cure = match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => "it is a file; name a directory in store.embedded.state",
        _ => "create it, or name another directory",
    };
    create_folder(folder).map_err(io_error(folder, cure))
}

/// Checks that nobody else may use a directory. An empty one is closed to others.
pub(super) fn check_owner(folder: &Path) -> Result<(), StateError> {
    let metadata = fs::metadata(folder).map_err(io_error(folder, READABLE))?;
    let mode = metadata.mode() & 0o777;
    let user = rustix::process::geteuid().as_raw();
    if (metadata.uid() != user || mode & 0o077 != 0) && is_of_others(folder) {
        return Err(StateError::NotOwn { folder: folder.to_owned() });
    }
    if metadata.uid() != user {
        return Err(StateError::Owner { path: folder.to_owned(), owner: metadata.uid(), user });
    }
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let mut entries = fs::read_dir(folder).map_err(io_error(folder, READABLE))?;
    if entries.next().is_some() {
        return Err(StateError::Open { path: folder.to_owned(), mode });
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
        .map_err(io_error(folder, "run: chmod 700 on it"))
}

/// Whether a directory holds something, and nothing of tollgate.
fn is_of_others(folder: &Path) -> bool {
    let names = FolderDisk::new(folder.to_owned()).names();
    names.is_ok_and(|names| {
        let is_own =
            |name: &String| name == KEY_SECRET || name == LOCK || number_of(name).is_some();
        !names.is_empty() && !names.iter().any(is_own)
    })
}

/// Takes the lock. Returns also whether there was no lock file.
pub(super) fn take_lock(folder: &Path) -> Result<(File, bool), StateError> {
    let path = folder.join(LOCK);
    let is_new = !path.exists();
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut file =
        opened.map_err(io_error(&path, "make the directory writable for tollgate's user"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // What cannot be read is not named.
            let _ = io::Read::by_ref(&mut file).take(20).read_to_string(&mut holder);
            let holder = holder.chars().filter(char::is_ascii_digit).collect();
            return Err(StateError::InUse { folder: folder.to_owned(), holder });
        }
        Err(error) => {
            let cure = "the file system has no locks; put the state on a local disk";
            return Err(io_error(&path, cure)(error.into()));
        }
    }
    let named = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    // The number helps people only; on a full disk it is left out.
    if let Err(error) = named {
        log::debug!("{}: {error}", path.display());
    }
    Ok((file, is_new))
}

pub(super) fn has_logs(disk: &dyn StateDisk) -> io::Result<bool> {
    Ok(disk.names()?.iter().any(|name| number_of(name).is_some()))
}

/// The secret of the keys in a directory, for whoever reads a log with their hashes. `None`: there is none yet.
///
/// # Errors
/// It cannot be read, or others can.
pub fn read_key_secret(folder: &Path) -> Result<Option<[u8; KEY_SECRET_BYTES]>, StateError> {
    read_secret(folder)
}

pub(super) fn read_secret(folder: &Path) -> Result<Option<[u8; KEY_SECRET_BYTES]>, StateError> {
    let path = folder.join(KEY_SECRET);
    let metadata = match fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(io_error(&path, READABLE))?,
    };
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(StateError::Open { path, mode });
    }
    let mut text = String::new();
    let file = open_regular(&path).map_err(io_error(&path, READABLE))?;
    file.take(1_024).read_to_string(&mut text).map_err(io_error(&path, READABLE))?;
    match u128::from_str_radix(text.trim(), 16) {
        Ok(secret) if text.trim().len() == 2 * KEY_SECRET_BYTES => Ok(Some(secret.to_be_bytes())),
        _ => {
            let problem = "its key-secret is damaged, so its keys cannot be found again";
            Err(StateError::Secret { folder: folder.to_owned(), problem })
        }
    }
}

/// Checks that a directory has this secret, or none.
pub(super) fn check_secret(
    folder: &Path,
    secret: &[u8; KEY_SECRET_BYTES],
) -> Result<(), StateError> {
    match read_secret(folder)? {
        Some(found) if found != *secret => {
            let problem =
                "its keys are hashed with another secret than those of the running process";
            Err(StateError::Secret { folder: folder.to_owned(), problem })
        }
        Some(_) | None => Ok(()),
    }
}

pub(super) fn random_secret() -> Result<[u8; KEY_SECRET_BYTES], StateError> {
    let mut secret = [0; KEY_SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(StateError::Random)?;
    Ok(secret)
}

pub(super) fn write_secret(
    folder: &Path,
    secret: &[u8; KEY_SECRET_BYTES],
) -> Result<(), StateError> {
    NewSecret::prepare(folder, secret)?.put()
}

/// A secret that is on the disk, and not yet that of its directory.
#[must_use = "it is not the secret of its directory yet"]
pub(super) struct NewSecret<'f> {
    folder: &'f Path,
    path: PathBuf,
}

impl<'f> NewSecret<'f> {
    const CURE: &'static str = "make room, and the directory writable for tollgate's user";

    pub(super) fn prepare(
        folder: &'f Path,
        secret: &[u8; KEY_SECRET_BYTES],
    ) -> Result<Self, StateError> {
        let path = folder.join("key-secret.new");
        let write = || -> io::Result<()> {
            // What a start that failed has left.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            writeln!(file, "{:032x}", u128::from_be_bytes(*secret))?;
            file.sync_all()
        };
        write().map_err(io_error(&path, Self::CURE))?;
        Ok(Self { folder, path })
    }

    pub(super) fn put(self) -> Result<(), StateError> {
        let to = self.folder.join(KEY_SECRET);
        let put = || fs::rename(&self.path, &to).and_then(|()| File::open(self.folder)?.sync_all());
        put().map_err(io_error(&to, Self::CURE))
    }
}

/// Moves what the directory holds into a folder inside it.
pub(super) fn move_old_files(folder: &Path, date_secs: u64, why: &str) -> Result<(), StateError> {
    let names = FolderDisk::new(folder.to_owned()).names().map_err(io_error(folder, READABLE))?;
    let is_state = |name: &&String| *name == KEY_SECRET || number_of(name).is_some();
    let old: Vec<&String> = names.iter().filter(is_state).collect();
    if old.is_empty() {
        return Ok(());
    }
    let cure = "make the directory writable for tollgate's user";
    let ignored = create_ignored(folder, date_secs).map_err(io_error(folder, cure))?;
    let move_all = || -> io::Result<()> {
        for name in old {
            fs::rename(folder.join(name), ignored.join(name))?;
        }
        // What replaces these files must not come to the disk before them.
        File::open(&ignored)?.sync_all()?;
        File::open(folder)?.sync_all()
    };
    move_all().map_err(io_error(&ignored, cure))?;
    log::warn!("{why}; its files are kept in {}", ignored.display());
    Ok(())
}

/// Creates a folder for what is ignored, in which nothing is yet: what another start has moved away must not be replaced.
pub(super) fn create_ignored(folder: &Path, date_secs: u64) -> io::Result<PathBuf> {
    for number in 1..=MAX_IGNORED {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let ignored = folder.join(format!("ignored-{date_secs}{suffix}"));
        match fs::DirBuilder::new().mode(0o700).create(&ignored) {
            Ok(()) => return Ok(ignored),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many folders of this second"))
}

/// Tells two secrets apart, and does not tell the secret.
pub(super) fn fingerprint(secret: &[u8; KEY_SECRET_BYTES]) -> u64 {
    SipHasher13::new_with_key(secret).hash(b"tollgate state directory")
}
