//! One call of the script: what it is asked, and what its answer means.
//!
//! Equal charges that follow each other are one run. The script says how many of a run were
//! admitted and what its cells were before; every verdict is then found by the functions that
//! judge embedded cells (`limit/reading.rs`), charge after charge. A reply that these functions
//! contradict is invalid.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::{Nanos, Now};
use crate::limit::{
    Cell, MAX_RATES, MAX_WINDOWS, MICROSECOND, Quota, Rate, Verdict, WindowLengths,
};
use crate::policy::KeyHash;
use crate::store::{IssuedQuota, Settlement, Verdicts};

/// Most charges of one call: enough that a trip costs little for each, few enough that the server
/// is not held up.
pub(super) const MAX_CHARGES: usize = 64;

/// Most counters of one call, one for each window of a cell, and for buckets as [`bucket_counters`] says.
/// Each takes the server up to twenty microseconds, and no call shall keep it busy for longer than a
/// millisecond. (A single charge may exceed it.)
const MAX_COUNTERS: usize = 32;

/// No server's clock is later, in microseconds since the epoch: half of what a time can hold here, so that every
/// window and wait that ends after it can be told.
const MAX_CLOCK: u64 = u64::MAX / MICROSECOND.get() / 2;

/// Most times that the refunds of one call compute anew: each takes some five microseconds.
const MAX_RECOMPUTED: usize = 48;

/// Most logs of one call: each may take a fifth of a millisecond when it is full.
const MAX_LOGS: usize = 2;

/// Most runs of one call that name a log: a refund behind thousands of times takes some forty
/// microseconds.
const MAX_LOG_RUNS: usize = 4;

/// Most windows of one cell in a call: those of its limit, in two generations.
const MAX_CELL_WINDOWS: usize = 2 * MAX_WINDOWS;

/// One limit's part of a charge.
#[derive(Clone, Debug)]
pub struct CellCharge {
    /// Whose cell.
    pub key: KeyHash,
    /// What puts the cells of a family together; `None`: the cell is on its own.
    pub family: Option<KeyHash>,
    /// Under which quota.
    pub quota: Arc<IssuedQuota>,
    /// How much.
    pub cost: u32,
    /// Used to give back to a log only: the chunk in which the charge stands ([`ChargeReply::before`]).
    pub before: u64,
    /// Whether what is charged may come back: a denial is then true for a moment only.
    pub refundable: bool,
}

impl CellCharge {
    /// A charge to one cell.
    pub const fn new(
        key: KeyHash,
        family: Option<KeyHash>,
        quota: Arc<IssuedQuota>,
        cost: u32,
    ) -> Self {
        Self { key, family, quota, cost, before: 0, refundable: false }
    }

    /// What its denial is cached by.
    pub(super) fn id(&self) -> (KeyHash, u32, u32) {
        (self.key, self.quota.number(), self.cost)
    }

    /// The part of a charge that is given back.
    pub(super) fn part(self, units: u32) -> Self {
        Self { cost: units.min(self.cost), ..self }
    }
}

/// What is to be done with the cells of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Judge, and spend if all admit.
    Charge,
    /// Judge, and spend nothing.
    Check,
    /// Charge without judging, up to the limit: what was admitted while the store was away.
    Report,
    /// Charge without judging, whatever the limit is: what a request cost above what was reserved.
    Debit,
    /// Give back what was spent at an instant of the server's clock, in microseconds.
    Refund(u64),
}

/// One request's charge: its limits' parts, all or none.
#[derive(Clone, Debug)]
pub struct StoreCharge {
    /// What is to be done.
    pub operation: Operation,
    /// The parts, no two of one key, the outermost first; at least one.
    pub cell_charges: SmallVec<[CellCharge; 4]>,
}

