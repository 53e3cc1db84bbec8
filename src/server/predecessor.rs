//! What was counted before this process, and where it comes from: nowhere, from a state directory, or from the process that
//! serves the same file now.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::RunOptions;
use super::components::{Components, CountsBefore};
use super::later_state::LaterState;
use super::start_error::StartError;
use super::state_keeping::OpenState;
use crate::clock::{Clock as _, SystemClock};
use crate::config::{Config, StoreConfig};
use crate::edge::ListeningSockets;
use crate::handover::{self, BeginSaving, Greeted, TakeUp, greet};
use crate::policy::KeySecret;
use crate::signals::OperatorRequests;
use crate::state::OtherSecret;

/// What was counted before this process.
pub(super) enum Before {
    /// Nothing that this process could have.
    Nothing,
    /// What a state directory holds.
    Saved(Box<OpenState>),
    /// What the running process counts.
    Running(Greeted, Option<LaterState>),
}

/// What this process begins with.
pub(super) struct Beginning {
    /// Empty without a running process.
    pub(super) sockets: ListeningSockets,
    /// Set if the running process still counts.
    pub(super) successor: Option<TakeUp>,
    /// A state directory that has to be restored.
    pub(super) state: Option<Box<OpenState>>,
}

impl Before {
    /// Finds the running process with `upgrade`, else opens the state directory.
    pub(super) fn find(
        config: &Config,
        options: RunOptions,
        socket_path: &io::Result<PathBuf>,
    ) -> Result<Self, StartError> {
        if let Some(greeted) = greeted(options.upgrade, socket_path)? {
            let other = match options.ignore_state {
                true => OtherSecret::IsIgnored,
                false => OtherSecret::IsRefused,
            };
            let later = match config.store.state() {
                Some(settings) => Some(LaterState::check(settings, &greeted, other)?),
                None => None,
            };
            if greeted.has_state() && later.is_none() {
                log::warn!(
                    "the running process keeps its state, and this one does not: what it takes over is lost when it ends"
                );
            }
            if options.ignore_state {
                log::warn!(
                    "--ignore-state: the counts come from the running process; only what a directory holds under another secret is moved away"
                );
            }
            return Ok(Self::Running(greeted, later));
        }
        let Some(settings) = config.store.state() else {
            return Ok(Self::Nothing);
        };
        let clock = SystemClock::new();
        let date = clock.date(clock.now());
        OpenState::open(settings, options.ignore_state, date.secs())
            .map(|state| Self::Saved(Box::new(state)))
    }

    /// A clock on the time lines of what was counted.
    pub(super) fn clock(&self) -> SystemClock {
        match self {
            Self::Nothing => SystemClock::new(),
            Self::Saved(state) => state.clock(),
            Self::Running(greeted, _) => greeted.clock(),
        }
    }

    /// What the parts of this process must know of it.
    pub(super) fn counts(&self, config: &Config) -> CountsBefore {
        let is_shared = matches!(config.store, StoreConfig::Redis(_));
        match self {
            Self::Nothing => CountsBefore { secret: None, are_saved: false, are_awaited: false },
            Self::Saved(state) => {
                CountsBefore { secret: Some(state.secret()), are_saved: true, are_awaited: true }
            }
            Self::Running(greeted, later) => CountsBefore {
                // That of a shared store is in the store.
                secret: (!is_shared).then(|| KeySecret::new(*greeted.secret())),
                are_saved: later.is_some(),
                are_awaited: true,
            },
        }
    }

    /// Waits for the running process to hand over, if there is one. `None`: this process was told to end meanwhile.
    pub(super) fn take_over(
        self,
        components: &Components,
        clock: &Arc<SystemClock>,
        requests: &OperatorRequests,
    ) -> Result<Option<Beginning>, StartError> {
        let sockets = ListeningSockets::default();
        match self {
            Self::Nothing => Ok(Some(Beginning { sockets, successor: None, state: None })),
            Self::Saved(open) => {
                Ok(Some(Beginning { sockets, successor: None, state: Some(open) }))
            }
            Self::Running(greeted, later) => {
                let keeping = components.state_keeping(Arc::clone(clock));
                let look = later.map(|later| -> Box<dyn FnOnce() -> BeginSaving + Send> {
                    Box::new(move || later.look(keeping))
                });
                let parts = components.take_up_context(look);
                let taken = handover::take_over(greeted, requests, &components.ticket_keys, parts)
                    .map_err(|error| StartError::TakeOver(handover::explained(error)))?;
                Ok(taken.map(|handover::TakenOver { sockets, successor }| Beginning {
                    sockets,
                    successor: Some(successor),
                    state: None,
                }))
            }
        }
    }
}

/// The running process; `None` without `upgrade`, or if there is none.
fn greeted(
    upgrade: bool,
    socket_path: &io::Result<PathBuf>,
) -> Result<Option<Greeted>, StartError> {
    match socket_path {
        _ if !upgrade => Ok(None),
        Ok(socket_path) => {
            greet(socket_path).map_err(|error| StartError::TakeOver(handover::explained(error)))
        }
        Err(error) => Err(StartError::TakeOver(io::Error::new(error.kind(), error.to_string()))),
    }
}
