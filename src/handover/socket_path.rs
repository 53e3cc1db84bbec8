//! Finds the Unix socket on which processes with the same configuration file meet.
//!
//! The socket lies in a private directory, and its name is a hash of the file's path. It opens no socket itself. What
//! must always hold: the directory belongs to this user, and no other user can enter it.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;

/// The directory's mode: no access for other users.
const PRIVATE_MODE: u32 = 0o700;

/// The path of the handover socket for a configuration file. Creates its directory if it is missing; fails if the
/// directory belongs to another user.
pub(crate) fn socket_path(config: &Path) -> io::Result<PathBuf> {
    let directory = directory();
    make_private(&directory)?;
    // The hash is equal in both processes and short enough for a socket address.
    let file = fs::canonicalize(config)?;
    let mut hasher = SipHasher13::new();
    hasher.write(file.as_os_str().as_encoded_bytes());
    Ok(directory.join(format!("handover-{:016x}.sock", hasher.finish())))
}

/// The directory from systemd, else the user's or the system's runtime directory, else one among temporary files.
fn directory() -> PathBuf {
    let non_empty = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(directories) = non_empty("RUNTIME_DIRECTORY") {
        // A list separated by colons; the first is ours (systemd.exec(5)).
        if let Some(first) = std::env::split_paths(&directories).next() {
            return first;
        }
    }
    if let Some(runtime) = non_empty("XDG_RUNTIME_DIR") {
        return PathBuf::from(runtime).join("tollgate");
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/tollgate");
    }
    std::env::temp_dir().join(format!("tollgate-{}", uid.as_raw()))
}

fn make_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(PRIVATE_MODE).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let path = directory.display();
            let reason = format!(
                "{path}: {error}; make the directory above it, or set XDG_RUNTIME_DIR to one that exists"
            );
            return Err(io::Error::new(error.kind(), reason));
        }
        _ => {}
    }
    // Symbolic links are not followed: in a directory that others can write to, they point wherever others choose.
    let metadata = fs::symlink_metadata(directory)?;
    let is_ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours {
        let reason = format!("{} is not a directory of this user", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    if metadata.mode() & 0o777 != PRIVATE_MODE {
        fs::set_permissions(directory, fs::Permissions::from_mode(PRIVATE_MODE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_private_or_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let mode = |directory: &Path| fs::metadata(directory).unwrap().mode() & 0o777;
        let fresh = temporary.path().join("fresh");
        make_private(&fresh).unwrap();
        assert_eq!(mode(&fresh), PRIVATE_MODE);
        let open = temporary.path().join("open");
        fs::DirBuilder::new().mode(0o777).create(&open).unwrap();
        make_private(&open).unwrap();
        assert_eq!(mode(&open), PRIVATE_MODE);
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert_eq!(make_private(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
