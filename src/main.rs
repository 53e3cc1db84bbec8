//! The binary: an allocator and the command line.

use std::process::ExitCode;

/// A request allocates some dozens of small pieces: this allocator makes them cheap, and its own threads give
/// memory back to the system that nobody has used for ten seconds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tollgate::command_line()
}
