use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use super::KeyPart;

/// One of `buckets` numbers. The hash is fixed: all nodes agree, before and after a restart.
pub(super) fn part<'r>(of: KeyPart<'r>, buckets: u32) -> KeyPart<'r> {
    match of {
        KeyPart::Present(value) => {
            let bucket = stable_hash(&value) % u64::from(buckets.max(1));
            KeyPart::of(bucket.to_be_bytes().to_vec())
        }
        other => other,
    }
}

/// SipHash-1-3 under a fixed key. Not secret: for spreading, never for telling keys apart.
pub(crate) fn stable_hash(value: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x746f_6c6c, 0x6761_7465);
    hasher.write(value);
    hasher.finish()
}
