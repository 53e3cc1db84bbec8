//! Request validation: a request that is not clean is refused here, before anything is matched.
//!
//! A request that the policy reads one way and an origin another way is an unlimited request. So what depends on its reader
//! is refused, and what is forwarded is exactly the path that was matched. An HTTP/1 head is scanned before a lenient parser
//! reads it (`head.rs`), and the result is read out of the parsed head ([`validate_scanned`]). An HTTP/2 head, which the
//! framework has parsed, goes through [`validate`]. This room knows no routes and no limits.

mod bytes;
mod fields;
mod framing;
mod head;
mod host;
mod path;
mod readings;
mod reject_reason;
mod request;
mod scanned_head;
mod target;
mod uncommon_fields;

pub use fields::FieldRules;
pub use framing::{Framing, Length};
pub use head::{HeadScan, WireHead};
pub use reject_reason::RejectReason;
pub use request::{Head, HeadBounds, ValidRequest, validate};
pub use scanned_head::{HostCache, ScannedHead, validate_scanned};
pub use uncommon_fields::UncommonFields;
