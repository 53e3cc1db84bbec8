//! Where allowed requests go: the servers of each origin, their counters, and how many exchanges there may be.

mod counters;
mod group;
mod slots;

pub use counters::OriginCounters;
pub use group::OriginGroup;
pub(super) use group::roots;
pub use slots::{AllOriginSlots, OriginSlots};
pub(super) use slots::{OriginSlot, SlotUse};
