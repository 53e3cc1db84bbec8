//! `run --watch`: reloads when the configuration, or a file that it includes, has changed.
//!
//! A version is read once it has stayed the same from one look to the next, so a burst of writes is one reload; a symbolic
//! link that is pointed elsewhere, as Kubernetes mounts files, is a change. A version that is refused is tried again with
//! growing pauses, because the cause may pass. It does not know what a reload does, or that signals ask for reloads, too.

use std::sync::Arc;
use std::time::Duration;

use crate::limiter::FileWatch;
use crate::ops::{ReloadOutcome, Reloader};
use crate::signals::OperatorRequests;

/// The time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the file of a process.
pub(super) struct FileReloads {
    pub(super) reloader: Arc<Reloader>,
    pub(super) requests: Arc<OperatorRequests>,
}

impl FileReloads {
    /// Watches a file, which is called `shown` in the log.
    pub(super) async fn run(self, mut watch: FileWatch, shown: String) {
        log::info!("watching {shown}: a change is a reload");
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            // A file system that does not answer must hold up nothing else.
            let looked = tokio::task::spawn_blocking(move || (watch.look(), watch)).await;
            let Ok((version, looked)) = looked else {
                log::error!("{shown} is not watched any more");
                return;
            };
            watch = looked;
            let Some(version) = version else {
                continue;
            };
            match self.reloader.request(&self.requests).await {
                Ok(ReloadOutcome::Applied { .. }) => watch.succeeded(version),
                Ok(ReloadOutcome::Refused { errors }) => {
                    watch.failed(version, &errors.join("\n"));
                }
                // The thread of the reload could not be started or has panicked.
                Err(_) => {
                    watch.failed(version, "the reload did not end");
                }
            }
        }
    }
}
