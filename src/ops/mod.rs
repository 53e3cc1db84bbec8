//! What operators see and do: metrics, the admin API, logs, reloads, and the end of the process.
//!
//! It reads what the rooms below count, and gives every metric and log field its name. It does not know how the process
//! is put together; `server` gives each part what it needs. What must always hold: no label comes
//! from a request, and no request waits for a log.

mod access_log;
mod admin;
mod audit;
mod certificate_warnings;
mod fleet_metrics;
mod json_text;
mod key_changes;
mod lifecycle;
mod line_writer;
mod log;
mod metric_family;
mod metrics;
mod policy_changes;
mod reload;
mod saved_history;
mod status;
pub mod supervisor;
mod traffic_totals;

pub use access_log::AccessLogSink;
pub(crate) use access_log::{RECENT_LINES_BYTES, keeps_recent_lines};
pub use admin::{
    ADMIN_API, AdminAccess, AdminApi, AnswerQueue, LOG_DROPPED, LOG_KEPT_SINCE, LOG_LAST, LOG_NEXT,
    RequestBuckets,
};
pub use audit::AuditLog;
pub use certificate_warnings::certificate_warnings;
pub use key_changes::{KeyChanges, POLL_EVERY};
pub use lifecycle::Lifecycle;
pub(crate) use lifecycle::SETTLING_TIME;
pub use line_writer::LineWriter;
pub use log::{LogForm, LogSettings, init as init_log};
pub use metrics::{Sources as MetricSources, process_collector, render as render_metrics};
pub use reload::{ReloadSource, Reloader};
pub use saved_history::HistorySection;
pub use status::{ReloadOutcome, Status};
pub use traffic_totals::traffic_totals;
