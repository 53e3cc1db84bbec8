//! One call of the script: how charges become its arguments, and what its reply says of each of them.
//!
//! Charges are added one after the other (`build.rs`) until the call would keep the server busy for too long. Equal
//! charges that follow each other are one run (`run.rs`). The script says how many charges of a run were admitted and
//! what its cells were before; every verdict is then computed by the functions that judge embedded cells
//! (`limit/reading.rs`). A call does not know servers, connections or callers. A reply that contradicts itself or
//! those functions is invalid as a whole: no part of it is used.

mod arguments;
mod build;
mod cell;
mod reply;
mod run;

pub use arguments::{Argument, Arguments};
pub(super) use build::fills_a_call;
pub use build::{Call, CallFull};
