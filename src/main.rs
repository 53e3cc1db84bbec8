//! The binary: an allocator and the command line.

use std::process::ExitCode;

/// A request allocates some dozens of small pieces; this allocator makes them cheap.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate::cli::main()
}