/// What became of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// Whether it was spent, and each part's verdict.
    pub settlement: Settlement,
    /// When, on the server's clock, in microseconds.
    pub at: u64,
    /// Of each part, the first number told of its cell before the charge. Used for a log only: the chunk
    /// in which the charge stands.
    pub before: SmallVec<[u64; 4]>,
    /// What each part would say of a charge of nothing before this one: what is left once it is
    /// given back.
    pub without: Verdicts,
}

/// Why a call does not take a charge: it belongs into another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdded {
    /// There is no room for it.
    Full,
}

/// The cells and charges of one call.
#[derive(Debug, Default)]
pub struct Call {
    cells: Vec<CallCell>,
    runs: Vec<Run>,
    /// Runs that name a log.
    log_runs: usize,
    /// Times that its refunds compute anew.
    recomputed: usize,
    charges: usize,
}

/// A cell that a call names.
#[derive(Debug)]
struct CallCell {
    key: KeyHash,
    family: Option<KeyHash>,
    algorithm: Algorithm,
    /// The lengths of the windows of its limit, ascending.
    windows: SmallVec<[Nanos; 2]>,
    /// Of a bucket: how many rates its key may have met.
    rates: usize,
    /// Whether it is a bucket that remembers what it was charged lately.
    remembers: bool,
}

/// What a cell is, in the script's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    TokenBucket = 1,
    SlidingWindow = 2,
    SlidingLog = 3,
    FixedWindow = 4,
}

#[derive(Debug)]
struct Run {
    order: Operation,
    many: u32,
    parts: SmallVec<[RunPart; 4]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RunPart {
    /// Its index in the list of cells.
    cell: usize,
    quota: Quota,
    cost: u32,
    before: u64,
    /// Of a refund: the windows that the limit had when it was charged.
    windows: WindowLengths,
}

impl Run {
    /// Whether a charge can be told in one with these: equal ones, and refunds of what was spent at one
    /// instant.
    fn takes(&self, order: Operation, parts: &[RunPart]) -> bool {
        match order {
            Operation::Charge => self.order == order && self.parts.as_slice() == parts,
            Operation::Refund(_) => {
                let same = |one: &RunPart, other: &RunPart| {
                    RunPart { cost: other.cost, ..one.clone() } == *other
                };
                self.order == order
                    && self.parts.len() == parts.len()
                    && self.parts.iter().zip(parts).all(|(one, other)| same(one, other))
            }
            Operation::Check | Operation::Report | Operation::Debit => false,
        }
    }

    fn take(&mut self, parts: &[RunPart]) {
        self.many += 1;
        if let Operation::Refund(_) = self.order {
            for (one, more) in self.parts.iter_mut().zip(parts) {
                one.cost = one.cost.saturating_add(more.cost);
            }
        }
    }
}

impl Call {
    /// Adds a charge, or says why it belongs into another call, and then this one is as it was.
    pub fn add(&mut self, charge: &StoreCharge) -> Result<(), NotAdded> {
        if self.charges == MAX_CHARGES || !self.has_room_for_cells(charge) {
            return Err(NotAdded::Full);
        }
        let mut parts: SmallVec<[RunPart; 4]> = SmallVec::new();
        for spend in &charge.cell_charges {
            // (Whether its cell remembers is said of the cell.)
            let quota = spend.quota.quota().with_refunds(false);
            let cell = self.cell(spend);
            let windows = match charge.operation {
                Operation::Refund(_) => spend.quota.windows().clone(),
                Operation::Charge | Operation::Check | Operation::Report | Operation::Debit => {
                    WindowLengths::default()
                }
            };
            let (cost, before) = (spend.cost, spend.before);
            parts.push(RunPart { cell, quota, cost, before, windows });
        }
        self.charges += 1;
        match self.runs.last_mut() {
            Some(run) if run.takes(charge.operation, &parts) => run.take(&parts),
            _ => {
                let names_log = |part: &RunPart| matches!(part.quota, Quota::SlidingLog(_));
                self.log_runs += usize::from(parts.iter().any(names_log));
                if matches!(charge.operation, Operation::Refund(_)) {
                    self.recomputed += charge.cell_charges.iter().map(rates).sum::<usize>();
                }
                self.runs.push(Run { order: charge.operation, many: 1, parts });
            }
        }
        Ok(())
    }

