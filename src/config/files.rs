//! Files, the configuration's own and those that it names.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

/// Times that a file is read which somebody writes meanwhile.
const READS: usize = 8;

/// Most bytes of a file that a configuration names: keys, a token, a certificate.
pub(super) const MAX_NAMED: u64 = 1 << 20;

/// Reads a file of at most `most` bytes, so that a wrong one (a device, a log) does no harm. An
/// error names the file.
pub(super) fn read_bounded(file: &Path, most: u64) -> Result<Vec<u8>, String> {
    let bytes = read_steady(file, most).map_err(|error| format!("{}: {error}", file.display()))?;
    if bytes.len() as u64 > most {
        return Err(format!("{}: is larger than {} KiB", file.display(), most / 1024));
    }
    Ok(bytes)
}

/// Reads a file, up to a byte more than `most`. One that is written in place meanwhile is read
/// again: the beginning of a configuration, or of two, can be one that nobody meant.
pub(super) fn read_steady(file: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_between(file, most, || ())
}

/// The same; `meanwhile` is called when it was read.
fn read_between(file: &Path, most: u64, mut meanwhile: impl FnMut()) -> io::Result<Vec<u8>> {
    for _ in 0..READS {
        let opened = File::open(file)?;
        let before = state(&opened)?;
        let mut bytes = Vec::new();
        (&opened).take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        meanwhile();
        if state(&opened)? == before {
            return Ok(bytes);
        }
    }
    Err(io::Error::other("it is being written; try again when it is whole"))
}

/// What changes with a file's content. `None`: it is a pipe or a device, and keeps nothing.
fn state(file: &File) -> io::Result<Option<(u64, SystemTime)>> {
    let known = file.metadata()?;
    Ok(if known.is_file() { Some((known.len(), known.modified()?)) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_meanwhile_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(&file, "a".repeat(9_000)).unwrap();
        let mut writes = ["b".repeat(20), "c".repeat(30)].into_iter();
        let read = read_between(&file, 10_000, || {
            if let Some(next) = writes.next() {
                std::fs::write(&file, next).unwrap();
            }
        });
        assert_eq!(read.unwrap(), [b'c'; 30]);
        let mut bytes = 0;
        let never = read_between(&file, 10_000, || {
            bytes += 1;
            std::fs::write(&file, "d".repeat(bytes)).unwrap();
        });
        assert!(never.unwrap_err().to_string().contains("being written"));
        assert_eq!(bytes, READS);
        // Put into its place by a rename, it is another file, and the one that was read is whole.
        let renamed = read_between(&file, 10_000, || {
            let other = folder.path().join("other");
            std::fs::write(&other, "e").unwrap();
            std::fs::rename(&other, &file).unwrap();
        });
        assert_eq!(renamed.unwrap(), [b'd'; READS]);
        assert_eq!(read_steady(&file, 0).unwrap(), b"e", "a byte more than what may be");
    }
}
