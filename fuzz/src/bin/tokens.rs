//! Inputs of AFL++ for [`tollgate_fuzz::tokens`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::tokens(bytes));
}
