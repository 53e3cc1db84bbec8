//! What a stream needs of its connection.

use std::sync::Arc;

use crate::clock::{Clock, Nanos};
use crate::config::Bounds;
use crate::edge::admission::IdleMark;
use crate::edge::cutoff::Cutoff;
use crate::edge::memory::ConnectionMemory;
use crate::edge::state::ConnectionState;

/// The bounds of a connection's stream, and where it reports.
pub(in crate::edge) struct StreamContext {
    pub(in crate::edge) bounds: Arc<Bounds>,
    pub(in crate::edge) clock: Arc<dyn Clock>,
    pub(in crate::edge) state: Arc<ConnectionState>,
    /// Where the connection reports whether it is idle; `None` if it is never closed to make room.
    pub(in crate::edge) mark: Option<Arc<IdleMark>>,
    /// The largest number of HTTP/2 resets that the client may cause in a minute.
    pub(in crate::edge) max_resets: u32,
    pub(in crate::edge) memory: ConnectionMemory,
    pub(in crate::edge) cutoff: Arc<Cutoff>,
}

impl StreamContext {
    /// The monotonic time.
    pub(super) fn now(&self) -> Nanos {
        self.clock.now().mono
    }
}