    /// Whether its cells fit. (A charge by itself always does, however many limits its route has.)
    fn has_room_for_cells(&self, charge: &StoreCharge) -> bool {
        if self.charges == 0 {
            return true;
        }
        let is_log = |one: Algorithm| one == Algorithm::SlidingLog;
        let mut counters: usize = self.cells.iter().map(CallCell::counters).sum();
        let mut logs = self.cells.iter().filter(|cell| is_log(cell.algorithm)).count();
        for spend in &charge.cell_charges {
            let algorithm = Algorithm::of(spend.quota.quota());
            let Some(index) = self.index(spend) else {
                let windows = spend.quota.windows().lengths().len();
                counters += windows.max(bucket_counters(rates(spend), remembers(spend)));
                logs += usize::from(is_log(algorithm));
                continue;
            };
            let cell = &self.cells[index];
            let windows = cell.more_windows(spend);
            // (Another algorithm cannot be met, since the algorithm is in the key.)
            if cell.algorithm != algorithm || windows > MAX_CELL_WINDOWS {
                return false;
            }
            let more =
                bucket_counters(cell.rates.max(rates(spend)), cell.remembers || remembers(spend));
            counters += windows.max(more) - cell.counters();
        }
        if matches!(charge.operation, Operation::Refund(_)) {
            let recomputed: usize = charge.cell_charges.iter().map(rates).sum();
            if self.recomputed + recomputed > MAX_RECOMPUTED {
                return false;
            }
        }
        counters <= MAX_COUNTERS && logs <= MAX_LOGS && (logs == 0 || self.log_runs < MAX_LOG_RUNS)
    }

    /// The index of a cell in the list; it is added, or given the windows that it lacks.
    fn cell(&mut self, spend: &CellCharge) -> usize {
        let index = self.index(spend).unwrap_or_else(|| {
            self.cells.push(CallCell {
                key: spend.key,
                family: spend.family,
                algorithm: Algorithm::of(spend.quota.quota()),
                windows: SmallVec::new(),
                rates: 0,
                remembers: false,
            });
            self.cells.len() - 1
        });
        self.cells[index].remembers |= remembers(spend);
        self.cells[index].rates = self.cells[index].rates.max(rates(spend));
        let windows = &mut self.cells[index].windows;
        for length in spend.quota.windows().lengths() {
            if let Err(at) = windows.binary_search(length) {
                windows.insert(at, *length);
            }
        }
        index
    }

    /// Where a cell stands among those of the call. Of another family it lies elsewhere.
    fn index(&self, spend: &CellCharge) -> Option<usize> {
        self.cells.iter().position(|cell| cell.key == spend.key && cell.family == spend.family)
    }

    /// Charges in it.
    pub const fn len(&self) -> usize {
        self.charges
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.charges == 0
    }

