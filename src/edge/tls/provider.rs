//! The cryptography of the listeners' TLS.

use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

/// ring, with the key exchange X25519MLKEM768 of aws-lc added, which ring does not have and which resists quantum
/// computers. Clients that do not offer it use one of ring's.
pub(super) fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.kx_groups.insert(0, aws_lc_rs::kx_group::X25519MLKEM768);
    provider
}
