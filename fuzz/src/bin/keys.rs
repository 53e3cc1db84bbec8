//! Inputs of AFL++ for [`tollgate_fuzz_targets::keys`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::keys(bytes));
}
