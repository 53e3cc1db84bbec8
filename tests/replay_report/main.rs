//! The report of `tollgate replay`: its counts against oracles, and its three forms.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod compare;
mod outputs;
mod requests;
mod tally;
mod well_formed;
