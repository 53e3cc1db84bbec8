//! Reads files within a size bound: the configuration itself, and the files that it names. A file
//! is returned only if it did not change while it was read, because a part of a configuration can
//! be a valid configuration. Nothing here interprets a file, except for the checks that PEM files
//! hold certificates or keys, and that these belong together; those checks open the files by
//! themselves, without these two guards.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// How often a file is read again because it changed meanwhile.
const MAX_ATTEMPTS: usize = 8;

/// Largest file with secrets, keys or certificates that a configuration names, in bytes.
pub(super) const MAX_NAMED_FILE: u64 = 1 << 20;

/// Reads a file of at most `max` bytes, so that a wrong file (a device, a log) does no harm. The
/// error names the file.
pub(super) fn read_bounded(file: &Path, max: u64) -> Result<Vec<u8>, String> {
    let bytes = read_stable(file, max).map_err(|error| format!("{}: {error}", file.display()))?;
    if bytes.len() as u64 > max {
        return Err(format!("{}: is larger than {} KiB", file.display(), max / 1024));
    }
    Ok(bytes)
}

/// Reads a text file of at most about `max` bytes, such as a configuration. The error does not
/// name the file. A larger file yields one byte more, so that the caller can detect it.
pub(super) fn read_text_file(file: &Path, max: u64) -> Result<String, String> {
    let bytes = read_stable(file, max).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes)
        .map_err(|error| format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

/// Reads up to `max + 1` bytes of a file. If the file is being written, it is read again.
fn read_stable(file: &Path, max: u64) -> io::Result<Vec<u8>> {
    read_stable_with(file, max, || ())
}

/// The same; `after_read` is called after each attempt.
fn read_stable_with(file: &Path, max: u64, mut after_read: impl FnMut()) -> io::Result<Vec<u8>> {
    for _ in 0..MAX_ATTEMPTS {
        let opened = File::open(file)?;
        let before = FileVersion::of(&opened)?;
        let mut bytes = Vec::new();
        (&opened).take(max.saturating_add(1)).read_to_end(&mut bytes)?;
        after_read();
        if FileVersion::of(&opened)? == before {
            return Ok(bytes);
        }
    }
    Err(io::Error::other("it is being written; try again when it is complete"))
}

/// Changes whenever the content of a file changes.
#[derive(PartialEq, Eq)]
enum FileVersion {
    Regular {
        length: u64,
        modified: SystemTime,
    },
    /// A pipe or a device, which has no stored content.
    Special,
}

impl FileVersion {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Self::Special);
        }
        Ok(Self::Regular { length: metadata.len(), modified: metadata.modified()? })
    }
}

/// Checks that a PEM file holds at least one certificate, and only valid ones.
pub(super) fn check_certificates(file: &Path) -> Result<(), String> {
    let in_file = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| in_file(&error))?;
    if certificates.is_empty() { Err(in_file(&"holds no certificate")) } else { Ok(()) }
}

/// Checks that a PEM file holds a private key.
pub(super) fn check_private_key(file: &Path) -> Result<(), String> {
    PrivateKeyDer::from_pem_file(file)
        .map(drop)
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Checks that a PEM file holds certificates that can be trusted as roots, and nothing else.
pub(super) fn check_roots(file: &Path) -> Result<(), String> {
    check_certificates(file)?;
    // The builds without the proxy never use them.
    #[cfg(feature = "bin")]
    for (index, certificate) in
        CertificateDer::pem_file_iter(file).into_iter().flatten().flatten().enumerate()
    {
        rustls::RootCertStore::empty()
            .add(certificate)
            .map_err(|error| format!("{}: certificate {}: {error}", file.display(), index + 1))?;
    }
    Ok(())
}

/// Checks that a PEM file holds the private key of the first certificate in another one.
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
        assert_eq!(read.unwrap(), [b'c'; 30]);
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
        assert_eq!(renamed.unwrap(), [b'd'; MAX_ATTEMPTS]);
        assert_eq!(read_stable(&file, 0).unwrap(), b"e", "one byte more than allowed");
    }
}
