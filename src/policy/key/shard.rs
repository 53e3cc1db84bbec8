//! A key part hashed to one of a number of buckets.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use super::part::KeyPart;

/// The bucket of a part, 0 to `buckets - 1`, as 8 bytes. It is the same on all nodes and after a restart.
pub(super) fn part<'r>(of: KeyPart<'r>, buckets: u32) -> KeyPart<'r> {
    match of {
        KeyPart::Present(value) => {
            let bucket = stable_hash(&value) % u64::from(buckets.max(1));
            KeyPart::of(bucket.to_be_bytes().to_vec())
        }
        other => other,
    }
}

/// SipHash-1-3 under a fixed key. It is not secret: it may distribute keys, but must not identify them.
pub(crate) fn stable_hash(value: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x746f_6c6c, 0x6761_7465);
    hasher.write(value);
    hasher.finish()
}
