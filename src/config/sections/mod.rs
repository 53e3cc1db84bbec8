//! The sections of a configuration file, one file each. A section reads its part of the tree,
//! records every mistake in the error list, and returns values of the model. Where a value has a
//! mistake a section may return a substitute, because a file with a mistake produces no `Config`.

pub(super) mod bounds;
pub(super) mod costs;
pub(super) mod keys;
pub(super) mod limits;
pub(super) mod listeners;
pub(super) mod origins;
pub(super) mod responses;
pub(super) mod routes;
pub(super) mod store;
