//! The secret under which tollgate's own log has its hashes.

use crate::config::StoreConfig;
use crate::policy::KeySecret;
use crate::state::read_key_secret;

/// A secret, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub struct KeySecrets {
    /// The secret.
    pub secret: KeySecret,
    /// Whether it is that of the deployment. Otherwise the hashes of a log cannot be compared with the keys that overrides and
    /// plans name.
    pub is_known: bool,
}

impl KeySecrets {
    /// The secret of a deployment with this store: of the file that all nodes share, or of the state directory. Without either
    /// every process had one of its own, and it is gone.
    pub fn of(store: &StoreConfig) -> Self {
        match store {
            StoreConfig::Redis(redis) => Self {
                secret: KeySecret::of_shared_store(redis.key_secret.as_deref()),
                is_known: true,
            },
            StoreConfig::Embedded { state } => {
                let directory = state.as_ref().map(|state| state.directory.as_path());
                let found = directory.and_then(|directory| read_key_secret(directory).ok()?);
                match found {
                    Some(bytes) => Self { secret: KeySecret::new(bytes), is_known: true },
                    None => Self { secret: KeySecret::new(UNKNOWN), is_known: false },
                }
            }
        }
    }
}

/// Stands for a secret that nobody knows. Keys of a replay are never stored, so a known one does no harm.
const UNKNOWN: [u8; 16] = *b"tollgate replay.";