    /// The names of the cells; then the call's number, the algorithm and windows of each cell, and the
    /// runs. A bucket has no windows: its second number says whether it remembers charges. `tagged`: a
    /// family's cells share a slot.
    pub fn arguments(&self, number: u32, prefix: &str, tagged: bool) -> Arguments {
        let name = |cell: &CallCell| match cell.family {
            Some(family) if tagged => format!("{prefix}:{{{family}}}{}", cell.key),
            _ => format!("{prefix}:{}", cell.key),
        };
        let mut rest = Vec::with_capacity(1 + self.cells.len() * 3 + self.runs.len() * 8);
        rest.push(u64::from(number).into());
        for cell in &self.cells {
            rest.push((cell.algorithm as u64).into());
            let second = if cell.remembers { 1 } else { cell.windows.len() as u64 };
            rest.push(second.into());
            rest.extend(cell.windows.iter().map(|length| Argument::from(micros(*length))));
        }
        for run in &self.runs {
            let (op, second) = match run.order {
                Operation::Charge => ("s", u64::from(run.many)),
                Operation::Check => ("q", 1),
                Operation::Report => ("c", 1),
                Operation::Debit => ("d", 1),
                Operation::Refund(at) => ("r", at),
            };
            let parts = run.parts.len() as u64;
            rest.extend([Argument::Word(op), second.into(), parts.into()]);
            for part in &run.parts {
                rest.extend([part.cell as u64 + 1, u64::from(part.cost)].map(Argument::from));
                push_quota(&mut rest, &part.quota);
                if matches!(run.order, Operation::Refund(_)) {
                    let cell = &self.cells[part.cell];
                    rest.push(cell.mask(&part.windows).unwrap_or(part.before).into());
                }
            }
        }
        Arguments { keys: self.cells.iter().map(name).collect(), rest }
    }

    /// What a reply says of each charge, in order; `None` when it contradicts itself, or answers
    /// another call.
    pub fn read_reply(&self, number: u32, reply: &[u64]) -> Option<Vec<ChargeReply>> {
        let [told, at, rest @ ..] = reply else {
            return None;
        };
        let (at, mut rest) = (*at, rest);
        if *told != u64::from(number) || at > MAX_CLOCK {
            return None;
        }
        let now = MICROSECOND.saturating_mul(at);
        let now = Now { mono: now, wall: now };
        let mut answers = Vec::with_capacity(self.charges);
        for run in &self.runs {
            let judges = matches!(run.order, Operation::Charge | Operation::Check);
            if !judges {
                let settlement = Settlement { charged: true, verdicts: Verdicts::new() };
                let (before, without) = (SmallVec::new(), Verdicts::new());
                let done = ChargeReply { settlement, at, before, without };
                answers.extend((0..run.many).map(|_| done.clone()));
                continue;
            }
            let (&many, numbers) = rest.split_first()?;
            rest = numbers;
            let spent = u32::try_from(many).ok().filter(|spent| *spent <= run.many)?;
            let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
            for part in &run.parts {
                let quota = part.quota;
                let (numbers, after) = rest.split_at_checked(quota.reading_len())?;
                rest = after;
                let above = above(&quota, numbers, part.cost, spent, run.many);
                let cell = quota.cell_from_reading(numbers, now.wall, above)?;
                let before = *numbers.first()?;
                parts.push(Part { quota, cell, cost: part.cost, before });
            }
            for n in 0..run.many {
                let before = parts.iter().map(|part| part.before).collect();
                let without = parts.iter().map(|part| part.judge(0, now)).collect();
                let settlement = match run.order {
                    Operation::Check => asked(&parts, n < spent, now)?,
                    _ => replay(&mut parts, n < spent, now)?,
                };
                answers.push(ChargeReply { settlement, at, before, without });
            }
        }
        rest.is_empty().then_some(answers)
    }
}

/// What the script is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The cells' names.
    pub keys: Vec<String>,
    /// What follows them.
    pub rest: Vec<Argument>,
}

/// One argument of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A word.
    Word(&'static str),
    /// A number.
    Number(u64),
}

struct Part {
    quota: Quota,
    cell: Cell,
    cost: u32,
    before: u64,
}

impl Part {
    fn judge(&self, cost: u32, now: Now) -> Verdict {
        self.quota.judge(Some(&self.cell), cost, now)
    }
}

/// A charge that was judged and not spent, as the script must have judged it.
fn asked(parts: &[Part], fits: bool, now: Now) -> Option<Settlement> {
    let judge = |part: &Part| part.judge(part.cost, now);
    let verdicts: Verdicts = parts.iter().map(judge).collect();
    let agree = verdicts.iter().all(|verdict| verdict.allowed) == fits;
    agree.then_some(Settlement { charged: false, verdicts })
}

