//! Where allowed requests go: the servers of each origin, their counters, and how many exchanges there may be.
//!
//! `group` is one origin: `discovery` finds its servers, `servers` keeps them, `health` knows which of them answer,
//! `checks` asks them, `balance` chooses one, `tls` reads the files of their connections. It does not know what a request
//! is charged. What must always hold: an exchange with an origin holds a slot from the choice of a server to its end.

mod balance;
mod checks;
mod counters;
mod discovery;
mod group;
mod health;
mod reachability;
mod servers;
mod slots;
mod tls;

pub(super) use balance::Attempt;
pub use counters::OriginCounters;
pub use group::OriginGroup;
pub(super) use health::ServerFailure;
pub use reachability::unreachable_servers as unreachable_origin_servers;
pub(super) use servers::InFlight;
pub use servers::ServerReport;
pub use slots::{AllOriginSlots, OriginSlots};
pub(super) use slots::{OriginSlot, SlotUse};
pub(super) use tls::OriginTlsFiles;
