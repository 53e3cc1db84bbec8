//! Inputs of AFL++ for [`tollgate_fuzz::configurations`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::configurations(bytes));
}
