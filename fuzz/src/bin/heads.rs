//! Inputs of AFL++ for [`tollgate_fuzz::heads`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::heads(bytes));
}
