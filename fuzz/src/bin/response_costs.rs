//! Inputs of AFL++ for [`tollgate_fuzz_targets::response_costs`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::response_costs(bytes));
}
