//! Inputs of AFL++ for [`tollgate_fuzz::hosts`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::hosts(bytes));
}
