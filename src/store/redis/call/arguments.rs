//! The KEYS and ARGV of a call, as the head of `charge.lua` describes them.
//!
//! Numbers are written as they are: times in microseconds, costs in units. Nothing here decides what belongs in a call
//! (`build.rs`). The order of cells and runs is that of the call, because the reply follows it.

use super::build::Call;
use super::cell::CallCell;
use super::run::{Run, RunEntry};
use crate::clock::Nanos;
use crate::limit::{MICROSECOND, Quota, Rate};
use crate::store::redis::charge::Operation;

/// What the script is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// KEYS: the cells.
    pub keys: Vec<String>,
    /// ARGV.
    pub argv: Vec<Argument>,
}

/// One argument of ARGV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A word.
    Word(&'static str),
    /// A number.
    Number(u64),
}

impl From<u64> for Argument {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl Call {
    /// The arguments of the call. The reply repeats `number`. `has_slots`: whether keys need the hash tags of a
    /// Cluster.
    pub fn arguments(&self, number: u32, prefix: &str, has_slots: bool) -> Arguments {
        let keys = self.cells.iter().map(|cell| cell.name.redis_key(prefix, has_slots)).collect();
        let mut argv = Vec::with_capacity(1 + self.cells.len() * 3 + self.runs.len() * 8);
        argv.push(u64::from(number).into());
        for cell in &self.cells {
            push_cell(&mut argv, cell);
        }
        for run in &self.runs {
            self.push_run(&mut argv, run);
        }
        Arguments { keys, argv }
    }

    fn push_run(&self, argv: &mut Vec<Argument>, run: &Run) {
        let (word, count_or_instant) = match run.operation {
            Operation::Charge => ("s", u64::from(run.charges)),
            Operation::Check => ("q", 1),
            Operation::Report => ("c", 1),
            Operation::Debit => ("d", 1),
            Operation::Refund(at) => ("r", at),
        };
        let cells = run.entries.len() as u64;
        argv.extend([Argument::Word(word), count_or_instant.into(), cells.into()]);
        for entry in &run.entries {
            argv.extend([entry.cell as u64 + 1, u64::from(entry.cost)].map(Argument::from));
            push_rate(argv, &entry.quota);
            if let Operation::Refund(_) = run.operation {
                argv.push(self.origin(entry).into());
            }
        }
    }

    /// Where a refunded charge was counted: which windows of its cell, or the chunk of a log.
    fn origin(&self, entry: &RunEntry) -> u64 {
        self.cells[entry.cell].window_mask(&entry.charged_windows).unwrap_or(entry.log_chunk)
    }
}

/// The algorithm of a cell and its windows. A bucket has none; its second number says whether it remembers charges.
fn push_cell(argv: &mut Vec<Argument>, cell: &CallCell) {
    argv.push((cell.algorithm as u64).into());
    let second = if cell.remembers_charges { 1 } else { cell.windows.len() as u64 };
    argv.push(second.into());
    argv.extend(cell.windows.iter().map(|length| Argument::from(micros(*length))));
}

/// The numbers of a rate.
fn push_rate(argv: &mut Vec<Argument>, quota: &Quota) {
    let mut push_window = |rate: Rate| {
        argv.extend([u64::from(rate.count()), micros(rate.period())].map(Argument::from));
    };
    match quota {
        Quota::SlidingWindow(window) => push_window(window.rate()),
        Quota::SlidingLog(log) => push_window(log.rate()),
        Quota::FixedWindow(window) => push_window(window.rate()),
        Quota::TokenBucket(bucket) => argv.extend(
            [
                micros(bucket.emission()),
                u64::from(bucket.burst()),
                micros(bucket.refill_every()),
                micros(bucket.max_delay()),
            ]
            .map(Argument::from),
        ),
    }
}

const fn micros(span: Nanos) -> u64 {
    span.get() / MICROSECOND.get()
}
