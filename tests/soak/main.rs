//! One good client beside two thousand connections of hostile ones.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "../support/certificates.rs"]
mod certificates;
mod course;
#[path = "../support/frames.rs"]
#[expect(dead_code, reason = "the end-to-end tests use the rest")]
mod frames;
mod good;
mod hostile;
mod origin;
mod report;
#[path = "../end_to_end/servers.rs"]
#[expect(dead_code, reason = "the end-to-end tests use the rest")]
mod servers;
mod site;
mod threads;
mod watch;

/// `make soak SECONDS=900` runs it for longer, with the release build.
#[test]
fn a_good_client_is_served_beside_hostile_ones() {
    course::run();
}
