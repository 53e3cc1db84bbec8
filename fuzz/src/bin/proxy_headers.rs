//! Inputs of AFL++ for [`tollgate_fuzz_targets::proxy_headers`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz_targets::proxy_headers(bytes));
}
