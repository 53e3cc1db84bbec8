//! Where allowed requests go: the servers of each origin, their counters, and how many exchanges there may be.
//!
//! It does not know what a request is charged. What must always hold: an exchange with an origin holds a slot from the
//! choice of a server to its end.

mod counters;
mod group;
mod slots;

pub use counters::OriginCounters;
pub use group::OriginGroup;
pub(super) use group::roots;
pub use slots::{AllOriginSlots, OriginSlots};
pub(super) use slots::{OriginSlot, SlotUse};
