//! What the running process needs to hand over.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::keeper::KeeperTask;
use crate::clock::SystemClock;
use crate::edge::{ListeningSockets, TicketKeys};
use crate::engine::Engine;
use crate::proxy::{Live, Publishing};
use crate::signals::OperatorRequests;

/// What is handed over, and what that needs.
pub(crate) struct HandoverContext {
    pub(crate) sockets: Arc<ListeningSockets>,
    pub(crate) ticket_keys: Arc<TicketKeys>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) live: Arc<ArcSwap<Live>>,
    pub(crate) publishing: Arc<Mutex<Publishing>>,
    pub(crate) requests: Arc<OperatorRequests>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Has the history keep what was counted in the present minute.
    pub(crate) keep_history: Box<dyn Fn() + Send + Sync>,
    /// Has a task done on the keeper's thread.
    pub(crate) keeper: Box<dyn Fn(KeeperTask) -> io::Result<()> + Send + Sync>,
    /// Whether this process has a state directory.
    pub(crate) has_state: bool,
}
