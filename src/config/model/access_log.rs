//! `access_log`: what is logged of each request.

use std::path::PathBuf;

/// What is logged of each request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where it goes.
    pub to: LogTarget,
    /// The share of allowed requests that is logged, in parts of a million.
    pub sample_ppm: u32,
    /// The share of refused requests that is logged, in parts of a million.
    pub sample_denied_ppm: u32,
    /// How much of the client's address.
    pub client_ip: LogAddress,
    /// Whether the path is cut to the route's name.
    pub path: LogPath,
}

/// Where a log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, appended to; opened again on reload.
    File(PathBuf),
    /// Nowhere.
    None,
}

/// How much of a client's address is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogAddress {
    /// All of it.
    Full,
    /// An IPv4 /24, an IPv6 network of `clients.ipv6_prefix` bits.
    Prefix,
    /// Nothing.
    None,
}

/// What is logged as the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPath {
    /// The path, without the query.
    Full,
    /// The route's name.
    Route,
}
