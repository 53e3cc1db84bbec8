//! Inputs of AFL++ for [`tollgate_fuzz_targets::replies`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::replies(bytes));
}
