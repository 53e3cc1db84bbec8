//! What the reply to a call says of each of its charges.
//!
//! The script says how many charges of a run it admitted, and what the cells were before the run. This replays the run
//! on those cells with the algorithms of the embedded store, so both stores compute every verdict in the same way.
//! If the replay admits another charge than the script did, the reply is invalid.

use smallvec::SmallVec;

use super::build::Call;
use super::run::{Run, RunEntry};
use crate::clock::Now;
use crate::limit::{Cell, MICROSECOND, Quota, Verdict};
use crate::store::redis::charge::{CellReply, ChargeReply, Operation};

/// The latest time of a server's clock that is accepted, in microseconds since the epoch: half of the range of
/// nanoseconds, so that every window and delay that ends after it can be represented.
const MAX_CLOCK: u64 = u64::MAX / MICROSECOND.get() / 2;

impl Call {
    /// What a reply says of each charge, in order. `None` if the reply contradicts itself or answers another call
    /// than `number`.
    pub fn read_reply(&self, number: u32, reply: &[u64]) -> Option<Vec<ChargeReply>> {
        let [reply_number, at, numbers @ ..] = reply else {
            return None;
        };
        if *reply_number != u64::from(number) || *at > MAX_CLOCK {
            return None;
        }
        let now = MICROSECOND.saturating_mul(*at);
        let mut reader = ReplyReader { numbers, at: *at, now: Now { mono: now, wall: now } };
        let mut replies = Vec::with_capacity(self.charges);
        for run in &self.runs {
            if run.operation.judges() {
                reader.read_run(run, &mut replies)?;
            } else {
                let reported = match run.operation {
                    Operation::Report => reader.read_reported(run)?,
                    Operation::Charge
                    | Operation::Check
                    | Operation::Debit
                    | Operation::Refund(_) => 0,
                };
                let done = ChargeReply { charged: true, at: *at, cells: SmallVec::new(), reported };
                replies.extend(std::iter::repeat_n(done, run.charges as usize));
            }
        }
        reader.numbers.is_empty().then_some(replies)
    }
}

/// Reads a reply from front to back.
struct ReplyReader<'r> {
    /// What has not been read yet.
    numbers: &'r [u64],
    /// The server's time.
    at: u64,
    now: Now,
}

/// A cell of a run, as it was before the charge that is replayed next.
struct ReplayedCell {
    quota: Quota,
    cell: Cell,
    cost: u32,
    log_chunk: u64,
}

impl ReplyReader<'_> {
    /// Reads the numbers of a run, and appends the reply to each of its charges.
    fn read_run(&mut self, run: &Run, replies: &mut Vec<ChargeReply>) -> Option<()> {
        let (&admitted, rest) = self.numbers.split_first()?;
        self.numbers = rest;
        let admitted = u32::try_from(admitted).ok().filter(|admitted| *admitted <= run.charges)?;
        let mut cells: SmallVec<[ReplayedCell; 4]> = SmallVec::new();
        for entry in &run.entries {
            cells.push(self.read_cell(entry, admitted, run.charges)?);
        }
        for n in 0..run.charges {
            let is_admitted = n < admitted;
            let charges = is_admitted && run.operation == Operation::Charge;
            let mut cell_replies = self.judge(&cells, is_admitted)?;
            if charges {
                for cell in &mut cells {
                    cell.quota.charge(&mut cell.cell, cell.cost, self.now);
                }
            } else if run.operation == Operation::Charge {
                // Another cell refuses: what this one would admit is not charged.
                for reply in cell_replies.iter_mut().filter(|reply| reply.verdict.allowed) {
                    reply.verdict = reply.verdict_before;
                }
            }
            replies.push(ChargeReply {
                charged: charges,
                at: self.at,
                cells: cell_replies,
                reported: 0,
            });
        }
        Some(())
    }

    /// Reads how many units of a report every cell was charged. No cell takes more than it was told.
    fn read_reported(&mut self, run: &Run) -> Option<u32> {
        let (numbers, rest) = self.numbers.split_at_checked(run.entries.len())?;
        self.numbers = rest;
        let charged = run.entries.iter().zip(numbers).map(|(entry, number)| {
            u32::try_from(*number).ok().filter(|charged| *charged <= entry.cost)
        });
        charged.reduce(|least, charged| Some(least?.min(charged?))).flatten()
    }

    /// Reads the numbers of a cell before its run.
    fn read_cell(&mut self, entry: &RunEntry, admitted: u32, charges: u32) -> Option<ReplayedCell> {
        let quota = entry.quota;
        let (numbers, rest) = self.numbers.split_at_checked(quota.reading_len())?;
        self.numbers = rest;
        let excess = if admitted < charges { log_excess(entry, numbers, admitted) } else { 0 };
        let cell = quota.cell_from_reading(numbers, self.now.wall, excess)?;
        Some(ReplayedCell { quota, cell, cost: entry.cost, log_chunk: *numbers.first()? })
    }

    /// Judges a charge on every cell. `None` if the script judged otherwise.
    fn judge(&self, cells: &[ReplayedCell], is_admitted: bool) -> Option<SmallVec<[CellReply; 4]>> {
        let replies: SmallVec<[CellReply; 4]> = cells
            .iter()
            .map(|cell| CellReply {
                verdict: cell.judge(cell.cost, self.now),
                verdict_before: cell.judge(0, self.now),
                log_chunk: cell.log_chunk,
            })
            .collect();
        let agrees = replies.iter().all(|reply| reply.verdict.allowed) == is_admitted;
        agrees.then_some(replies)
    }
}

impl ReplayedCell {
    fn judge(&self, cost: u32, now: Now) -> Verdict {
        self.quota.judge(Some(&self.cell), cost, now)
    }
}

/// By how much the first refused charge exceeds the limit of a log, after the admitted charges of its run. 0 for
/// other algorithms, and where the charge exceeds the limit by itself.
fn log_excess(entry: &RunEntry, numbers: &[u64], admitted: u32) -> u32 {
    let limit = entry.quota.limit();
    if !matches!(entry.quota, Quota::SlidingLog(_)) || entry.cost > limit {
        return 0;
    }
    let sum = numbers.get(1).copied().unwrap_or(0);
    let after = sum.saturating_add((u64::from(admitted) + 1) * u64::from(entry.cost));
    u32::try_from(after.saturating_sub(u64::from(limit))).unwrap_or(u32::MAX)
}
