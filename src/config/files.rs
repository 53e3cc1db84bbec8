//! Reads files within a size bound: the configuration itself, and the files that it names. A file
//! is returned only if it did not change while it was read, because a part of a configuration can
//! be a valid configuration. Nothing here interprets a file, except for the checks that PEM files
//! hold certificates or keys, and that these belong together; those checks open the files by
//! themselves, without these two guards.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::error::{ConfigError, Location};

/// How often a file is read again because it changed meanwhile.
pub(super) const MAX_ATTEMPTS: usize = 8;

/// Largest file with secrets, keys or certificates that a configuration names, in bytes.
pub(super) const MAX_NAMED_FILE: u64 = 1 << 20;

/// Reads a file of at most `max` bytes, so that a wrong file (a device, a log) does no harm. The
/// error names the file.
pub(super) fn read_bounded(file: &Path, max: u64) -> Result<Vec<u8>, String> {
    let name = file.display();
    let bytes = read_stable(file, max).map_err(|error| match read_cure(&error) {
        Some(cure) => format!("{name}: {error}; {cure}"),
        None => format!("{name}: {error}"),
    })?;
    if bytes.len() as u64 > max {
        return Err(format!("{name}: is too large; write at most {} KiB", max / 1024));
    }
    Ok(bytes)
}

/// Reads a text file of at most about `max` bytes, such as a configuration, and says which version of it was read. The
/// error does not name the file. A larger file yields one byte more, so that the caller can detect it.
pub(super) fn read_text_file(file: &Path, max: u64) -> Result<(String, FileVersion), ConfigError> {
    let (bytes, version) =
        read_stable_with(file, max, || ()).map_err(|error| unreadable(&error))?;
    Ok((decode(bytes)?, version))
}

fn unreadable(error: &io::Error) -> ConfigError {
    let cure = read_cure(error).map(str::to_owned);
    ConfigError { cure, ..ConfigError::of_file(format!("cannot be read: {error}")) }
}

/// What to do if a file cannot be read.
fn read_cure(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::NotFound => Some("create it, or correct its name"),
        io::ErrorKind::IsADirectory => Some("name a file in it"),
        io::ErrorKind::PermissionDenied => Some("let the user that runs tollgate read it"),
        _ => None,
    }
}

/// The text of a file in UTF-8.
fn decode(bytes: Vec<u8>) -> Result<String, ConfigError> {
    let cure = Some("save it as UTF-8".to_owned());
    // A byte order mark, or every other byte is zero.
    let is_utf16 = match bytes.as_slice() {
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => true,
        [first, second, ..] => (*first == 0) != (*second == 0),
        _ => false,
    };
    if is_utf16 {
        return Err(ConfigError { cure, ..ConfigError::of_file("is UTF-16".to_owned()) });
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + memchr::memchr_iter(b'\n', valid).count();
        let line_start = memchr::memrchr(b'\n', valid).map_or(0, |at| at + 1);
        let column = 1 + String::from_utf8_lossy(&valid[line_start..]).chars().count();
        let location = Some(Location { line, column });
        let message = "this character is not UTF-8".to_owned();
        ConfigError { location, cure, ..ConfigError::of_file(message) }
    })
}

/// Reads up to `max + 1` bytes of a file. If the file is being written, it is read again.
fn read_stable(file: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_stable_with(file, max, || ()).map(|(bytes, _)| bytes)
}

/// The same, with the version of the file; `after_read` is called after each attempt.
fn read_stable_with(
    file: &Path,
    max: u64,
    mut after_read: impl FnMut(),
) -> io::Result<(Vec<u8>, FileVersion)> {
    for _ in 0..MAX_ATTEMPTS {
        let opened = File::open(file)?;
        let before = FileVersion::of(&opened.metadata()?)?;
        let mut bytes = Vec::new();
        (&opened).take(max.saturating_add(1)).read_to_end(&mut bytes)?;
        after_read();
        if FileVersion::of(&opened.metadata()?)?.has_content_of(&before) {
            return Ok((bytes, before));
        }
    }
    Err(io::Error::other("it is being written; try again when it is complete"))
}

/// Differs between two versions of a file, also where another file replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileVersion {
    /// A file with content.
    Regular {
        /// Its size in bytes.
        length: u64,
        /// When it was written.
        modified: SystemTime,
        /// What also differs between two files of the same size and time.
        identity: FileIdentity,
    },
    /// A pipe or a device, which has no stored content.
    Special,
}

