//! One call of the script: what it is asked, and what its answer means.
//!
//! Equal charges that follow each other are one run. The script says how many of a run were
//! admitted and what its cells were before; every verdict is then found by the functions that
//! judge embedded cells (`limit/reading.rs`), charge after charge. A reply that these functions
//! contradict is invalid.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::{Nanos, Now};
use crate::limit::{Cell, MICROSECOND, Quota};
use crate::policy::KeyHash;
use crate::store::{Issued, Settlement, Verdicts};

/// Most charges of one call: enough that a trip costs little for each, few enough that the server
/// is not held up.
pub(super) const MAX_CHARGES: usize = 64;

/// Most cells of one call.
pub(super) const MAX_CELLS: usize = 256;

/// One limit's part of a charge.
#[derive(Clone, Debug)]
pub struct Spend {
    /// Whose cell.
    pub key: KeyHash,
    /// What puts the cells of a family together; `None`: the cell is on its own.
    pub family: Option<KeyHash>,
    /// Under which quota.
    pub quota: Arc<Issued>,
    /// How much.
    pub cost: u32,
    /// To give back: what [`Answered::before`] said.
    pub before: u64,
    /// Whether what is charged may come back: a denial is then true for a moment only.
    pub returns: bool,
}

impl Spend {
    /// A charge to one cell.
    pub const fn of(key: KeyHash, family: Option<KeyHash>, quota: Arc<Issued>, cost: u32) -> Self {
        Self { key, family, quota, cost, before: 0, returns: false }
    }

    /// What its denial is cached by.
    pub(super) fn id(&self) -> (KeyHash, u32, u32) {
        (self.key, self.quota.number(), self.cost)
    }

    /// The part of a charge that is given back: what was spent before it, and by the rest of it.
    pub(super) fn part(mut self, units: u32) -> Self {
        let units = units.min(self.cost);
        if let Quota::TokenBucket(bucket) = self.quota.quota() {
            let each = bucket.emission().get() / MICROSECOND.get();
            self.before = self.before.saturating_add(each * u64::from(self.cost - units));
        }
        self.cost = units;
        self
    }
}

/// What is to be done with the cells of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Judge, and spend if all admit.
    Spend,
    /// Judge, and spend nothing.
    Ask,
    /// Spend without judging, up to the limit: what was admitted while the store was away.
    Post,
    /// Spend without judging, whatever the limit is: what a request cost above what was reserved.
    Debit,
    /// Give back what was spent at an instant of the server's clock, in microseconds.
    GiveBack(u64),
}

/// One request's charge: its limits' parts, all or none.
#[derive(Clone, Debug)]
pub struct Charge {
    /// What is to be done.
    pub order: Order,
    /// The parts, no two of one key, the outermost first; at least one.
    pub spends: SmallVec<[Spend; 4]>,
}

/// What became of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Whether it was spent, and each part's verdict.
    pub settlement: Settlement,
    /// When, on the server's clock, in microseconds.
    pub at: u64,
    /// Of each part, the first number told of its cell before the charge.
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
    /// It names a cell under another quota, or is of another kind than the charges of this call.
    Differs,
}

/// The cells and charges of one call.
#[derive(Debug, Default)]
pub struct Call {
    cells: Vec<(KeyHash, Option<KeyHash>, Quota)>,
    runs: Vec<Run>,
    charges: usize,
}

