//! Warnings: what is valid and probably not intended. Each warning has a code, by which
//! `check: { silence: [..] }` turns it off. A warning never changes the configuration.

mod clients;
mod codes;
mod limits;
mod list;
mod reachability;
mod routes;
mod sample_requests;

pub(super) use codes::silenced;
pub(super) use list::{WarningInput, warnings};
