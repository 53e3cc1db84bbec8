//! What reports call the routes and limits of a policy.

use std::sync::Arc;

use crate::clock::Nanos;

/// The routes and limits of one policy, in its order.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The names of the routes.
    pub routes: Vec<Arc<str>>,
    /// The limits.
    pub limits: Vec<LimitLabel>,
}

/// What a report says of a limit itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitLabel {
    /// Its name.
    pub name: Arc<str>,
    /// The sources of its key, as in the configuration: `client_ip`, `header:x-api-key`.
    pub key: String,
    /// Its own rate: `100/1m`.
    pub rate: String,
    /// The window of that rate. Peak rates are counted in windows of this length.
    pub window: Nanos,
    /// Its algorithm: `token_bucket`.
    pub algorithm: &'static str,
    /// Its tier: `exact`.
    pub tier: &'static str,
    /// How long it delays a request before it refuses it, if it delays requests.
    pub max_delay: Option<String>,
    /// Whether it is in shadow mode.
    pub is_shadow: bool,
    /// Its rollout: `10 % of keys`.
    pub rollout: Option<String>,
}
