//! The few things that a state directory does with files. Tests substitute a disk that tears, loses, reorders
//! and fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

/// The files of one directory, by name.
pub trait StateDisk: Send + Sync {
    /// Creates a file that does not exist, readable by its owner only.
    ///
    /// # Errors
    /// What the system says.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>>;

    /// The names of all files, in any order.
    ///
    /// # Errors
    /// What the system says.
    fn names(&self) -> io::Result<Vec<String>>;

    /// The size of a file in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn size(&self, name: &str) -> io::Result<u64>;

    /// How many bytes can still be written on its volume.
    ///
    /// # Errors
    /// What the system says.
    fn free(&self) -> io::Result<u64>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Brings what another process wrote into a file to the disk.
    ///
    /// # Errors
    /// What the system says.
    fn sync_file(&self, name: &str) -> io::Result<()>;

    /// Brings created and removed names to the disk.
    ///
    /// # Errors
    /// What the system says.
    fn sync_names(&self) -> io::Result<()>;

    /// Makes the directory again if it is gone, with what belongs into it. Returns whether it is another one than before, in
    /// which somebody else may have written.
    ///
    /// # Errors
    /// What the system says.
    fn restore_folder(&self) -> io::Result<bool>;

    /// Checks that the directory still has what belongs into it besides files that are written.
    ///
    /// # Errors
    /// Something is gone, or what the system says. [`StateDisk::restore_folder`] makes it again.
    fn check_folder(&self) -> io::Result<()>;

    /// Moves files away that others have written, and keeps them.
    ///
    /// # Errors
    /// What the system says.
    fn move_away(&self, names: &[String]) -> io::Result<()>;
}

/// A file that is written, by one thread, while another one may bring it to the disk.
pub trait DiskFile: Send + Sync {
    /// Writes at the end.
    ///
    /// # Errors
    /// What the system says. Then a part of the bytes may have been written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Brings what was written to the disk.
    ///
    /// # Errors
    /// What the system says. Then nothing is known of what was written since the last success.
    fn sync(&self) -> io::Result<()>;

    /// Whether the file still has its name in the directory.
    ///
    /// # Errors
    /// What the system says.
    fn is_linked(&self) -> io::Result<bool>;
}

/// A directory of the file system.
pub struct FolderDisk {
    folder: PathBuf,
    /// Set if this process holds it.
    guard: Option<Box<dyn FolderGuard>>,
}

/// What a process does to hold a directory.
pub(super) trait FolderGuard: Send + Sync {
    /// Checks that nobody has removed what the directory has besides its logs.
    fn check(&self, folder: &Path) -> io::Result<()>;

    /// Makes the directory again as far as it is gone. Returns whether somebody else may have written there.
    fn restore(&self, folder: &Path) -> io::Result<bool>;

    /// Moves logs away that this process has not written, in the directory that it has had to make again.
    fn move_away(&self, folder: &Path, names: &[String]) -> io::Result<()>;
}

struct FolderFile {
    file: File,
    path: PathBuf,
}

impl FolderDisk {
    /// The files of this directory.
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder, guard: None }
    }

    /// The same for a process that holds the directory.
    pub(super) fn held(folder: PathBuf, guard: Box<dyn FolderGuard>) -> Self {
        Self { folder, guard: Some(guard) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Creates a directory for the owner only, with those above it.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    // A file system that takes nothing may still be read.
    if fs::metadata(folder).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// An error that names the file.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Opens a file for reading. A pipe of this name, which nobody may ever write to, is an error rather than a wait.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => {
            let what = format!("{} is no regular file", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

impl StateDisk for FolderDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(name);
        let opened = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|error| at(&path, &error))?;
        Ok(Arc::new(FolderFile { file, path }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(open_regular(&self.path(name))?))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.path(name))?.len())
    }

    fn free(&self) -> io::Result<u64> {
        let volume = rustix::fs::statvfs(&self.folder)?;
        Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        File::open(self.path(name))?.sync_all()
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn restore_folder(&self) -> io::Result<bool> {
        match &self.guard {
            Some(guard) => guard.restore(&self.folder),
            None => create_folder(&self.folder).map(|()| false),
        }
    }

    fn check_folder(&self) -> io::Result<()> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.check(&self.folder))
    }

    fn move_away(&self, names: &[String]) -> io::Result<()> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.move_away(&self.folder, names))
    }
}

impl DiskFile for FolderFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes).map_err(|error| at(&self.path, &error))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().map_err(|error| at(&self.path, &error))
    }

    fn is_linked(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
