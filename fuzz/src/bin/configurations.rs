//! Inputs of AFL++ for [`tollgate_fuzz_targets::configurations`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::configurations(bytes));
}
