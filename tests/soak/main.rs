//! One good client beside two thousand connections of hostile ones.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

mod course;
mod good;
mod report;

/// `make soak SECONDS=900` runs it for longer, with the release build.
#[test]
fn a_good_client_is_served_beside_hostile_ones() {
    course::run();
}
