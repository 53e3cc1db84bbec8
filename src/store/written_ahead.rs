//! What keys may spend before they are saved again, under limits with `after_crash: deny`.
//!
//! With each saved cell stands how many units its key may spend after the copy, and until when: a *grant*. Sequence
//! allocators reserve their numbers in the same way. After a crash the key is restored as if it had spent all of the
//! grant, so nothing above its limit is ever admitted. A charge that the grant on the disk does not cover waits for the
//! next copy.
//!
//! ```text
//!   copies        1 ────────── 2 ──── 3 ──────────────►      a crash may leave any copy since the one that is known to
//!   on the disk        1              2                      be on the disk, so charges are held against that one: it
//!   held against       1              2                      has been spent from for longest
//! ```
//!
//! What always holds: the units charged after the copy that is known to be on the disk, and not waiting, are at most those
//! of its grant, and so of every later copy's.

use std::num::NonZeroU32;

use crate::clock::Nanos;

/// What a key may spend after its cell was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Units.
    pub units: u32,
    /// Until when they may be spent (monotonic).
    pub until: Nanos,
}

/// The grants of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyGrants {
    /// Of the latest copy that is known to be on the disk, as far as it is not spent.
    saved: Option<Grant>,
    /// Of the first copy after that, and its batch.
    pending: Option<(u64, Grant)>,
}

/// How much of a limit is granted: an eighth, and at least a unit.
pub const fn units_ahead(limit: u32) -> NonZeroU32 {
    match NonZeroU32::new(limit / 8) {
        Some(units) => units,
        None => NonZeroU32::MIN,
    }
}

impl KeyGrants {
    /// Spends units. Returns whether the grant on the disk covers them; otherwise the next copy has to. `saved`: the last
    /// batch that is on the disk.
    #[must_use = "a charge that is not covered has to wait"]
    pub(super) fn spend(&mut self, units: u32, saved: u64, now: Nanos) -> bool {
        if let Some((_, grant)) = self.pending.take_if(|(batch, _)| *batch <= saved) {
            self.saved = Some(grant);
        }
        let is_covered = self.saved.is_some_and(|grant| grant.units >= units && now <= grant.until);
        let grants = self.saved.iter_mut().chain(self.pending.iter_mut().map(|(_, grant)| grant));
        for grant in grants {
            grant.units = grant.units.saturating_sub(units);
        }
        is_covered
    }

    /// Records a copy with its grant.
    pub(super) fn record_copy(&mut self, batch: u64, grant: Grant) {
        // Where the limit became smaller, a later copy grants less than an earlier one.
        let held = self.saved.iter_mut().chain(self.pending.iter_mut().map(|(_, grant)| grant));
        for older in held {
            older.units = older.units.min(grant.units);
            older.until = older.until.min(grant.until);
        }
        self.pending.get_or_insert((batch, grant));
    }

    /// Whether nothing is left to be spent.
    pub(super) fn are_over(&self, now: Nanos) -> bool {
        let is_over = |grant: Grant| grant.until < now;
        self.saved.is_none_or(is_over) && self.pending.is_none_or(|(_, grant)| is_over(grant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Nanos = Nanos::from_secs(100);

    #[test]
    fn only_what_is_on_the_disk_covers_a_charge() {
        let (mut key, now) = (KeyGrants::default(), Nanos::from_secs(1));
        assert!(!key.spend(1, 0, now), "nothing was saved");
        key.record_copy(1, Grant { units: 3, until: LATER });
        assert!(!key.spend(1, 0, now), "the copy is not on the disk");
        assert!(key.spend(2, 1, now), "2 of the 3 units are left");
        assert!(!key.spend(1, 1, now));
        key.record_copy(2, Grant { units: 3, until: LATER });
        key.record_copy(3, Grant { units: 3, until: LATER });
        assert!(key.spend(3, 3, now));
        assert!(!key.spend(1, 3, now), "copy 3 may be on the disk, but so may copy 2");
        assert!(!key.spend(1, 3, LATER.saturating_add(now)), "its time is over");
    }

    /// A key spends, is copied, and the disk follows, in any order. After a crash at any moment, whichever copy is left, its
    /// cell and its grant are at least what was let through.
    #[test]
    fn no_copy_that_a_crash_may_leave_knows_of_too_little() {
        for seed in 0..5_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut key, now) = (KeyGrants::default(), Nanos::from_secs(1));
            let (mut spent, mut passed, mut saved) = (0, 0, 0);
            // Copies since the one on the disk: what was spent, and the grant.
            let mut copies = vec![(0_u64, 0_u32, 0_u32)];
            let mut waiting: Vec<(u64, u32)> = Vec::new();
            let mut batch = 0;
            for _ in 0..random.u32(1..60) {
                match random.u32(..4) {
                    0 | 1 => {
                        let units = random.u32(1..4);
                        spent += units;
                        if key.spend(units, saved, now) {
                            passed += units;
                        } else {
                            waiting.push((batch + 1, units));
                        }
                    }
                    2 => {
                        batch += 1;
                        let units = random.u32(1..6);
                        key.record_copy(batch, Grant { units, until: LATER });
                        copies.push((batch, spent, units));
                    }
                    _ => {
                        saved = random.u64(saved..=batch);
                        copies.retain(|(number, ..)| *number >= saved);
                        waiting.retain(|(needed, units)| {
                            let is_saved = *needed <= saved;
                            passed += if is_saved { *units } else { 0 };
                            !is_saved
                        });
                    }
                }
                for (number, known, grant) in &copies {
                    assert!(known + grant >= passed, "seed {seed}, copy {number}");
                }
            }
        }
    }
}
