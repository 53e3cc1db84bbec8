//! The configuration as a whole.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::access_log::AccessLog;
use super::bounds::Bounds;
use super::listeners::{Admin, Listener};
use super::origins::Origin;
use super::responses::Responses;
use super::store::StoreConfig;
use crate::policy::Policy;
use crate::policy::client::ClientRules;

/// A configuration as it is meant: every name resolved, every bound checked.
#[derive(Debug)]
pub struct Config {
    /// Worker threads; `None` is one per core.
    pub threads: Option<NonZeroUsize>,
    /// Where requests come in; at least one.
    pub listeners: Vec<Listener>,
    /// The operators' own door.
    pub admin: Option<Admin>,
    /// Who is believed about clients' addresses.
    pub clients: ClientRules,
    /// Where requests go; [`crate::policy::Route::origin`] is a place in this list.
    pub origins: Vec<Origin>,
    /// Limits and routes.
    pub policy: Policy,
    /// How answers look, one per route, in the order of the routes.
    pub responses: Vec<Arc<Responses>>,
    /// How answers look where no route was found.
    pub default_responses: Arc<Responses>,
    /// Bounds of the proxy itself.
    pub bounds: Bounds,
    /// What is logged of each request.
    pub access_log: AccessLog,
    /// Where the exact tier counts.
    pub store: StoreConfig,
}
