//! Inputs of AFL++ for [`tollgate_fuzz_targets::addresses`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::addresses(bytes));
}
