//! How many file descriptors the process may have, and who gets them.
//!
//! What must always hold: operators, logs and the store have descriptors even when clients use all of theirs.

use std::fmt;

use rustix::process::{Resource, Rlimit};

/// Descriptors that are reserved for operators, logs, the store, health checks and files.
const RESERVED: usize = 256;

/// The largest number of idle connections to origins that are kept: as many as a busy node uses at once. With too few,
/// a burst opens and closes connections instead of using them again, which was measured to cost 40 % more processor
/// time for each request.
const MAX_IDLE_ORIGIN_CONNECTIONS: usize = 1_024;

/// How many of `all` descriptors are for idle connections to origins.
pub(super) fn idle_origin_connections(all: usize) -> usize {
    MAX_IDLE_ORIGIN_CONNECTIONS.min(all / 8)
}

/// Descriptors that may be open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorShares {
    /// Connections of clients.
    pub(super) connections: usize,
    /// Exchanges with origins.
    pub(super) exchanges: usize,
}

impl DescriptorShares {
    /// Divides `all` descriptors. Connections get at most half of those that are neither reserved nor for idle
    /// connections to origins.
    fn of(all: usize, max_connections: usize) -> Self {
        // With few descriptors the admin listener must still work.
        let reserved = RESERVED.min(all / 2);
        let rest = (all - reserved).saturating_sub(idle_origin_connections(all));
        let connections = max_connections.min(rest / 2).max(1);
        Self { connections, exchanges: rest.saturating_sub(connections).max(1) }
    }
}

/// What a process needs, and what the system allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorPlan {
    max_connections: usize,
    needed: usize,
    /// How many there may be; at most as many as are needed.
    pub(super) allowed: usize,
    pub(super) shares: DescriptorShares,
}

impl DescriptorPlan {
    /// What this process may have once it has raised its own limit. Changes nothing.
    pub(super) fn read_from_system(max_connections: usize) -> Self {
        let hard_limit = rustix::process::getrlimit(Resource::Nofile).maximum;
        Self::with(max_connections, hard_limit.unwrap_or(u64::MAX))
    }

    fn with(max_connections: usize, allowed: u64) -> Self {
        // Each client connection may need one to an origin.
        let needed = max_connections
            .saturating_mul(2)
            .saturating_add(MAX_IDLE_ORIGIN_CONNECTIONS + RESERVED);
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX).min(needed);
        let shares = DescriptorShares::of(allowed, max_connections);
        Self { max_connections, needed, allowed, shares }
    }

    /// Raises the process's limit to what is planned. Returns the plan for what it has then.
    pub(super) fn carry_out(self) -> Self {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let current = limit.current.unwrap_or(u64::MAX);
        if current >= self.allowed as u64 {
            return self;
        }
        let raised = Rlimit { current: Some(self.allowed as u64), maximum: limit.maximum };
        match rustix::process::setrlimit(Resource::Nofile, raised) {
            Ok(()) => self,
            Err(_) => Self::with(self.max_connections, current),
        }
    }

    /// That there are too few for `max_connections`.
    pub(super) fn shortage(self) -> Option<DescriptorShortage> {
        (self.shares.connections < self.max_connections).then_some(DescriptorShortage {
            max_connections: self.max_connections,
            needed: self.needed,
            allowed: self.allowed,
            connections: self.shares.connections,
            exchanges: self.shares.exchanges,
        })
    }
}

/// The system allows too few file descriptors for `max_connections`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorShortage {
    /// The bound that the configuration sets.
    pub max_connections: usize,
    /// Descriptors that it needs.
    pub needed: usize,
    /// Descriptors that the system allows.
    pub allowed: usize,
    /// Connections of clients that are accepted with these.
    pub connections: usize,
    /// Exchanges with origins that are possible with these.
    pub exchanges: usize,
}

impl fmt::Display for DescriptorShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "max_connections: {} need {} descriptors and the system allows {}: {} connections are accepted, and {} \
             exchanges with origins; raise the limit (LimitNOFILE=, ulimit -n) or lower max_connections",
            self.max_connections, self.needed, self.allowed, self.connections, self.exchanges
        )
    }
}
