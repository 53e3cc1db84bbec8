//! Why a limiter cannot be built or reloaded.

use crate::config::ConfigErrors;

/// Why a limiter cannot be built or reloaded.
///
/// ```
/// use tollgate::{Limiter, LimiterError};
///
/// let built = Limiter::builder().policy_text("version: 1\nroutes: [{ nam: site }]").build();
/// let Err(LimiterError::Policy(errors)) = built else { panic!("a key is misspelt") };
/// assert!(errors.to_string().contains("unknown key \"nam\""));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimiterError {
    /// The builder was given no policy.
    #[error("no policy: call policy_text or policy_file")]
    NoPolicy,
    /// The policy has mistakes. All of them are listed.
    #[error("{0}")]
    Policy(ConfigErrors),
    /// The system provides no random numbers for the secret that keys are hashed with.
    #[error("no randomness for the secret of the keys: {0}")]
    Randomness(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The policy has a `store` outside this process, and `build` connects to nothing.
    #[error("the policy's store has to be connected to: call connect instead of build")]
    NeedsConnect,
    /// A reload cannot change the `store`.
    #[error("a reload cannot change the store: build another limiter")]
    StoreChanged,
    /// The policy is a text: there is no file to read again.
    #[error("the policy is a text: call reload_text")]
    NoFile,
}

impl LimiterError {
    pub(super) fn randomness(error: getrandom::Error) -> Self {
        Self::Randomness(Box::new(error))
    }
}
