//! The deadlines of a handover; both sides must agree on them.

use std::time::Duration;

/// How long a QUIT stays valid. A successor that connects later needs another one.
pub(super) const QUIT_VALIDITY: Duration = Duration::from_secs(60);

/// How long a successor waits until the running process receives a QUIT.
pub(super) const SUCCESSOR_PATIENCE: Duration = Duration::from_secs(60);

/// How long the other side may be silent, or take nothing of what is sent, while it has something to do.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handover may take from QUIT to the switch. Ten million cells take half a minute on two busy cores.
pub(super) const HANDOVER_TIMEOUT: Duration = Duration::from_secs(180);

/// How long the requests of the running process wait at most, while its successor takes up what it counts. A successor
/// that takes longer gets nothing.
pub(super) const PAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a successor with a directory of its own waits at the switch until the last changes are on its disk. The requests of
/// the running process wait meanwhile.
pub(super) const LAST_SAVE_PATIENCE: Duration = Duration::from_millis(500);

/// How long a handover waits for a disk that is being written to. Then the successor is told that it gets nothing.
pub(super) const KEEPER_PATIENCE: Duration = Duration::from_secs(10);

/// How often a waiting successor checks whether it was told to end.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long one short message may take.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a request waits for the successor's verdict. The successor may wait for its disk for 1 s (`after_crash: deny`), and
/// answers then.
pub(super) const VERDICT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The same once it has not answered one in time, until it answers again.
pub(super) const SILENT_TIMEOUT: Duration = Duration::from_millis(10);
