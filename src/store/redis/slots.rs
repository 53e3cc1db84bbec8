//! Slots of a Cluster: which key lies where.
//!
//! A key's slot is the CRC16 (XMODEM) of its tag, or of the whole key without one, modulo 16,384.
//! (Redis Cluster specification, "Key distribution model".)

use crc16::{State, XMODEM};

/// How many there are.
pub(super) const SLOTS: usize = 16_384;

/// The slot of a text.
pub(super) fn hash_slot(text: &[u8]) -> u16 {
    State::<XMODEM>::calculate(text) % SLOTS as u16
}

/// A key of ours in a slot; any key for slot 0, which stands for none in particular.
pub(super) fn probe_key(prefix: &str, wanted: u16) -> String {
    // Two thousand slots and more belong to a server that is worth its place: found soon.
    let names = (0..100_000).map(|n| format!("{prefix}:probe:{n}"));
    let found = names.into_iter().find(|name| wanted == 0 || hash_slot(name.as_bytes()) == wanted);
    found.unwrap_or_else(|| format!("{prefix}:probe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification, and what a server says of a few keys.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(State::<XMODEM>::calculate(b"123456789"), 0x31C3);
        assert_eq!(hash_slot(b"foo"), 12_182);
        assert_eq!(hash_slot(b"somekey"), 11_058);
        assert_eq!(hash_slot(probe_key("tollgate", 9_000).as_bytes()), 9_000);
    }
}
