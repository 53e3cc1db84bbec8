//! HTTP as values: which requests are valid, which fields a client is told, what a refusal says.
//!
//! Everything here is a pure function of its arguments: no socket, no clock, no configuration beyond what is passed in.
//! `validation` turns the head of a request into the view that a policy is matched on, or into a [`RejectReason`] to
//! refuse it. `ratelimit_fields`, `policy_members` and `render` turn a decision into header fields and refusals; `problem`
//! and `page` write their bodies, `challenge` what a 401 asks for.
//! `answer_preferences` finds which body the client prefers and which page may read it; `trace` reads the trace that a
//! request belongs to, `forwarded` what a trusted proxy says about it. Only `framework` knows Pingora.
//!
//! What must always hold: a request that two readers could take for different ones is refused, and no text of a
//! request is echoed in an answer.

mod answer_preferences;
mod challenge;
mod field_edits;
mod forwarded;
#[cfg(feature = "pingora")]
mod framework;
mod lines;
mod page;
#[cfg(feature = "bin")]
mod plain_text;
mod policy_members;
mod problem;
mod ratelimit_fields;
mod redirect;
pub(crate) mod render;
mod trace;
mod validation;

pub use answer_preferences::AnswerPreferences;
#[cfg(feature = "bin")]
pub(crate) use field_edits::{edit, edit_own};
#[cfg(feature = "bin")]
pub(crate) use forwarded::{forwarded_host, forwarded_scheme};
#[cfg(feature = "pingora")]
pub use framework::FrameworkReply;
#[cfg(feature = "bin")]
pub(crate) use framework::{edit_request, edit_response};
pub use lines::InvalidField;
pub(crate) use lines::{LIMIT, Lines, REMAINING, REQUEST_ID, RESET, field};
#[cfg(feature = "bin")]
pub(crate) use plain_text::is_no_text;
pub(crate) use policy_members::PolicyMembers;
pub(crate) use ratelimit_fields::RateLimitFields;
pub use ratelimit_fields::retry_after_secs;
#[cfg(feature = "bin")]
pub(crate) use redirect::redirect;
pub use redirect::{ServedHosts, https_location};
pub(crate) use render::Reply;
pub use render::{Refusal, added_fields, refusal};
pub(crate) use trace::trace_id;
pub use validation::{
    FieldRules, Framing, Head, HeadBounds, HeadScan, HostCache, Length, RejectReason, ScannedHead,
    UncommonFields, ValidRequest, WireHead, validate, validate_scanned,
};
