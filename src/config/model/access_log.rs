//! `access_log`: what is logged of each request.

use std::path::PathBuf;

/// What is logged of each request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where the log is written.
    pub to: LogTarget,
    /// Share of allowed requests that is logged, in parts per million.
    pub sample_ppm: u32,
    /// Share of refused requests that is logged, in parts per million.
    pub sample_denied_ppm: u32,
    /// How much of the client address is logged.
    pub client_ip: LogAddress,
    /// What is logged as the path.
    pub path: LogPath,
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
