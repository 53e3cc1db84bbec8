//! The configuration of one generation of the proxy.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::access_log::AccessLog;
use super::bounds::Bounds;
use super::field_edits::RouteEdits;
use super::listeners::{Admin, Listener};
use super::origins::Origin;
use super::responses::Responses;
use super::store::StoreConfig;
use crate::policy::client::ClientRules;
use crate::policy::{PerRoute, Policy};

/// A valid configuration: every name is resolved and every bound is checked.
#[derive(Debug)]
pub struct Config {
    /// The SHA-256 of its files, the included ones too: the first 16 hexadecimal digits. Empty in a build without the server.
    pub hash: Arc<str>,
    /// Number of worker threads; `None` starts one per core.
    pub threads: Option<NonZeroUsize>,
    /// Sockets that accept client connections; at least one, unless it is for a limiter inside another server.
    pub listeners: Vec<Listener>,
    /// The listener for operators.
    pub admin: Option<Admin>,
    /// Which peers may state the address of a client, and in which field.
    pub clients: ClientRules,
    /// Targets of forwarded requests; [`crate::policy::Route::origin`] is an index into this list. It may be empty for
    /// a limiter inside another server.
    pub origins: Vec<Origin>,
    /// Limits and routes.
    pub policy: Policy,
    /// The responses of each route.
    pub responses: PerRoute<Arc<Responses>>,
    /// What is changed in the header fields of each route's requests and answers.
    pub edits: PerRoute<Arc<RouteEdits>>,
    /// The responses to requests that no route matches.
    pub default_responses: Arc<Responses>,
    /// Bounds of the proxy itself.
    pub bounds: Bounds,
    /// What is logged of each request.
    pub access_log: AccessLog,
    /// Where exact limits keep their counters.
    pub store: StoreConfig,
}
