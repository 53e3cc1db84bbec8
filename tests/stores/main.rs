//! The exact tier over servers that speak the protocol of Redis: stand-ins that lie or turn a
//! clock, and real ones that these tests start, stop and break.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "../policies/cases.rs"]
mod cases;
mod conformance;
mod lua;
mod script;
mod stand_in;
