//! `access_log`: what is logged of each request, and in which form.

use std::path::PathBuf;

use http::HeaderName;
use http::header::USER_AGENT;

use super::log_template::LogTemplate;

/// What is logged of each request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where the log is written.
    pub to: LogTarget,
    /// The form of a line.
    pub format: LogFormat,
    /// Share of allowed requests that is logged, in parts per million.
    pub sample_ppm: u32,
    /// Share of refused requests that is logged, in parts per million.
    pub sample_denied_ppm: u32,
    /// How much of the client address is logged.
    pub client_ip: LogAddress,
    /// What is logged as the path.
    pub path: LogPath,
    /// How much is logged of the key of the limit that decided.
    pub log_key: LogKey,
    /// Whether a line has what a replay needs: a member `replay`.
    pub replay: bool,
    /// Fields that are left out because their value is a key of the policy.
    pub hidden: HiddenFields,
}

impl AccessLog {
    /// All requests, in parts per million.
    pub const ALL_PPM: u32 = 1_000_000;

    /// Whether lines of some requests are left out.
    pub const fn is_sampled(&self) -> bool {
        self.sample_ppm < Self::ALL_PPM || self.sample_denied_ppm < Self::ALL_PPM
    }
}

/// Where a log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file; lines are appended, and a reload opens it again.
    File(PathBuf),
    /// Nothing is logged.
    None,
}

/// The form of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object with tollgate's own names.
    Json,
    /// A JSON object with the names of the Elastic Common Schema.
    Ecs,
    /// A JSON object in the log data model of OpenTelemetry.
    Otel,
    /// The combined format of Apache and NGINX.
    Combined,
    /// The operator's own text.
    Template(LogTemplate),
}

/// How much of a client address is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAddress {
    /// The full address.
    Full,
    /// An IPv4 /24, or an IPv6 network of `clients.ipv6_prefix` bits.
    Prefix,
    /// Nothing.
    None,
}

/// What is logged as the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPath {
    /// The path without the query.
    Full,
    /// The name of the route.
    Route,
}

/// How much is logged of the key of the limit that decided. The key itself never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKey {
    /// Nothing.
    None,
    /// The keyed hash under which the key is stored.
    Hash,
    /// The beginning of that hash: enough to group lines, too little to name a key.
    Prefix,
}

/// Fields of the log that come from a header, and are left out where the policy uses this header as a key or as the name
/// of a plan: the value may be a secret then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenFields {
    /// `user_agent`.
    pub user_agent: bool,
    /// `trace_id`.
    pub trace_id: bool,
}

impl HiddenFields {
    /// What to hide where these headers are keys.
    pub(in crate::config) fn of<'n>(keys: impl Iterator<Item = &'n HeaderName>) -> Self {
        let mut hidden = Self::default();
        for name in keys {
            hidden.user_agent |= *name == USER_AGENT;
            hidden.trace_id |= name.as_str() == "traceparent";
        }
        hidden
    }
}
