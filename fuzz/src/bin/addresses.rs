//! Inputs of AFL++ for [`tollgate_fuzz::addresses`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::addresses(bytes));
}
