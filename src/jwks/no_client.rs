//! Stands for `client.rs` in a build without the feature `jwks`: the reader of configurations refuses every URL, so there
//! is nothing to fetch.

use crate::tokens::{FetchError, FetchedKeySet, KeySetUrl};

pub(super) async fn fetch(_: &KeySetUrl) -> Result<FetchedKeySet, FetchError> {
    Err(FetchError::Unreachable("this build fetches no keys".to_owned()))
}
