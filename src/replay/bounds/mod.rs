//! Certain bounds of the number of requests that a limit would have refused, from a log that does not tell their true
//! instants and order.
//!
//! Each request has an interval in which it truly began. The bounds hold for all true instants in these intervals: the
//! engine, judging at the true instants in their order, would have refused at least `lower` and at most `upper`
//! requests. The proofs stand where the rules are:
//!
//! | algorithm | rule | file |
//! |---|---|---|
//! | `token_bucket`, `sliding_log`, `fixed_window` | sets that are admitted at true times are admitted at known times by a larger limit, and the reverse | `admission.rs`, `set_bounds.rs` |
//! | `sliding_window`, estimate tier | an interval of the units that each window charged | `pair_bounds.rs` |
//!
//! The caller has to know what a request did apart from its instant ([`Certainty`]). What it cannot know at all (plans
//! and overrides that change, bans, a store that was away) makes a limit unbounded: then the bounds are zero and the
//! number of judged requests. So does a log of thousands of units whose charges are refunded: above 12,500 charges it joins
//! them.
//!
//! **The estimate tier** judges as a [`SlidingWindow`](crate::limit::SlidingWindow) while at least a quarter of its
//! confirm table is free. In a fuller table it leaves units of some keys uncounted. Its requests are then
//! [`Certainty::Possible`]: the upper bound holds, because a unit that is not counted refuses nothing.

mod admission;
mod key_states;
mod pair_bounds;
mod reordering;
mod set_bounds;
mod stamp_bounds;
mod stamped_request;

pub use stamp_bounds::StampBounds;
pub use stamped_request::{Certainty, CostRange, RefusalBounds, StampPrecision, StampedRequest};
