//! The deadlines of a handover; both sides must agree on them.

use std::time::Duration;

/// How long a QUIT stays valid. A successor that connects later needs another one.
pub(super) const QUIT_VALIDITY: Duration = Duration::from_secs(60);

/// How long a successor waits until the running process receives a QUIT.
pub(super) const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);

/// How long a successor may take between receiving the sockets and its report that it accepts.
pub(super) const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a waiting successor checks whether it was told to end.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long one message may take.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
