//! Opens a state directory: whose it is, who uses it, and with which secret.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use siphasher::sip::SipHasher13;

use super::disk::{FolderDisk, StateDisk, create_folder, open_regular};
use super::error::StateError;
use super::log::{StateLog, number_of};
use super::progress::StateMetrics;
use super::recovery::{Recovery, StateSummary};

/// Bytes of the secret of the keys.
pub const KEY_SECRET_BYTES: usize = 16;

/// Starts within one second that move files away.
const MAX_IGNORED: u32 = 100;

pub(super) const LOCK: &str = "lock";
pub(super) const KEY_SECRET: &str = "key-secret";

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

impl StateDirectory {
    /// Opens a directory, and makes it if it does not exist. With `ignore`, what it holds is first moved into a folder inside it.
    ///
    /// # Errors
    /// Every [`StateError`]; the logs and the secret are then as they were, unless `ignore` has moved them.
    pub fn open(folder: &Path, ignore: bool, date_secs: u64) -> Result<Self, StateError> {
        create_folder(folder).map_err(io_error(folder, "create it, or name another directory"))?;
        check_owner(folder)?;
        let lock = take_lock(folder)?;
        if ignore {
            move_old_files(folder, date_secs, "the state is ignored")?;
        }
        let secret = match read_secret(folder)? {
            Some(secret) => secret,
            None if has_logs(&FolderDisk::new(folder.to_owned()))
                .map_err(io_error(folder, READABLE))? =>
            {
                let problem = "its key-secret is missing, so its keys cannot be found again";
                return Err(StateError::Secret { folder: folder.to_owned(), problem });
            }
            None => create_secret(folder)?,
        };
        Self::with_secret(folder, lock, secret)
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
        Self::check_for(folder, secret, other)?;
        let lock = take_lock(folder)?;
        let is_other = matches!(check_secret(folder, secret), Err(StateError::Secret { .. }));
        if is_other && other == OtherSecret::IsIgnored {
            move_old_files(folder, date_secs, "the state is ignored")?;
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
        let disk = held_disk(folder, secret, &lock);
        let recovery = Recovery::scan(disk, Some(fingerprint(&secret)));
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
        create_folder(folder).map_err(io_error(folder, "create it, or name another directory"))?;
        check_owner(folder)?;
        match check_secret(folder, secret) {
            Err(StateError::Secret { .. }) if other == OtherSecret::IsIgnored => Ok(()),
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

/// The lock of a state directory. Dropping it lets another process use the directory.
#[derive(Debug)]
pub struct StateLock {
    _file: HeldLock,
}

/// The lock file. It is another one when somebody has removed the directory.
type HeldLock = Arc<Mutex<File>>;

pub(super) const READABLE: &str = "make it readable for tollgate's user";

pub(super) fn io_error<'p>(
    path: &'p Path,
    cure: &'static str,
) -> impl Fn(io::Error) -> StateError + 'p {
    move |error| StateError::Io { path: path.to_owned(), error, cure }
}

/// Checks that nobody else may use a directory. An empty one is closed to others.
fn check_owner(folder: &Path) -> Result<(), StateError> {
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

fn take_lock(folder: &Path) -> Result<File, StateError> {
    let path = folder.join(LOCK);
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
    Ok(file)
}

/// The files of a directory that this process holds, and holds again when somebody removes it.
fn held_disk(folder: &Path, secret: [u8; KEY_SECRET_BYTES], lock: &HeldLock) -> Arc<dyn StateDisk> {
    let lock = Arc::downgrade(lock);
    let restore = move |folder: &Path| match lock.upgrade() {
        Some(lock) => {
            hold_again(folder, &secret, &mut lock.lock()).map_err(|error| match &error {
                // A full disk stays one.
                StateError::Io { error: cause, .. } => {
                    io::Error::new(cause.kind(), error.to_string())
                }
                _ => io::Error::other(error),
            })
        }
        None => create_folder(folder).map(|()| false),
    };
    Arc::new(FolderDisk::held(folder.to_owned(), Box::new(restore), move_away))
}

/// Makes a directory again that somebody has removed while it was held, as far as it is gone: without its secret the next
/// start would be refused, and without its lock another process would use it too. Returns whether the lock had to be taken again.
fn hold_again(
    folder: &Path,
    secret: &[u8; KEY_SECRET_BYTES],
    lock: &mut File,
) -> Result<bool, StateError> {
    create_folder(folder).map_err(io_error(folder, "create it"))?;
    check_owner(folder)?;
    let path = folder.join(LOCK);
    let held = lock.metadata().map_err(io_error(&path, READABLE))?;
    let is_held = fs::metadata(&path)
        .is_ok_and(|named| InodeIdentity::of(&named) == InodeIdentity::of(&held));
    if !is_held {
        *lock = take_lock(folder)?;
    }
    match read_secret(folder)? {
        None => write_secret(folder, secret).map(|()| !is_held),
        Some(found) if found == *secret => Ok(!is_held),
        Some(_) => {
            let problem = "its key-secret was replaced while it was used";
            Err(StateError::Secret { folder: folder.to_owned(), problem })
        }
    }
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
fn check_secret(folder: &Path, secret: &[u8; KEY_SECRET_BYTES]) -> Result<(), StateError> {
    match read_secret(folder)? {
        Some(found) if found != *secret => {
            let problem =
                "its keys are hashed with another secret than those of the running process";
            Err(StateError::Secret { folder: folder.to_owned(), problem })
        }
        Some(_) | None => Ok(()),
    }
}

/// Makes a secret, on the disk before anything is hashed with it.
fn create_secret(folder: &Path) -> Result<[u8; KEY_SECRET_BYTES], StateError> {
    let mut secret = [0; KEY_SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(StateError::Random)?;
    write_secret(folder, &secret)?;
    Ok(secret)
}

fn write_secret(folder: &Path, secret: &[u8; KEY_SECRET_BYTES]) -> Result<(), StateError> {
    let (path, new) = (folder.join(KEY_SECRET), folder.join("key-secret.new"));
    let write = || -> io::Result<()> {
        // What a start that failed has left.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        writeln!(file, "{:032x}", u128::from_be_bytes(*secret))?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(io_error(&path, "make room, and the directory writable for tollgate's user"))
}

/// Moves what the directory holds into a folder inside it.
fn move_old_files(folder: &Path, date_secs: u64, why: &str) -> Result<(), StateError> {
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
fn create_ignored(folder: &Path, date_secs: u64) -> io::Result<PathBuf> {
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

/// Moves logs away that this process has not written, in the directory that it has had to make again.
fn move_away(folder: &Path, names: &[String]) -> io::Result<()> {
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

/// Tells two secrets apart, and does not tell the secret.
pub(super) fn fingerprint(secret: &[u8; KEY_SECRET_BYTES]) -> u64 {
    SipHasher13::new_with_key(secret).hash(b"tollgate state directory")
}
