//! What was counted before this process, and where it comes from: nowhere, from a state directory, or from the process that
//! serves the same file now.

use std::io;
use std::path::PathBuf;

use super::RunOptions;
use super::components::{Components, CountsBefore};
use super::start_error::StartError;
use super::state_keeping::{LaterState, OpenState};
use crate::clock::{Clock as _, SystemClock};
use crate::config::{Config, StoreConfig};
use crate::edge::ListeningSockets;
use crate::handover::{self, Greeted, TakeUp, greet};
use crate::policy::KeySecret;
use crate::signals::OperatorRequests;
use crate::state::DirectoryIdentity;

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
    pub(super) state: StateStart,
}

/// The state directory at the start.
pub(super) enum StateStart {
    /// There is none.
    None,
    /// It has to be restored.
    Restored(Box<OpenState>),
    /// It is saved to after the handover.
    AfterHandover(LaterState),
}

impl Before {
    /// Finds the running process with `upgrade`, else opens the state directory.
    pub(super) fn find(
        config: &Config,
        options: RunOptions,
        socket_path: &io::Result<PathBuf>,
    ) -> Result<Self, StartError> {
        if let Some(greeted) = greeted(options.upgrade, socket_path)? {
            let later = match config.store.state() {
                Some(settings) => Some(LaterState::check(settings, &greeted)?),
                None => None,
            };
            warn_of_directories(&greeted, later.as_ref());
            if options.ignore_state {
                log::warn!(
                    "--ignore-state has no effect: the counts come from the running process"
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

    /// The state directory.
    pub(super) fn directory(&self) -> Option<DirectoryIdentity> {
        match self {
            Self::Nothing => None,
            Self::Saved(state) => state.identity(),
            Self::Running(_, later) => later.as_ref().and_then(LaterState::identity),
        }
    }

    /// Waits for the running process to hand over, if there is one. `None`: this process was told to end meanwhile.
    pub(super) fn take_over(
        self,
        components: &Components,
        requests: &OperatorRequests,
    ) -> Result<Option<Beginning>, StartError> {
        let (sockets, state) = (ListeningSockets::default(), StateStart::None);
        match self {
            Self::Nothing => Ok(Some(Beginning { sockets, successor: None, state })),
            Self::Saved(open) => {
                let state = StateStart::Restored(open);
                Ok(Some(Beginning { sockets, successor: None, state }))
            }
            Self::Running(greeted, later) => {
                let parts = components.take_up_context();
                let taken = handover::take_over(greeted, requests, &components.ticket_keys, parts)
                    .map_err(StartError::TakeOver)?;
                Ok(taken.map(|handover::TakenOver { sockets, successor }| Beginning {
                    sockets,
                    successor: Some(successor),
                    state: later.map_or(StateStart::None, StateStart::AfterHandover),
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
        Ok(socket_path) => greet(socket_path).map_err(StartError::TakeOver),
        Err(error) => Err(StartError::TakeOver(io::Error::new(error.kind(), error.to_string()))),
    }
}

/// Says what becomes of a state directory that only one of the processes has.
fn warn_of_directories(greeted: &Greeted, later: Option<&LaterState>) {
    match (greeted.directory(), later) {
        (Some(_), None) => log::warn!(
            "the running process keeps its state, and this one does not: what it takes over is lost when it ends"
        ),
        (Some(_), Some(own)) if !own.is_shared() => log::warn!(
            "the running process keeps its state in another directory, whose files grow old from now on"
        ),
        _ => {}
    }
}
