//! Every reader of bytes that come from outside, each with its oracle: a function that takes one
//! input and panics where the reader breaks a promise.
//!
//! The fuzzer's programs (`fuzz/src/bin`) call them with what AFL++ makes up; `tests/fuzz.rs` calls them
//! with what is committed in `corpus/`. Each function depends on its input alone, so that what fails
//! once fails again.
#![expect(clippy::unwrap_used, reason = "a target that meets what it does not expect shall fail")]

mod addresses;
mod chunks;
mod configurations;
mod gate;
mod heads;
mod hosts;
mod keys;
mod origin;
mod paths;
mod proxy_headers;
mod replies;
mod response_costs;
mod terms;
mod tokens;

pub use addresses::addresses;
pub use chunks::chunks;
pub use configurations::configurations;
pub use heads::heads;
pub use hosts::hosts;
pub use keys::keys;
pub use paths::paths;
pub use proxy_headers::proxy_headers;
pub use replies::replies;
pub use response_costs::response_costs;
pub use terms::terms;
pub use tokens::tokens;

/// Takes one input; panics where a promise is broken.
pub type Target = fn(&[u8]);

/// Every target, by its name: that of its program in `src/bin`, its seeds in `corpus/` and its words in
/// `dictionaries/`.
pub const ALL: [(&str, Target); 12] = [
    ("addresses", addresses),
    ("chunks", chunks),
    ("configurations", configurations),
    ("heads", heads),
    ("hosts", hosts),
    ("keys", keys),
    ("paths", paths),
    ("proxy_headers", proxy_headers),
    ("replies", replies),
    ("response_costs", response_costs),
    ("terms", terms),
    ("tokens", tokens),
];

/// Where an input is cut in two: everywhere, or at places spread over a long one.
fn cuts(length: usize) -> impl Iterator<Item = usize> {
    const MAX_CUTS: usize = 128;
    (0..=length).step_by(length / MAX_CUTS + 1)
}

/// The lines of an input, without their ends; for ever empty ones after the last.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').chain(std::iter::repeat(&b""[..]))
}
