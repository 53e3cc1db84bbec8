//! Suggested rates: the smallest rate at which a limit would have refused at most a given share of keys.
//!
//! [`Demand`] counts, per key, the largest use in the limit's own window. It counts all units, whether the request was
//! refused or not. Up to its first refusal a key has spent exactly what it demanded. So a limit refuses a key at least
//! once if, and only if, the peak of its demand is above the limit:
//!
//! | algorithm | peak of a key | exact |
//! |---|---|---|
//! | `fixed_window` | units of a window aligned to the epoch | yes |
//! | `sliding_window`, estimate tier | the current window, and the covered share of the previous one | yes |
//! | `sliding_log` | units of any window | up to a sixteenth of a window too long, never too short |
//! | `token_bucket` | units that the bucket must hold, at several rates | yes |
//! | `max_in_flight` | units at once | yes |
//!
//! A demand that is measured too large gives a larger rate. So no approximation makes the suggested rate refuse more
//! keys than asked.

mod certainty;
mod demand;
mod demand_table;
mod held_units;
mod in_flight;
mod paste;
mod peaks;
mod rungs;
mod share;
mod suggestion;

pub use demand::{Demand, DemandedUnits};
pub use held_units::HeldUnits;
pub use in_flight::InFlightDemand;
pub use paste::{LimitLines, paste};
pub use share::KeyShare;
pub use suggestion::{CurvePoint, PeakMeasure, PeakPercentiles, SuggestedLimit, Suggestion};
