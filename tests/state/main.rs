//! The state directory: what a crash, a loss of power, a failing disk and damaged files leave of the counts.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

mod crashes;
mod damage;
mod disk;
mod fixture;
mod history;
mod inspection;
mod kept;
mod large;
mod node;
mod small_disks;
mod succession;
