//! What a client knows of each key, beside what the origin saw: what a restart forgot, and what it added.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::load::Answer;
use crate::origin::Admissions;

pub const LIMIT: u32 = 24;

/// The units ahead of a limit with `after_crash: deny`.
pub const AHEAD: u32 = LIMIT / 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCrash {
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Kill,
    /// TERM or INT.
    Orderly,
}

/// A process that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// When it was told to end.
    pub told: Instant,
    pub end: End,
}

/// What an answer told last of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Processes that had ended before.
    lives: usize,
    spent: u32,
    /// What the origin had seen by then.
    admitted: usize,
    /// Requests since then that were cut.
    cut: u32,
}

/// What became of the keys under all ends together.
#[derive(Debug, Default)]
pub struct Findings {
    pub answers: u64,
    pub refused: u64,
    pub cut: u64,
    /// Answers that are neither 200 nor 429, by status.
    pub other: BTreeMap<u16, u64>,
    /// Units that kills made forgotten, and for each kill how old the oldest was.
    pub forgotten: u64,
    pub ages: BTreeMap<usize, Duration>,
    /// The most units that one kill made forgotten of a key.
    pub largest: u32,
    /// Units that were taken for spent after a kill and were not.
    pub added: u64,
}

/// The keys of one thread of clients.
pub struct Counts {
    after: AfterCrash,
    first_key: usize,
    keys: Vec<Told>,
    pub findings: Findings,
}

impl Counts {
    pub fn new(after: AfterCrash, first_key: usize, keys: usize) -> Self {
        let keys = vec![Told::default(); keys];
        Self { after, first_key, keys, findings: Findings::default() }
    }

    /// Judges an answer. `lives`: the processes that had ended before the one that answered.
    pub fn record(&mut self, key: usize, answer: Answer, lives: &[Life], origin: &Admissions) {
        let told = &mut self.keys[key - self.first_key];
        let (status, remaining) = match answer {
            Answer::Cut => {
                self.findings.cut += 1;
                told.cut += 1;
                return;
            }
            Answer::Told { status, remaining } => (status, remaining),
        };
        self.findings.answers += 1;
        let is_allowed = status == 200;
        if !is_allowed && status != 429 {
            // It was charged or not, as one that was cut.
            *self.findings.other.entry(status).or_default() += 1;
            told.cut += 1;
            return;
        }
        self.findings.refused += u64::from(!is_allowed);
        let spent = LIMIT.checked_sub(remaining).unwrap();
        let before = spent - u32::from(is_allowed);
        let (earlier, cut) = (*told, told.cut);
        let admitted = origin.count(key);
        *told = Told { lives: lives.len(), spent, admitted, cut: 0 };

        // What the origin saw of requests that were cut.
        let seen = (admitted - usize::from(is_allowed) - earlier.admitted) as u32;
        assert!(seen <= cut, "key {key}: {seen} were forwarded, and {cut} were cut");
        let expected = (earlier.spent + seen).min(LIMIT);
        let ended = &lives[earlier.lives..];
        let context = || {
            format!(
                "key {key}, {:?}: {earlier:?}, {seen} more were seen; now {before} of {expected} were spent, after {ended:?}",
                self.after
            )
        };
        if let Some(added) = before.checked_sub(expected).filter(|added| *added > 0) {
            let kills = ended.iter().filter(|life| life.end == End::Kill).count() as u32;
            let ahead = match self.after {
                AfterCrash::Allow => 0,
                // A key that asks nothing between two kills pays for one of them.
                AfterCrash::Deny => AHEAD * kills.min(1 + cut),
            };
            assert!(added <= ahead + cut - seen, "{}", context());
            self.findings.added += u64::from(added);
        }
        if let Some(forgotten) = expected.checked_sub(before).filter(|forgotten| *forgotten > 0) {
            assert!(self.after == AfterCrash::Allow, "{}", context());
            // An orderly end makes nothing forgotten, and a kill what was admitted last before it.
            let mut admissions = origin.of(key);
            admissions.truncate(admissions.len() - usize::from(is_allowed));
            admissions.retain(|admission| lives[admission.lives].end == End::Kill);
            let oldest = admissions.iter().rev().nth(forgotten as usize - 1);
            let oldest = oldest.unwrap_or_else(|| panic!("{}", context()));
            let killed = lives[oldest.lives];
            assert!(oldest.lives >= earlier.lives, "{}, {oldest:?}", context());
            let findings = &mut self.findings;
            let age = findings.ages.entry(oldest.lives).or_default();
            *age = killed.told.saturating_duration_since(oldest.at).max(*age);
            findings.forgotten += u64::from(forgotten);
            findings.largest = findings.largest.max(forgotten);
        }
    }
}
