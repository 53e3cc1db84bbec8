//! Inputs of AFL++ for [`tollgate_fuzz_targets::tokens`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::tokens(bytes));
}
