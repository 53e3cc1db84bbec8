//! The binary: an allocator and the command line.

use std::process::ExitCode;

/// A request allocates a few dozen small blocks, which this allocator makes cheap. Its background threads return memory
/// to the system that was unused for ten seconds.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tollgate::command_line()
}
