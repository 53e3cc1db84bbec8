//! The binary with a state directory, on real files: kills at random moments under load, orderly ends, disks that are full,
//! read-only or gone, and clocks that were set while it was down.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

mod clocks;
mod counts;
mod disks;
mod handovers;
mod kills;
mod load;
mod node;
mod origin;
mod told;
