//! Takes the records of requests, and writes the lines of those that the configuration asks for.
//!
//! Writing never waits: a line that finds a full queue is dropped and counted. It does not know how a line looks. Under
//! `replay: true` the last lines are kept in memory too.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::fields::Fields;
use super::recent_lines::RecentLines;
use super::{ecs, json, otel, text};
use crate::clock::Nanos;
use crate::config::{AccessLog, LogFormat, LogTarget};
use crate::ops::line_writer::{self, LineWriter, ReplaceableWriter};
use crate::proxy::{AccessRecord, AccessSink, RequestOutcome};

/// Bytes that most lines fit into, so that a line is allocated once.
const LINE_CAPACITY: usize = 1_024;

/// Writes the access log. A reload may change its target.
pub struct AccessLogSink {
    out: ReplaceableWriter,
    target: Mutex<LogTarget>,
    /// The writer before the current one. Lines may still wait in it when the process ends.
    previous: Mutex<Option<Arc<LineWriter>>>,
    recent: RecentLines,
}

impl AccessLogSink {
    /// Opens the target that the configuration names, at a date.
    pub fn new(rules: &AccessLog, date: Nanos) -> std::io::Result<Self> {
        let out = line_writer::open(&rules.to)?.map(Arc::new);
        let recent = RecentLines::new(date);
        recent.set_kept(keeps_recent_lines(rules), date);
        Ok(Self {
            out: Arc::new(ArcSwapOption::new(out)),
            target: Mutex::new(rules.to.clone()),
            previous: Mutex::new(None),
            recent,
        })
    }

    /// Whether the target could be opened; creates nothing.
    pub fn rehearse(rules: &AccessLog) -> std::io::Result<()> {
        line_writer::rehearse(&rules.to)
    }

    /// Changes to the target of the next configuration. A file is opened again even if its name is the same, so that a
    /// rotated file is released. From this date on lines are kept in memory, or not any more.
    pub fn redirect(&self, rules: &AccessLog, date: Nanos) -> std::io::Result<()> {
        let mut target = self.target.lock();
        if *target != rules.to || matches!(rules.to, LogTarget::File(_)) {
            self.open(&rules.to)?;
            target.clone_from(&rules.to);
        }
        self.recent.set_kept(keeps_recent_lines(rules), date);
        Ok(())
    }

    /// Opens a file again, so that a rotated file is released.
    pub fn reopen(&self) -> std::io::Result<()> {
        let target = self.target.lock();
        if matches!(*target, LogTarget::File(_)) { self.open(&target) } else { Ok(()) }
    }

    fn open(&self, target: &LogTarget) -> std::io::Result<()> {
        let next = line_writer::open(target)?.map(Arc::new);
        *self.previous.lock() = self.out.swap(next);
        Ok(())
    }

    /// The last lines.
    pub(in crate::ops) fn recent(&self) -> &RecentLines {
        &self.recent
    }

    /// Waits until the recorded lines are written, at most `patience` for each writer.
    pub fn flush(&self, patience: Duration) {
        if let Some(previous) = self.previous.lock().take() {
            previous.flush(patience);
        }
        if let Some(out) = self.out.load().as_deref() {
            out.flush(patience);
        }
    }
}

impl AccessSink for AccessLogSink {
    fn takes(&self, outcome: RequestOutcome, outage: bool, rules: &AccessLog) -> bool {
        if rules.to == LogTarget::None {
            return false;
        }
        let passed = !outage
            && matches!(
                outcome,
                RequestOutcome::Forwarded | RequestOutcome::Failed | RequestOutcome::Redirected
            );
        let share = if passed { rules.sample_ppm } else { rules.sample_denied_ppm };
        share >= 1_000_000 || fastrand::u32(0..1_000_000) < share
    }

    fn record(&self, record: &AccessRecord<'_>, rules: &AccessLog) {
        let out = self.out.load();
        let Some(out) = out.as_deref() else {
            return;
        };
        let mut line = String::with_capacity(LINE_CAPACITY);
        let fields = Fields::of(record, rules);
        match &rules.format {
            LogFormat::Json => json::write(&fields, &mut line),
            LogFormat::Ecs => ecs::write(&fields, &mut line),
            LogFormat::Otel => otel::write(&fields, &mut line),
            LogFormat::Combined => text::write_combined(&fields, &mut line),
            LogFormat::Template(template) => text::write_template(template, &fields, &mut line),
        }
        if rules.replay {
            self.recent.push(&line, record.at);
        }
        out.write(line);
    }
}

/// Whether lines are kept in memory for operators.
pub(crate) fn keeps_recent_lines(rules: &AccessLog) -> bool {
    rules.replay && rules.to != LogTarget::None
}