/// One charge of a run, as the script must have settled it.
fn replay(parts: &mut [Part], spent: bool, now: Now) -> Option<Settlement> {
    let mut verdicts: Verdicts = parts.iter().map(|part| part.judge(part.cost, now)).collect();
    if verdicts.iter().all(|verdict| verdict.allowed) != spent {
        return None;
    }
    for (part, verdict) in parts.iter_mut().zip(&mut verdicts) {
        if spent {
            part.quota.charge(&mut part.cell, part.cost, now);
        } else if verdict.allowed {
            *verdict = part.judge(0, now);
        }
    }
    Some(Settlement { charged: spent, verdicts })
}

/// How far a log's refused charge is above its limit, after those of the run that were spent.
fn above(quota: &Quota, numbers: &[u64], cost: u32, spent: u32, many: u32) -> u32 {
    let limit = quota.limit();
    if !matches!(quota, Quota::SlidingLog(_)) || spent == many || cost > limit {
        return 0;
    }
    let sum = numbers.get(1).copied().unwrap_or(0);
    let after = sum.saturating_add((u64::from(spent) + 1) * u64::from(cost));
    u32::try_from(after.saturating_sub(u64::from(limit))).unwrap_or(u32::MAX)
}

/// Whether a cell is to remember a charge, since it may be given back.
fn remembers(spend: &CellCharge) -> bool {
    let returns = |quota: &Quota| matches!(quota, Quota::TokenBucket(q) if spend.refundable || q.is_refundable());
    returns(spend.quota.quota())
}

/// How many rates the bucket of a charge may have.
fn rates(spend: &CellCharge) -> usize {
    spend.quota.windows().buckets().min(MAX_RATES)
}

/// What a bucket takes the server, in counters: as measured.
const fn bucket_counters(rates: usize, remembers: bool) -> usize {
    1 + rates / 2 + if remembers { 3 } else { 0 }
}

impl CallCell {
    /// Which of its windows are among these, as bits; nothing of an algorithm without counters.
    fn mask(&self, windows: &WindowLengths) -> Option<u64> {
        let counts = matches!(self.algorithm, Algorithm::SlidingWindow | Algorithm::FixedWindow);
        let bit = |n: usize| u64::from(windows.lengths().contains(&self.windows[n])) << n;
        counts.then(|| (0..self.windows.len()).map(bit).sum())
    }

    fn counters(&self) -> usize {
        self.windows.len().max(bucket_counters(self.rates, self.remembers))
    }

    /// How many windows it has with those of a charge.
    fn more_windows(&self, spend: &CellCharge) -> usize {
        let new = |length: &&Nanos| !self.windows.contains(length);
        self.windows.len() + spend.quota.windows().lengths().iter().filter(new).count()
    }
}

impl Algorithm {
    const fn of(quota: &Quota) -> Self {
        match quota {
            Quota::TokenBucket(_) => Self::TokenBucket,
            Quota::SlidingWindow(_) => Self::SlidingWindow,
            Quota::SlidingLog(_) => Self::SlidingLog,
            Quota::FixedWindow(_) => Self::FixedWindow,
        }
    }
}

impl From<u64> for Argument {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

const fn micros(span: Nanos) -> u64 {
    span.get() / MICROSECOND.get()
}

/// The numbers of a rate, as the script takes them.
fn push_quota(rest: &mut Vec<Argument>, quota: &Quota) {
    let mut window = |rate: Rate| {
        rest.extend([u64::from(rate.count()), micros(rate.period())].map(Argument::from));
    };
    match quota {
        Quota::SlidingWindow(q) => window(q.rate()),
        Quota::SlidingLog(q) => window(q.rate()),
        Quota::FixedWindow(q) => window(q.rate()),
        Quota::TokenBucket(q) => rest.extend(
            [
                micros(q.emission()),
                u64::from(q.burst()),
                micros(q.refill_every()),
                micros(q.max_delay()),
            ]
            .map(Argument::from),
        ),
    }
}
