//! Keys: which cell of a limit a request is charged to.
//!
//! A key is a list of sources; each reads a part of the request, and the parts are hashed together with the
//! deployment's secret. This module does not know where cells are stored. Two spellings that every origin reads
//! alike must give one key. A value that origins may read in different ways gives no key: the request is
//! refused.

mod address;
mod class;
mod cookie;
mod credentials;
mod hash;
mod header;
mod jwt;
mod logged;
mod never_found;
mod part;
mod query;
mod request_forms;
mod shard;
mod source;
mod spec;
mod target;
mod typed;

pub use hash::{KeyHash, KeyHasher, KeySecret};
pub use jwt::{Claim, OnKeysFailure, TokenSource};
pub use part::KeyPart;
pub(super) use shard::stable_hash;
pub use source::Source;
pub use spec::{KeySpec, MAX_KEY_SOURCES, NoKey};
pub use typed::TypedKeyError;
