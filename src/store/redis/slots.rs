//! The slots of a Redis Cluster: which slot a key lies in. This module does not know which server keeps a slot.
//!
//! A key's slot is the CRC16 (XMODEM) of its hash tag, or of the whole key if it has none, modulo 16,384.
//! (Redis Cluster specification, "Key distribution model".)

#[cfg(feature = "redis")]
use crc16::{State, XMODEM};

/// The number of slots.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a hash tag, or of a key without one.
#[cfg(feature = "redis")]
pub(super) fn hash_slot(text: &[u8]) -> u16 {
    State::<XMODEM>::calculate(text) % SLOTS as u16
}

/// Without servers no cell lies in a slot.
#[cfg(not(feature = "redis"))]
pub(super) fn hash_slot(_: &[u8]) -> u16 {
    0
}

/// A key for probing a server, in one of its slots. For slot 0, which also stands for "no slots", any key is returned:
/// a server that does not hold its slot answers with a redirect, which is an answer too.
pub(super) fn probe_key(prefix: &str, slot: u16) -> String {
    // One key in 16,384 is in the slot, so one is found with near certainty; the last resort is any key.
    let keys = (0..100_000).map(|n| format!("{prefix}:probe:{n}"));
    let found = keys.into_iter().find(|key| slot == 0 || hash_slot(key.as_bytes()) == slot);
    found.unwrap_or_else(|| format!("{prefix}:probe"))
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    /// The example of the specification, and the slots that a server reports for a few keys.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(State::<XMODEM>::calculate(b"123456789"), 0x31C3);
        assert_eq!(hash_slot(b"foo"), 12_182);
        assert_eq!(hash_slot(b"somekey"), 11_058);
        assert_eq!(hash_slot(probe_key("tollgate", 9_000).as_bytes()), 9_000);
    }
}
