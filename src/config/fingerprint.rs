//! By what two versions of a configuration are told apart: the SHA-256 of its files.
//!
//! It is the sum of what was read, so that an operator can compute it: the file itself, then the files that it includes, in
//! the order of their patterns and names. Files that are named elsewhere (pages, keys, certificates) are not in it. Only
//! the server shows it; a build without the server sums up nothing.

#[cfg(feature = "bin")]
use ring::digest::{Context, SHA256};

/// Bytes of the sum that are shown, each as two hexadecimal digits: enough to tell versions apart.
#[cfg(feature = "bin")]
const SHOWN_BYTES: usize = 8;

/// Sums up files.
#[cfg_attr(not(feature = "bin"), derive(Default))]
pub(super) struct FileHasher {
    #[cfg(feature = "bin")]
    sum: Context,
}

#[cfg(feature = "bin")]
impl Default for FileHasher {
    fn default() -> Self {
        Self { sum: Context::new(&SHA256) }
    }
}

#[cfg(feature = "bin")]
impl FileHasher {
    pub(super) fn add(&mut self, text: &str) {
        self.sum.update(text.as_bytes());
    }

    /// The first 16 hexadecimal digits.
    pub(super) fn digits(&self) -> String {
        let sum = self.sum.clone().finish();
        sum.as_ref().iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(not(feature = "bin"))]
impl FileHasher {
    pub(super) fn add(&mut self, _: &str) {}

    pub(super) fn digits(&self) -> String {
        String::new()
    }
}
