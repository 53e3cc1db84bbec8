//! The private directory in which processes of one configuration find each other.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;

/// Nobody else may look in.
const PRIVATE: u32 = 0o700;

/// The socket of the processes that serve a configuration's file. Its directory is made if it is
/// not there; an error if it is anybody else's.
pub(crate) fn socket_path(config: &Path) -> io::Result<PathBuf> {
    let folder = folder();
    make_private(&folder)?;
    // A name that is the same in both processes and fits into a socket's address.
    let file = fs::canonicalize(config)?;
    let mut hasher = SipHasher13::new();
    hasher.write(file.as_os_str().as_encoded_bytes());
    Ok(folder.join(format!("handover-{:016x}.sock", hasher.finish())))
}

/// systemd's directory, or the user's, or the system's, or one among temporary files.
fn folder() -> PathBuf {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folders) = given("RUNTIME_DIRECTORY") {
        // A list, parted by colons; the first is ours (systemd.exec(5)).
        if let Some(first) = std::env::split_paths(&folders).next() {
            return first;
        }
    }
    if let Some(user) = given("XDG_RUNTIME_DIR") {
        return PathBuf::from(user).join("tollgate");
    }
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return PathBuf::from("/run/tollgate");
    }
    std::env::temp_dir().join(format!("tollgate-{}", uid.as_raw()))
}

fn make_private(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(PRIVATE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Not followed: a link in a directory that others write to leads where they like.
    let found = fs::symlink_metadata(folder)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if !ours {
        let why = format!("{} is not a directory of this user", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if found.mode() & 0o777 != PRIVATE {
        fs::set_permissions(folder, fs::Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_private_or_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let mode = |folder: &Path| fs::metadata(folder).unwrap().mode() & 0o777;
        let fresh = temporary.path().join("fresh");
        make_private(&fresh).unwrap();
        assert_eq!(mode(&fresh), PRIVATE);
        let open = temporary.path().join("open");
        fs::DirBuilder::new().mode(0o777).create(&open).unwrap();
        make_private(&open).unwrap();
        assert_eq!(mode(&open), PRIVATE);
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        assert_eq!(make_private(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
