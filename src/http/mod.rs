//! HTTP as values: which requests are valid, which fields a client is told, what a refusal says.
//!
//! Everything here is a pure function of its arguments: no socket, no clock, no configuration beyond what is passed in.
//! `validation` turns the head of a request into the view that a policy is matched on, or into a [`Reason`] to refuse
//! it. `fields`, `members` and `render` turn a decision into header fields and refusals. Only `framework` knows
//! Pingora.
//!
//! What must always hold: a request that two readers could take for different ones is refused, and nothing of a request
//! is echoed in an answer.

mod fields;
mod framework;
mod lines;
mod members;
mod negotiate;
pub(crate) mod render;
mod validation;

pub(crate) use fields::Standing;
pub use fields::retry_after_secs;
pub use framework::FrameworkReply;
pub use lines::InvalidField;
pub(crate) use lines::{LIMIT, Lines, REMAINING, RESET};
pub(crate) use members::Members;
pub use negotiate::Asking;
pub(crate) use render::Reply;
pub use render::{Refusal, fields_beside, refusal};
pub use validation::{
    Clean, FieldRules, Framing, GateBounds, Head, HeadScan, LastHost, Length, Rare, Reason,
    Scanned, WireHead, pass, pass_scanned,
};
