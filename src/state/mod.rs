//! The state directory: what survives the process, as frames in files.
//!
//! ```text
//!   DIR/lock          held by the process that uses the directory
//!   DIR/key-secret    the secret of the keys' hashes, mode 0600
//!   DIR/log.000007    ┐ start │ everything, shard by shard, between changes │ complete │ changes ...
//!   DIR/log.000008    ┘ start │ changes, and everything again ...
//! ```
//!
//! There is one kind of file, a log of frames. A *round* begins with a new log and writes everything once, a few shards
//! after each batch of changes, so that no moment writes much. When everything is written, the round is complete, and the
//! logs before the previous complete round are removed: two rounds are kept. What is restored is the last complete round
//! and all that follows, in order; a later frame replaces what an earlier one says of the same key.
//!
//! This room knows frames, files, the lock and the order of writes. It knows neither cells nor limits: the engine writes
//! the payloads and reads them again. What must always hold: no log is removed before a later round is complete and on the
//! disk, but for an attempt that failed on a full disk, as the next one writes everything anew; no file is ever overwritten; a frame is either whole or not there; and nothing that a file says can panic.

mod directory;
mod disk;
mod error;
mod folder;
mod frame;
mod held_folder;
mod inspection;
mod log;
mod progress;
mod recovery;
mod room;
mod run_id;
mod saver;
mod saver_thread;
mod section;
mod shared_sink;
mod sync;

pub use directory::{FoundLogs, LockedFolder, OtherSecret, StateDirectory, StateLock};
pub use disk::{DiskFile, FolderDisk, StateDisk};
pub use error::StateError;
pub use folder::{KEY_SECRET_BYTES, read_key_secret};
pub use frame::{FrameKind, GROUPS, MAX_PAYLOAD};
pub use inspection::{DirectoryUse, Inspection, SecretFinding};
pub use log::{FrameSink, StateLog};
pub use progress::{SaveOutcome, StateMetrics};
pub use recovery::{Damage, FrameEnd, LogSummary, Recovery, RestoredFrame, StateSummary};
pub use run_id::run_id;
pub use saver::{SaveIntervals, Saver, StateSource};
pub use saver_thread::{AfterTask, LastSave, SaverHandle, SaverTask};
pub use section::StateSection;
pub use shared_sink::SuccessorSink;
pub use sync::{SyncJob, SyncRunner};
