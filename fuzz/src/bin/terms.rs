//! Inputs of AFL++ for [`tollgate_fuzz::terms`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::terms(bytes));
}
