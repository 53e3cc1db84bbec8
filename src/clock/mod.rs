//! Time as a value. Only `system.rs` reads a clock.
//!
//! All other code takes a [`Now`] as an argument. It holds two readings of one instant: `mono` never jumps and is used
//! for refills, logs and delays; `wall` counts from the Unix epoch and is used only to align windows. A third reading,
//! [`Clock::date`], is the system's clock as it is: it decides when tokens expire and rollouts begin, and is shown in
//! header fields and logs.
//!
//! Always true: neither `mono` nor `wall` runs back. After the system's clock is set back, the date follows at once, and
//! `wall` slews (`time_lines.rs`).

mod manual;
mod nanos;
mod now;
mod system;
mod time_lines;
#[cfg(feature = "bin")]
mod time_mark;

pub use manual::ManualClock;
pub use nanos::Nanos;
pub(crate) use nanos::RoundedSpan;
pub use now::{Clock, Now};
pub(crate) use system::Stopwatch;
pub use system::SystemClock;
#[cfg(feature = "bin")]
pub use time_mark::TimeMark;
