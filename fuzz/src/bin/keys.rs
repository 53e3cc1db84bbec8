//! Inputs of AFL++ for [`tollgate_fuzz::keys`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::keys(bytes));
}
