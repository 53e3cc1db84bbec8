//! The operator's log: one line per event on standard error, never blocking.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::{LevelFilter, Log, Metadata, Record};

use super::LineWriter;
use crate::clock::{Clock, SystemClock};

struct OperatorLog {
    out: LineWriter,
    clock: SystemClock,
}

static LOG: OnceLock<OperatorLog> = OnceLock::new();

/// Sends the log to standard error. `RUST_LOG` may say `error`, `warn`, `info`, `debug` or
/// `trace`; `info` otherwise.
pub fn init() -> std::io::Result<()> {
    let out = LineWriter::start("operator", std::io::stderr())?;
    let log = LOG.get_or_init(|| OperatorLog { out, clock: SystemClock::new() });
    let level = std::env::var("RUST_LOG").ok().and_then(|level| level.parse().ok());
    // A second call finds the log in place, which is what it wants.
    if log::set_logger(log).is_ok() {
        log::set_max_level(level.unwrap_or(LevelFilter::Info));
    }
    Ok(())
}

impl Log for OperatorLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The framework narrates its own life at `info`; ours is told by ourselves.
        metadata.target().starts_with("tollgate")
            || metadata.level() <= log::Level::Warn
            || log::max_level() > LevelFilter::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let at = timestamp(self.clock.date(self.clock.now()).into());
            let level = record.level().as_str().to_ascii_lowercase();
            // A line is a line, whatever an origin or a client put into an error.
            let text = record.args().to_string().replace(['\n', '\r'], " ");
            self.out.write(format!("{at} {level} {text}"));
        }
    }

    fn flush(&self) {
        self.out.flush(Duration::from_secs(1));
    }
}

/// A time since the epoch as RFC 3339, in milliseconds.
pub(super) fn timestamp(since_epoch: Duration) -> String {
    let at: SystemTime = UNIX_EPOCH + since_epoch;
    humantime::format_rfc3339_millis(at).to_string()
}