#[derive(Debug)]
struct Run {
    order: Order,
    many: u32,
    parts: SmallVec<[RunPart; 4]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunPart {
    /// Its place in the list of cells.
    cell: usize,
    cost: u32,
    before: u64,
}

impl Call {
    /// Adds a charge, or says why it belongs into another call.
    pub fn add(&mut self, charge: &Charge) -> Result<(), NotAdded> {
        let new = |spend: &&Spend| self.place(spend).is_none();
        let new = charge.spends.iter().filter(new).count();
        let mixed = self.runs.first().is_some_and(|run| kind(run.order) != kind(charge.order));
        let full = self.charges == MAX_CHARGES || self.cells.len() + new > MAX_CELLS;
        if full {
            return Err(NotAdded::Full);
        }
        if mixed || charge.spends.iter().any(|spend| self.is_otherwise(spend)) {
            return Err(NotAdded::Differs);
        }
        let parts: SmallVec<[RunPart; 4]> = charge
            .spends
            .iter()
            .map(|spend| {
                let cell = self.place(spend).unwrap_or_else(|| {
                    self.cells.push((spend.key, spend.family, *spend.quota.quota()));
                    self.cells.len() - 1
                });
                RunPart { cell, cost: spend.cost, before: spend.before }
            })
            .collect();
        self.charges += 1;
        match self.runs.last_mut() {
            Some(run)
                if run.order == Order::Spend
                    && charge.order == Order::Spend
                    && run.parts == parts =>
            {
                run.many += 1;
            }
            _ => self.runs.push(Run { order: charge.order, many: 1, parts }),
        }
        Ok(())
    }

    /// Whether a cell is named under another quota: a call knows each under one.
    fn is_otherwise(&self, spend: &Spend) -> bool {
        self.place(spend).is_some_and(|place| self.cells[place].2 != *spend.quota.quota())
    }

    /// Where a cell stands among those of the call. Of another family it lies elsewhere.
    fn place(&self, spend: &Spend) -> Option<usize> {
        let same = |(key, family, _): &(KeyHash, Option<KeyHash>, Quota)| {
            *key == spend.key && *family == spend.family
        };
        self.cells.iter().position(same)
    }

    /// Charges in it.
    pub const fn len(&self) -> usize {
        self.charges
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.charges == 0
    }

    /// The names of the cells, the call's number, the numbers of each quota, the runs. `tagged`:
    /// a family's cells share a slot.
    pub fn arguments(&self, number: u32, prefix: &str, tagged: bool) -> Arguments {
        let name = |(key, family, _): &(KeyHash, Option<KeyHash>, Quota)| match family {
            Some(family) if tagged => format!("{prefix}:{{{family}}}{key}"),
            _ => format!("{prefix}:{key}"),
        };
        let mut numbers = Vec::with_capacity(1 + self.cells.len() * 4);
        numbers.push(u64::from(number));
        for (_, _, quota) in &self.cells {
            numbers.extend(quota_numbers(quota));
        }
        let numbers = numbers.into_iter().map(Argument::Number);
        let runs = self.runs.iter().flat_map(|run| {
            let (op, second) = match run.order {
                Order::Spend => ("s", u64::from(run.many)),
                Order::Ask => ("q", 1),
                Order::Post => ("c", 1),
                Order::Debit => ("d", 1),
                Order::GiveBack(at) => ("r", at),
            };
            let head = [Argument::Word(op), Argument::Number(second)];
            let with_before = kind(run.order) == kind(Order::GiveBack(0));
            let parts = run.parts.iter().flat_map(move |part| {
                let before = with_before.then_some(Argument::Number(part.before));
                let first = Argument::Number(part.cell as u64 + 1);
                [Some(first), Some(Argument::Number(u64::from(part.cost))), before]
            });
            let parts = parts.flatten();
            head.into_iter().chain([Argument::Number(run.parts.len() as u64)]).chain(parts)
        });
        Arguments {
            keys: self.cells.iter().map(name).collect(),
            rest: numbers.chain(runs).collect(),
        }
    }

