//! Inputs of AFL++ for [`tollgate_fuzz::chunks`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::chunks(bytes));
}
