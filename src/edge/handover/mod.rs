//! ListenerService sockets go from a running process to its successor, and no connection is lost.
//!
//! Each process listens on a Unix socket in a private directory. A successor (`--upgrade`), its
//! configuration loaded, connects there and waits. When the running process is told to (QUIT), it
//! sends its listening sockets and the keys of session tickets; when the successor says that it
//! accepts, the old one stops accepting, finishes what it has, and ends. Whatever goes wrong before
//! that word, the old one serves on as if nothing had been.

mod offer;
mod run_dir;
mod takeover;
mod wire;

use std::time::Duration;

pub(crate) use offer::{HandoverOffer, HandoverState};
pub(crate) use run_dir::socket_path;
pub(crate) use takeover::{Successor, take_over};

/// How long a QUIT is good for: a successor that comes later needs another.
const QUIT_IS_GOOD_FOR: Duration = Duration::from_secs(60);

/// How long a successor waits for the running process to be told.
const SUCCESSOR_WAITS: Duration = Duration::from_secs(60);

/// How long a successor may take from its sockets to its word.
const WORD_IS_DUE: Duration = Duration::from_secs(10);

/// Between two looks whether a successor that waits was told to end.
const LOOK: Duration = Duration::from_millis(100);

/// How long one message may take.
const MESSAGE: Duration = Duration::from_secs(5);
