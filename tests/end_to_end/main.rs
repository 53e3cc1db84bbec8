//! The binary on real sockets, with real clients and real origins.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

mod admin;
mod admin_access;
mod answers;
mod checks;
mod clean;
mod client_certificates;
mod client_faults;
mod command_line;
mod commands;
mod connections;
mod costs;
mod downloads;
mod endings;
mod error_log;
mod exchanges;
mod explain;
mod forwarding;
mod half_frames;
mod http2;
mod key_sets;
mod lifecycle;
mod limiting;
mod log_forms;
mod memory;
mod misdirected;
mod origin_health;
mod origin_tls;
mod origins;
mod pages;
mod refusals;
mod reloading;
mod room;
mod route_metrics;
mod server_names;
mod signals;
mod slow;
mod streams;
mod tickets;
mod tls;
mod tokens;
mod tunnels;
mod unread;
mod uploads;
