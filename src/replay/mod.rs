//! What a policy would have done to an access log.
//!
//! Requests are read from logs (`logs`), put into the order in which they began (`order`), and judged by the proxy's own engine
//! on the log's time (`policy`). What is counted of them (`tally`), the comparison of two policies, suggested rates and bounds
//! see plain values only (`judged`). What must always hold: what a log does not say is counted and reported, never guessed in
//! silence; and memory does not grow with the log.

mod bound_totals;
pub mod bounds;
mod clock;
pub mod compare;
mod entry;
pub mod judged;
mod key_memory;
mod key_text;
mod labels;
mod logs;
pub mod names;
mod notes;
mod observer;
mod open_requests;
mod order;
mod policy;
pub mod report;
mod run;
mod secrets;
mod settled;
pub mod suggest;
mod suggestions;
pub mod tally;

pub use entry::{Lateness, LogEntry, SourceIndex, Unjudged};
pub use judged::{AppliedRate, JudgedRequest, KeyResult, KeyVerdict, ShowKey};
pub use key_memory::MemoryBounds;
pub use logs::{Log, LogError, MAX_LOGS, MergedLogs, ReadSettings, ReadSummary};
pub use order::{MAX_WAITING, OrderCounts, Ordering};
pub use policy::{Judgment, NotJudged, ReplayedPolicy};
pub use report::{PAGE_MARK, Report};
pub use run::{ReplayOptions, replay, unread_headers};
pub use secrets::KeySecrets;
pub use suggest::KeyShare;
