//! What operators do to one key: they make rules for it, forget what it spent, and lift its ban.
//!
//! Rules are kept by the engine, so that every generation follows them. A key is forgotten wherever this node and the
//! shared store count it: its cells under every rate, its candidate's, counts of the estimate tier, cached denials, and
//! usage that the store was not told of. Requests that are being answered may still settle their charges afterwards.

use std::sync::Arc;

use super::generation::Generation;
use super::loaded_limit::TierState;
use super::look_up::{KeyCell, LookUpError};
use super::shadow::candidate_key;
use super::state::Engine;
use crate::policy::{KeyHash, KeyRule, LimitIndex};
use crate::store::redis::CellAddress;

impl Engine {
    /// The rules that operators made for keys, ended ones included.
    pub fn key_rules(&self) -> Arc<[KeyRule]> {
        Arc::clone(&self.key_rules.lock())
    }

    /// Replaces the rules. They hold in every generation that is built from now on ([`Engine::regenerate`]).
    pub fn set_key_rules(&self, rules: Arc<[KeyRule]>) {
        *self.key_rules.lock() = rules;
    }

    /// The next generation of the same configuration, with the present rules for keys. All counters continue.
    pub fn regenerate(&self, generation: &Generation) -> Generation {
        let policy = generation.policy().clone();
        self.generation_numbered(generation.number(), policy, Some(generation)).0
    }

    /// Forgets what a key has spent under a limit, on this node and in the shared store. A ban in force stays.
    ///
    /// # Errors
    /// [`LookUpError::Store`]: the store does not answer. This node has forgotten the key then, and the store may have.
    pub async fn reset_key(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        cell: KeyCell,
    ) -> Result<(), LookUpError> {
        let change = self.heard_changes();
        self.forget_key(generation, limit, cell.key, change);
        if let (Some(shared), true) = (self.remote(), generation.loaded(limit).is_exact()) {
            let key = cell.require_family()?;
            let address = |key| CellAddress { key, family: cell.family };
            let deleted = shared.delete(&[address(key), address(candidate_key(key))]).await;
            deleted.map_err(|_| LookUpError::Store)?;
            // A charge that was on its way may have been denied meanwhile.
            self.forget_key(generation, limit, key, change);
        }
        Ok(())
    }

    /// Forgets what this node knows of a key under a limit. A ban in force stays. `change`: the number of this change of
    /// operators; 0 without a store.
    pub fn forget_key(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        key: KeyHash,
        change: u64,
    ) {
        self.forget_key_of_others(generation, limit, key, change);
        self.bans.forget_denials(key);
        if let Some(denials) = &generation.loaded(limit).fleet_denials {
            self.confirm.reset(denials.key_of(key));
        }
        let now = self.now();
        match &generation.loaded(limit).state {
            TierState::Estimate(_) => self.confirm.reset(key),
            // Requests in flight end by themselves.
            TierState::InFlight { .. } => {}
            TierState::Exact(exact) => {
                let candidate = candidate_key(key);
                exact.overflow.reset(&self.confirm, key);
                if let Some(overflow) = &exact.candidate_overflow {
                    overflow.reset(&self.confirm, candidate);
                }
                for key in [key, candidate] {
                    self.exact.embedded.reset(key, now);
                    if let Some(shared) = self.remote() {
                        shared.forget(key);
                    }
                }
            }
        }
    }

    /// Forgets what nodes counted of a key under a limit that have not made the change of this number yet.
    pub fn forget_key_of_others(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        key: KeyHash,
        change: u64,
    ) {
        self.forget_denials_of_others(generation, limit, key, change);
        match &generation.loaded(limit).state {
            TierState::Estimate(estimate) => self.forget_counts_of_others(estimate, key, change),
            TierState::Exact(exact) => {
                for (estimate, key) in exact.overflow.keys_of(key) {
                    self.forget_counts_of_others(estimate, key, change);
                }
            }
            TierState::InFlight { .. } => {}
        }
    }

    /// Lifts the ban that a penalty gave a key on this node, and forgets the denials that led to it. `reported_until`: a ban that
    /// was reported to the shared store later stays, in microseconds by its time.
    pub fn lift_ban(&self, generation: &Generation, key: KeyHash, reported_until: Option<u64>) {
        match reported_until {
            Some(until) => self.bans.lift_reported(key, until, self.now().mono),
            None => self.bans.lift(key),
        }
        // The hash of a key covers its limit.
        for denials in generation.fleet_denials() {
            self.confirm.reset(denials.key_of(key));
        }
    }

    /// Forgets the denials of a key that nodes counted which have not made the change of this number yet.
    pub fn forget_denials_of_others(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        key: KeyHash,
        change: u64,
    ) {
        if let Some(denials) = &generation.loaded(limit).fleet_denials {
            self.forget_counts_of_others(denials.counts(), denials.key_of(key), change);
        }
    }
}
