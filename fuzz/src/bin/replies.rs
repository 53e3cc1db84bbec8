//! Inputs of AFL++ for [`tollgate_fuzz::replies`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::replies(bytes));
}
