//! The sections of a configuration file, one file for each. A section reads its part of the tree,
//! records every mistake, and returns values of the model or of the policy. Instead of a value
//! with a mistake it may return a substitute, because a file with a mistake produces no `Config`.

pub(super) mod access_log;
pub(super) mod admin;
pub(super) mod bounds;
mod class_list;
pub(super) mod classes;
pub(super) mod clients;
mod conditions;
mod costs;
mod field_edits;
pub(crate) mod field_names;
pub(super) mod fleet;
mod json_page;
mod key_set_url;
pub(super) mod keys;
pub(super) mod limits;
pub(super) mod listeners;
pub(super) mod origins;
mod pages;
pub(super) mod request_match;
pub(super) mod responses;
mod rewrite;
pub(super) mod routes;
pub(super) mod store;
pub(super) mod tokens;