/// What also differs where a file is replaced by another one with the same size and time of modification.
/// Zero on other systems than Unix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileVersion {
    /// The version of the file with this name, behind symbolic links. `None` if there is none.
    pub(crate) fn of_name(file: &Path) -> Option<Self> {
        Self::of(&std::fs::metadata(file).ok()?).ok()
    }

    /// Whether nobody wrote in between. The opened file may have lost its name.
    fn has_content_of(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Regular { length, modified, .. },
                Self::Regular { length: other_length, modified: other_modified, .. },
            ) => length == other_length && modified == other_modified,
            (Self::Special, Self::Special) => true,
            (Self::Regular { .. }, Self::Special) | (Self::Special, Self::Regular { .. }) => false,
        }
    }

    fn of(metadata: &Metadata) -> io::Result<Self> {
        if !metadata.is_file() {
            return Ok(Self::Special);
        }
        let (length, modified) = (metadata.len(), metadata.modified()?);
        Ok(Self::Regular { length, modified, identity: identity(metadata) })
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> FileIdentity {
    use std::os::unix::fs::MetadataExt;

    let changed = (metadata.ctime(), metadata.ctime_nsec());
    FileIdentity { device: metadata.dev(), inode: metadata.ino(), changed }
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> FileIdentity {
    FileIdentity::default()
}

/// Says what to do if a file cannot be opened; the reader of PEM files only says that.
fn openable(file: &Path) -> Result<(), String> {
    let error = File::open(file).err();
    let found = error.and_then(|error| Some((read_cure(&error)?, error)));
    found.map_or(Ok(()), |(cure, error)| Err(format!("{}: {error}; {cure}", file.display())))
}

/// Checks that a PEM file holds at least one certificate, and only valid ones.
pub(super) fn check_certificates(file: &Path) -> Result<(), String> {
    let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    openable(file)?;
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| in_file(&error))?;
    if certificates.is_empty() { Err(in_file(&"holds no certificate")) } else { Ok(()) }
}

/// Checks that a PEM file holds a private key.
pub(super) fn check_private_key(file: &Path) -> Result<(), String> {
    openable(file)?;
    PrivateKeyDer::from_pem_file(file)
        .map(drop)
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Checks that a PEM file holds certificates that can be trusted as roots, and nothing else.
pub(super) fn check_roots(file: &Path) -> Result<(), String> {
    check_certificates(file)?;
    // Other builds never use them.
    #[cfg(any(feature = "bin", feature = "jwks"))]
    for (index, certificate) in
        CertificateDer::pem_file_iter(file).into_iter().flatten().flatten().enumerate()
    {
        rustls::RootCertStore::empty()
            .add(certificate)
            .map_err(|error| format!("{}: certificate {}: {error}", file.display(), index + 1))?;
    }
    Ok(())
}

/// Checks that a PEM file holds the private key of the first certificate in another one. A file without certificates has
/// a mistake of its own, so only the key is checked then.
pub(super) fn check_key_pair(certificates: &Path, key: &Path) -> Result<(), String> {
    check_private_key(key)?;
    #[cfg(feature = "bin")]
    {
        use rustls::crypto::ring::sign::any_supported_type;
        use rustls::sign::CertifiedKey;

        let in_key = |error: &dyn std::fmt::Display| format!("{}: {error}", key.display());
        let chain: Vec<_> =
            CertificateDer::pem_file_iter(certificates).into_iter().flatten().flatten().collect();
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| in_key(&error))?;
        let signing = any_supported_type(&private).map_err(|error| in_key(&error))?;
        if chain.is_empty() {
            return Ok(());
        }
        match CertifiedKey::new(chain, signing).keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => {
                let certificates = certificates.display();
                return Err(in_key(&format!(
                    "is not the key of the certificate in {certificates}"
                )));
            }
        }
    }
    // Only the program compares it with the key.
    #[cfg(not(feature = "bin"))]
    let _ = certificates;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_while_it_is_read_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(&file, "a".repeat(9_000)).unwrap();
        let mut writes = ["b".repeat(20), "c".repeat(30)].into_iter();
        let read = read_stable_with(&file, 10_000, || {
            if let Some(next) = writes.next() {
                std::fs::write(&file, next).unwrap();
            }
        });
        assert_eq!(read.unwrap().0, [b'c'; 30]);
        let mut bytes = 0;
        let never = read_stable_with(&file, 10_000, || {
            bytes += 1;
            std::fs::write(&file, "d".repeat(bytes)).unwrap();
        });
        assert!(never.unwrap_err().to_string().contains("being written"));
        assert_eq!(bytes, MAX_ATTEMPTS);
        // A rename puts another file under this name. The opened one is complete.
        let renamed = read_stable_with(&file, 10_000, || {
            let other = folder.path().join("other");
            std::fs::write(&other, "e").unwrap();
            std::fs::rename(&other, &file).unwrap();
        });
        assert_eq!(renamed.unwrap().0, [b'd'; MAX_ATTEMPTS]);
        assert_eq!(read_stable(&file, 0).unwrap(), b"e", "one byte more than allowed");
    }
}
