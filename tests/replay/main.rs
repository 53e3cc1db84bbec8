//! `tollgate replay`: the verdicts of the proxy come back from its own log, whatever the policy; nothing in a log makes it
//! panic or lie.
#![expect(clippy::unwrap_used, reason = "a test fails where something is missing")]

mod bounds;
mod logs;
mod origin;
mod random_policy;
mod reports;
mod traffic;
mod truth;
