//! A number by which a process is told from the ones before it, and the next one knows who ended the logs.

use std::sync::LazyLock;

/// The number of this process: random, because a process in a container often has the number of the one before.
pub fn run_id() -> u64 {
    static ID: LazyLock<u64> = LazyLock::new(|| {
        let mut bytes = [0; 8];
        match getrandom::fill(&mut bytes) {
            Ok(()) => u64::from_le_bytes(bytes),
            // Nobody has this one, so the next process relies on nothing.
            Err(_) => 0,
        }
    });
    *ID
}
