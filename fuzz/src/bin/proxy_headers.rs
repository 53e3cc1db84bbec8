//! Inputs of AFL++ for [`tollgate_fuzz::proxy_headers`].

fn main() {
    afl::fuzz!(|bytes: &[u8]| tollgate_fuzz::proxy_headers(bytes));
}
