//! Files that a configuration names.

use std::io::Read;
use std::path::Path;

/// Reads a file of at most `most` bytes, so that a wrong one (a device, a log) does no harm. An
/// error names the file.
pub(super) fn read_bounded(file: &Path, most: u64) -> Result<Vec<u8>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", file.display());
    let opened = std::fs::File::open(file).map_err(wrong)?;
    let mut bytes = Vec::new();
    opened.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > most {
        return Err(format!("{}: is larger than {} KiB", file.display(), most / 1024));
    }
    Ok(bytes)
}
