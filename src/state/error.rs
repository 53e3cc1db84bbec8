//! Why a state directory cannot be used, each with its cure.

use std::io;
use std::path::PathBuf;

use super::progress::SaveOutcome;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process holds the lock.
    #[error(
        "{}: another process uses this state directory (process {holder}); give each process its own, or end the other",
        folder.display()
    )]
    InUse {
        /// The directory.
        folder: PathBuf,
        /// What the lock file says: the number of the process.
        holder: String,
    },
    /// The directory or a file in it belongs to somebody else.
    #[error("{}: belongs to user {owner}, and tollgate runs as user {user}; run: chown -R {user} {}", path.display(), path.display())]
    Owner {
        /// The directory or file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The directory belongs to somebody else, and this user may not read it.
    #[error("{}: user {user} may not read it; it belongs to user {owner}: run this as that user", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Others may read or write the directory.
    #[error("{}: others may use it (mode {mode:o}), and it holds the secret of the keys; run: chmod go-rwx {}", path.display(), path.display())]
    Open {
        /// The directory or file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It holds the files of something else.
    #[error("{}: holds other files than tollgate's, and others may use it; name a directory of its own in store.embedded.state", folder.display())]
    NotOwn {
        /// The directory.
        folder: PathBuf,
    },
    /// It holds no state.
    #[error("{}: {problem}; name the directory in store.embedded.state", folder.display())]
    NoState {
        /// The directory.
        folder: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// It is of another version of the format.
    #[error(
        "{}: written in format {version}, and this tollgate reads format {own}; start the version that wrote it, or start once with --ignore-state: counts begin anew, the old files are kept in {}/ignored-*",
        folder.display(), folder.display()
    )]
    Version {
        /// The directory.
        folder: PathBuf,
        /// The version found.
        version: u16,
        /// The version of this build.
        own: u16,
    },
    /// The key secret is missing or is not the one that the logs were written with.
    #[error(
        "{}: {problem}; put back the file key-secret that belongs to it, or start once with --ignore-state: counts begin anew, the old files are kept",
        folder.display()
    )]
    Secret {
        /// The directory.
        folder: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// A log has a number that no process gives.
    #[error("{}: no tollgate writes a log of this number, and none could follow it; move it away", path.display())]
    Number {
        /// The log.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}; {cure}", path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
        /// What to do.
        cure: &'static str,
    },
    /// The file system does not answer.
    #[error("{}: does not answer: the disk hangs, or the network behind it; look at it, or name another directory in store.embedded.state", folder.display())]
    Silent {
        /// The directory.
        folder: PathBuf,
    },
    /// The system gives no random bytes.
    #[error("no random bytes for the secret of the keys: {0}")]
    Random(getrandom::Error),
}

impl StateError {
    /// What an attempt to save that ended with it counts as.
    pub fn outcome(&self) -> SaveOutcome {
        match self {
            Self::Io { error, .. } => SaveOutcome::of(error),
            _ => SaveOutcome::Error,
        }
    }
}
