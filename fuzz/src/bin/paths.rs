//! Inputs of AFL++ for [`tollgate_fuzz::paths`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::paths(bytes));
}
