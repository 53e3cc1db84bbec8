//! A rehearsal of a start, for `tollgate check`: what `run` would refuse on this machine, and what it would warn of.
//!
//! It builds what `run` builds, with the same code, short of serving ([`super::prerequisites`]). It asks other machines
//! only if it is told to. What must always hold: it changes nothing, so that it can run next to a process that serves the
//! same file. An address that is in use is no error for that reason: that process listens there.

use std::net::SocketAddr;

use super::descriptors::{DescriptorPlan, DescriptorShortage};
use super::prerequisites;
use super::start_error::{StartError, located};
use crate::clock::{Clock, SystemClock};
use crate::config::{ConfigErrors, LoadedConfig, Warning};
use crate::ops::certificate_warnings;

/// What a rehearsal found.
#[derive(Debug, Default)]
pub struct Rehearsal {
    /// What warns `run` too.
    pub warnings: Vec<Warning>,
    /// Addresses that a program listens on, probably tollgate itself.
    pub in_use: Vec<SocketAddr>,
    /// That this machine allows too few descriptors. Not one of the warnings, since the machine that serves the file
    /// often allows more than the one that checks it.
    pub shortage: Option<DescriptorShortage>,
}

/// How far a rehearsal goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RehearsalScope {
    /// Only the files: the configuration is for another machine.
    Files,
    /// This machine too: its addresses, and the directory of the access log.
    Machine,
    /// The store and the servers of the origins too, on other machines.
    Network,
}

/// Rehearses a start.
///
/// # Errors
///
/// `run` would refuse to start, for all of these reasons.
pub fn rehearse(loaded: &LoadedConfig, scope: RehearsalScope) -> Result<Rehearsal, ConfigErrors> {
    let LoadedConfig { config, source, .. } = loaded;
    let clock = SystemClock::new();
    let now = clock.now();
    let found = match scope {
        RehearsalScope::Files => prerequisites::rehearse_files(config, now),
        RehearsalScope::Machine | RehearsalScope::Network => prerequisites::rehearse(config, now),
    };
    let (in_use, mut errors): (Vec<_>, Vec<_>) =
        found.into_iter().partition(StartError::is_address_in_use);
    let mut warnings = certificate_warnings(config, source, clock.date(now));
    if scope == RehearsalScope::Network {
        match super::reachability::ask(config, source) {
            Ok(unreachable) => warnings.extend(unreachable),
            Err(error) => errors.push(StartError::Runtime(error)),
        }
    }
    if !errors.is_empty() {
        return Err(located(&errors, &config.listeners, source));
    }
    let in_use = in_use.into_iter().filter_map(|error| match error {
        StartError::Listen(listen) => Some(listen.address),
        _ => None,
    });
    let shortage = match scope {
        RehearsalScope::Files => None,
        RehearsalScope::Machine | RehearsalScope::Network => {
            DescriptorPlan::read_from_system(config.bounds.max_connections).shortage()
        }
    };
    Ok(Rehearsal { warnings, in_use: in_use.collect(), shortage })
}