    /// What a reply says of each charge, in order; `None` when it contradicts itself, or answers
    /// another call.
    pub fn answers(&self, number: u32, reply: &[u64]) -> Option<Vec<Answered>> {
        let [told, at, rest @ ..] = reply else {
            return None;
        };
        let (at, mut rest) = (*at, rest);
        if *told != u64::from(number) {
            return None;
        }
        let now = MICROSECOND.saturating_mul(at);
        let now = Now { mono: now, wall: now };
        let mut answers = Vec::with_capacity(self.charges);
        for run in &self.runs {
            if run.order != Order::Spend {
                let settlement = Settlement { spent: true, verdicts: Verdicts::new() };
                let (before, without) = (SmallVec::new(), Verdicts::new());
                answers.push(Answered { settlement, at, before, without });
                continue;
            }
            let (&many, numbers) = rest.split_first()?;
            rest = numbers;
            let spent = u32::try_from(many).ok().filter(|spent| *spent <= run.many)?;
            let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
            for part in &run.parts {
                let quota = self.cells[part.cell].2;
                let (numbers, after) = rest.split_at_checked(quota.reading_len())?;
                rest = after;
                let above = above(&quota, numbers, part.cost, spent, run.many);
                let cell = quota.cell_of(numbers, now.wall, above)?;
                let before = *numbers.first()?;
                parts.push(Part { quota, cell, cost: part.cost, before });
            }
            for n in 0..run.many {
                let before = parts.iter().map(|part| part.before_charge(n)).collect();
                let without =
                    parts.iter().map(|part| part.quota.judge(Some(&part.cell), 0, now)).collect();
                let settlement = replay(&mut parts, n < spent, now)?;
                answers.push(Answered { settlement, at, before, without });
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
    /// The first number told of the cell, before the n-th charge of the run.
    fn before_charge(&self, n: u32) -> u64 {
        let each = match &self.quota {
            Quota::TokenBucket(q) => q.emission().get() / MICROSECOND.get(),
            Quota::SlidingWindow(_) | Quota::FixedWindow(_) => 0,
            Quota::SlidingLog(_) => 1,
        };
        self.before.saturating_add(each * u64::from(self.cost) * u64::from(n))
    }
}

/// One charge of a run, as the script must have settled it.
fn replay(parts: &mut [Part], spent: bool, now: Now) -> Option<Settlement> {
    let mut verdicts: Verdicts =
        parts.iter().map(|part| part.quota.judge(Some(&part.cell), part.cost, now)).collect();
    if verdicts.iter().all(|verdict| verdict.allowed) != spent {
        return None;
    }
    for (part, verdict) in parts.iter_mut().zip(&mut verdicts) {
        if spent {
            part.quota.charge(&mut part.cell, part.cost, now);
        } else if verdict.allowed {
            *verdict = part.quota.judge(Some(&part.cell), 0, now);
        }
    }
    Some(Settlement { spent, verdicts })
}

/// How far a log's refused charge is above its limit, after those of the run that were spent.
fn above(quota: &Quota, numbers: &[u64], cost: u32, spent: u32, many: u32) -> u32 {
    let limit = quota.limit();
    if !matches!(quota, Quota::SlidingLog(_)) || spent == many || cost > limit {
        return 0;
    }
    let sum = numbers.first().copied().unwrap_or(0);
    let after = sum.saturating_add((u64::from(spent) + 1) * u64::from(cost));
    u32::try_from(after.saturating_sub(u64::from(limit))).unwrap_or(u32::MAX)
}

/// Charges of one kind go together: those that give back change a log's list at once.
const fn kind(order: Order) -> u8 {
    match order {
        Order::Spend | Order::Ask | Order::Post | Order::Debit => 0,
        Order::GiveBack(_) => 1,
    }
}

fn quota_numbers(quota: &Quota) -> [u64; 4] {
    let micros = |span: Nanos| span.get() / MICROSECOND.get();
    match quota {
        Quota::TokenBucket(q) if q.max_delay() > Nanos::ZERO => {
            [5, micros(q.emission()), u64::from(q.burst()), micros(q.max_delay())]
        }
        Quota::TokenBucket(q) => {
            [1, micros(q.emission()), u64::from(q.burst()), micros(q.refill_every())]
        }
        Quota::SlidingWindow(q) => [2, u64::from(q.rate().count()), micros(q.rate().period()), 0],
        Quota::SlidingLog(q) => [3, u64::from(q.rate().count()), micros(q.rate().period()), 0],
        Quota::FixedWindow(q) => [4, u64::from(q.rate().count()), micros(q.rate().period()), 0],
    }
}
