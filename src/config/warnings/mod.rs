//! Warnings: what is valid and probably not intended. Each warning has a code, by which
//! `check: { silence: [..] }` turns it off. A warning never changes the configuration.

mod bodies;
mod classes;
mod clients;
mod codes;
mod costs;
mod fleet;
mod key_presence;
mod limit_uses;
mod limits;
mod list;
mod listeners;
mod paths_below;
mod patterns;
mod reachability;
mod rewrites;
mod routes;
mod sample_requests;
mod tokens;
mod unused_terms;

pub use codes::Code;
pub(super) use codes::{SilencedCodes, silenced};
pub(super) use list::{WarningInput, warnings};
