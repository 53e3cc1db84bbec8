//! `tollgate state`: shows what a state directory holds, and with `--verify` whether all of it can be read.
//!
//! What must always hold: nothing in the directory changes, its lock is not touched, and the secret is not shown.

mod report;

use std::io;
use std::path::PathBuf;

use clap::Args;

use super::output::{self, Ending};
use crate::clock::{Clock, Nanos, SystemClock};
use crate::engine::SavedContents;
use crate::history::{RestoredMinutes, TrafficHistory};
use crate::state::{FrameKind, Inspection, SecretFinding, StateMetrics};

/// The directory, and what is asked of it.
#[derive(Debug, Args)]
pub(super) struct StateArgs {
    /// The directory that store.embedded.state names.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Read every record, those that are not restored too; fail if something is damaged.
    #[arg(long)]
    verify: bool,
}

/// What is shown of a directory.
struct StateReport {
    directory: String,
    contents: SavedContents,
    minutes: RestoredMinutes,
    /// Records in older logs that cannot be read; `None` if those were not read.
    older_unreadable: Option<u64>,
    /// The present instant, on the clock of the process that wrote it, and the time since the last record.
    now: Nanos,
    age: Option<Nanos>,
}

/// Shows the directory. The answer is no if `--verify` finds damage.
pub(super) fn state(args: &StateArgs) -> Ending {
    let reported = Inspection::with(&args.directory, |found| {
        let report = StateReport::read(args, found)?;
        let is_damaged = report.is_damaged(found);
        let text = report.text(found);
        Ok((text, is_damaged))
    });
    match reported {
        Ok((text, true)) if args.verify => output::answer(&text, Ending::Negative),
        Ok((text, _)) => output::answer(&text, Ending::Success),
        Err(error) => output::refuse("state", &error.to_string()),
    }
}

impl StateReport {
    fn read(args: &StateArgs, found: &Inspection) -> io::Result<Self> {
        let (recovery, mark) = (found.recovery(), found.summary().mark.as_ref());
        let clock = mark.map_or_else(SystemClock::new, SystemClock::continuing);
        let now = clock.now();
        let restorer = || TrafficHistory::default().restorer(now.mono, clock.date(now));
        let (mut contents, mut minutes) = (SavedContents::default(), restorer());
        recovery.replay(&StateMetrics::default(), |frame| match frame.kind {
            FrameKind::History => minutes.read(&frame.payload),
            _ => contents.read(&frame),
        })?;
        let (mut older, mut older_minutes) = (SavedContents::default(), restorer());
        if args.verify {
            recovery.visit_older(|frame| match frame.kind {
                FrameKind::History => older_minutes.read(&frame.payload),
                _ => older.read(&frame),
            })?;
        }
        Ok(Self {
            directory: super::table::shown(&args.directory.display().to_string()),
            contents,
            minutes,
            older_unreadable: args.verify.then(|| older.unreadable() + older_minutes.unreadable()),
            now: now.mono,
            age: mark.map(|mark| now.mono.saturating_sub(mark.mono)),
        })
    }

    fn unreadable(&self) -> u64 {
        self.contents.unreadable() + self.minutes.unreadable() + self.older_unreadable.unwrap_or(0)
    }

    fn is_damaged(&self, found: &Inspection) -> bool {
        let is_fitting = matches!(found.secret(), SecretFinding::Fits);
        let missing = found.summary().logs.iter().any(|log| log.missing > 0);
        !is_fitting || missing || self.unreadable() > 0 || found.damage().next().is_some()
    }
}
