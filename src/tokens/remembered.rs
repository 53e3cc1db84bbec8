//! The results of signature checks that are remembered, bounded by number and by bytes.
//!
//! No token is kept: a result is found by a keyed 128-bit hash of its token.

use std::sync::Arc;

use hashbrown::HashMap;

use super::claims::VerifiedClaims;
use super::error::TokenError;

/// Shards of the remembered tokens, each with its own lock.
pub(super) const SHARDS: usize = 16;

/// Tokens that each list of a shard remembers. Signature checks are expensive
/// ([`SignatureCheck`](super::SignatureCheck)), and clients send the same token again and again.
pub(super) const MAX_REMEMBERED: usize = 1_024;

/// The bytes of all claims that one verifier remembers. 16,384 tokens with 2 KiB of claims fit, which is more than those of
/// identity providers have. The largest tokens have 12 KiB; without this bound the list of them could take six times as much.
const MAX_REMEMBERED_BYTES: usize = 32 * 1_024 * 1_024;

/// What one shard has of [`MAX_REMEMBERED_BYTES`]. The claims of the largest token that is read fit many times.
const MAX_SHARD_BYTES: usize = MAX_REMEMBERED_BYTES / SHARDS;

/// Remembered results by the token's hash. Two lists of at most [`MAX_REMEMBERED`] each, so that forged tokens do not
/// push out valid ones.
#[derive(Debug, Default)]
pub(super) struct CheckedTokens {
    /// The number of the keys that gave these results.
    version: u64,
    verified: HashMap<u128, Arc<VerifiedClaims>>,
    /// The bytes of the claims in `verified`.
    verified_bytes: usize,
    /// With the same keys, a forged token stays forged.
    rejected: HashMap<u128, TokenError>,
}

impl CheckedTokens {
    /// Forgets the results of other keys: some may have been withdrawn, others have come.
    pub(super) fn use_version(&mut self, version: u64) {
        if self.version != version {
            self.version = version;
            self.clear_verified();
            self.rejected.clear();
        }
    }

    pub(super) fn recall(&self, hash: u128) -> Option<Result<Arc<VerifiedClaims>, TokenError>> {
        if let Some(claims) = self.verified.get(&hash) {
            return Some(Ok(Arc::clone(claims)));
        }
        self.rejected.get(&hash).map(|error| Err(*error))
    }

    /// Remembers a result, unless other keys are in force by now. A list that is full is cleared first.
    pub(super) fn remember(
        &mut self,
        version: u64,
        hash: u128,
        result: &Result<Arc<VerifiedClaims>, TokenError>,
    ) {
        if self.version != version {
            return;
        }
        match result {
            Ok(claims) => self.remember_verified(hash, claims),
            Err(error) => {
                if self.rejected.len() >= MAX_REMEMBERED {
                    self.rejected.clear();
                }
                self.rejected.insert(hash, *error);
            }
        }
    }

    fn remember_verified(&mut self, hash: u128, claims: &Arc<VerifiedClaims>) {
        let bytes = claims.bytes();
        let is_full = self.verified.len() >= MAX_REMEMBERED;
        if is_full || self.verified_bytes.saturating_add(bytes) > MAX_SHARD_BYTES {
            self.clear_verified();
        }
        if bytes > MAX_SHARD_BYTES {
            return;
        }
        // Two threads may have checked the same token at once.
        let replaced = self.verified.insert(hash, Arc::clone(claims));
        self.verified_bytes += bytes;
        self.verified_bytes -= replaced.map_or(0, |replaced| replaced.bytes());
    }

    fn clear_verified(&mut self) {
        self.verified.clear();
        self.verified_bytes = 0;
    }
}
