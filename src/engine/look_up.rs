//! What one key has spent under one limit, for operators who ask.
//!
//! The store that counts the key is asked for its verdict on a charge of 0, which changes nothing. What the shared store
//! says is not cached and is waited for no longer than a decision waits. Bans are those that this node knows.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::counters::VerdictKinds;
use super::exact::{ExactCharge, ExactRequest, ExactTier, ExactVerdicts};
use super::final_cost::FinalCost;
use super::generation::Generation;
use super::loaded_limit::{LoadedLimit, TierState};
use super::state::Engine;
use super::target::Target;
use super::tentative::in_flight_verdict;
use crate::clock::{Nanos, Now};
use crate::limit::Verdict;
use crate::policy::key::TypedKeyError;
use crate::policy::{Cost, KeyHash, LimitIndex, OverrideAction, RateIndex, RateSource};
use crate::store::redis::{CellCharge, Operation, StoreCharge, StoreFailure};

/// A key as a person writes it.
#[derive(Clone, Copy, Debug)]
pub enum TypedKey<'t> {
    /// One text for each source of the limit's key.
    Values(&'t [&'t str]),
    /// The hash of the key, as logs and answers show it.
    Hash(KeyHash),
    /// The client's address in the stead of the key, for `missing_key: client_ip`.
    Address(IpAddr),
}

/// What a key has spent, and what holds for it.
#[derive(Clone, Debug)]
pub struct KeyState {
    /// The key of the cell.
    pub key: KeyHash,
    /// When this was read.
    pub at: Now,
    /// The verdict on a charge of 0: its numbers are the key's present numbers.
    pub verdict: Verdict,
    /// How long a ban of the key still lasts.
    pub banned_for: Option<Nanos>,
    /// The override of the configuration for this key, by its index.
    pub overridden: Option<u32>,
}

/// Why the state of a key cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookUpError {
    /// The limit has no plan of this name.
    #[error("limit {limit} has no plan {plan:?}")]
    UnknownPlan {
        /// The limit.
        limit: String,
        /// The name.
        plan: String,
    },
    /// The values are no key of the limit.
    #[error(transparent)]
    Key(#[from] TypedKeyError),
    /// The hash is that of a key of another limit.
    #[error("this is the hash of a key of another limit")]
    OtherLimit,
    /// In a Cluster, the slot of a family's cell is computed from the values of its key.
    #[error("in a Cluster the key of this limit needs its values, not its hash")]
    HashInFamily,
    /// The shared store did not answer in time.
    #[error("the store does not answer")]
    Store,
}

/// Where a key is counted under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCell {
    /// The key of the cell.
    pub key: KeyHash,
    /// The key of the limit's family.
    pub(super) family: Option<KeyHash>,
    /// Whether the family is needed to find the cell, and not known.
    pub(super) lacks_family: bool,
}

/// Which cell is looked up.
#[derive(Clone, Copy)]
struct CellOfKey {
    limit: LimitIndex,
    key: KeyHash,
    family: Option<KeyHash>,
    rate: RateIndex,
}

impl KeyCell {
    /// The key, if its cell can be found in a shared store.
    ///
    /// # Errors
    /// [`LookUpError::HashInFamily`].
    pub const fn require_family(self) -> Result<KeyHash, LookUpError> {
        if self.lacks_family { Err(LookUpError::HashInFamily) } else { Ok(self.key) }
    }
}

impl LookUpError {
    /// What is wrong, without a value of the key: it may be a secret.
    pub fn detail(&self) -> String {
        match self {
            Self::Key(TypedKeyError::Address(_)) => {
                "the value for client_ip is no address".to_owned()
            }
            Self::Key(TypedKeyError::CertificateName(_)) => {
                "the value for tls_client names no certificate (dns:a.internal)".to_owned()
            }
            Self::Key(TypedKeyError::Form { reason, .. }) => format!("a value {reason}"),
            Self::Key(
                TypedKeyError::Count { .. } | TypedKeyError::Shard | TypedKeyError::Empty,
            )
            | Self::UnknownPlan { .. }
            | Self::HashInFamily
            | Self::OtherLimit
            | Self::Store => self.to_string(),
        }
    }
}

impl KeyState {
    /// Units that are spent: of a limit in flight, the requests that run.
    pub const fn spent(&self) -> u32 {
        self.verdict.limit.saturating_sub(self.verdict.remaining)
    }
}

impl Engine {
    /// What a key has spent under a limit. `plan`: the rate by which it is judged; without one, that of the key's
    /// override, or the limit's own. `ipv6_prefix` is that of the configuration.
    ///
    /// # Errors
    /// [`LookUpError`].
    pub async fn look_up(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        typed: &TypedKey<'_>,
        plan: Option<&str>,
        ipv6_prefix: u8,
    ) -> Result<KeyState, LookUpError> {
        let cell = self.locate_key(generation, limit, typed, ipv6_prefix)?;
        self.look_up_cell(generation, limit, cell, plan).await
    }

    /// Where a key is counted under a limit.
    ///
    /// # Errors
    /// [`LookUpError::Key`].
    pub fn locate_key(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        typed: &TypedKey<'_>,
        ipv6_prefix: u8,
    ) -> Result<KeyCell, LookUpError> {
        let spec = generation.policy().limit(limit);
        let loaded = generation.loaded(limit);
        let without_family = |key| KeyCell { key, family: None, lacks_family: false };
        Ok(match typed {
            TypedKey::Hash(key) => {
                if self.has_cell_of_another_limit(loaded, *key) {
                    return Err(LookUpError::OtherLimit);
                }
                KeyCell { lacks_family: loaded.family.is_some(), ..without_family(*key) }
            }
            TypedKey::Address(address) => {
                without_family(loaded.hasher.hash_address(*address, ipv6_prefix))
            }
            TypedKey::Values(texts) => {
                let values = spec.key.typed_values(texts, ipv6_prefix)?;
                let family = loaded.family.as_ref().map(|family| {
                    spec.key.hash_first_values(family.sources, &family.hasher, &values)
                });
                KeyCell { family, ..without_family(spec.key.hash_values(&loaded.hasher, &values)) }
            }
        })
    }

    /// Whether the embedded store counts a key for another limit. (A hash covers the name of its limit, but the limit cannot be
    /// read from it.)
    fn has_cell_of_another_limit(&self, loaded: &LoadedLimit, key: KeyHash) -> bool {
        self.exact.embedded.budget_of(key).is_some_and(|budget| match &loaded.state {
            TierState::Exact(exact) => !Arc::ptr_eq(&budget, exact.budget()),
            TierState::Estimate(_) | TierState::InFlight { .. } => true,
        })
    }

    /// What the key of a cell has spent. `plan` as in [`Engine::look_up`].
    ///
    /// # Errors
    /// [`LookUpError`].
    pub async fn look_up_cell(
        &self,
        generation: &Generation,
        limit: LimitIndex,
        cell: KeyCell,
        plan: Option<&str>,
    ) -> Result<KeyState, LookUpError> {
        let key = cell.require_family()?;
        let loaded = generation.loaded(limit);
        let at = self.now();
        let rules = &generation.policy().limit(limit).terms.key_rules;
        let rules = rules.of_key(key);
        let ranked = loaded.overrides.as_ref().and_then(|overrides| overrides.of_key(key));
        let date = self.date(at);
        let ruled = rules.and_then(|rules| rules.action(date));
        let rate = match (plan, ruled.or(ranked.map(|ranked| ranked.action))) {
            (Some(plan), _) => plan_rate(generation, limit, plan)?,
            (None, Some(OverrideAction::Rate(rate))) => rate,
            (None, Some(OverrideAction::Allow | OverrideAction::Deny) | None) => 0,
        };
        let cell = CellOfKey { limit, key, family: cell.family, rate };
        Ok(KeyState {
            key,
            at,
            verdict: self.judge_zero(generation, cell, at).await?,
            banned_for: self.bans.remaining(key, at.mono),
            overridden: ranked.map(|ranked| ranked.rank),
        })
    }

    async fn judge_zero(
        &self,
        generation: &Generation,
        cell: CellOfKey,
        now: Now,
    ) -> Result<Verdict, LookUpError> {
        let target = cell.target();
        let loaded = generation.loaded(cell.limit);
        match &loaded.state {
            TierState::Estimate(estimate) => Ok(estimate.judge(&self.confirm, cell.key, now)),
            TierState::InFlight { table, max } => {
                Ok(in_flight_verdict(*max, table.held(cell.key), 0, true))
            }
            TierState::Exact(_) => {
                let charge = ExactCharge::new(loaded, &target, true).ok_or(LookUpError::Store)?;
                let request = ExactRequest {
                    charges: std::iter::once(charge).collect(),
                    may_charge: false,
                    generation: generation.epoch(),
                    confirm: &self.confirm,
                    now,
                    clock: &*self.clock,
                };
                self.exact.judge_zero(&request, &charge).await
            }
        }
    }
}

impl ExactTier {
    /// The verdict on a charge of 0 in the store that counts it.
    async fn judge_zero(
        &self,
        request: &ExactRequest<'_>,
        charge: &ExactCharge<'_>,
    ) -> Result<Verdict, LookUpError> {
        let Some(shared) = &self.shared else {
            let mut results = ExactVerdicts::default();
            let (charges, kinds) = (&request.charges, VerdictKinds::NORMAL);
            self.charge_embedded(request, charges, false, kinds, &mut results);
            let verdict = results.verdicts.first().map(|limit_verdict| limit_verdict.verdict);
            return verdict.ok_or(LookUpError::Store);
        };
        let (generation, now) = (request.generation, request.now.mono);
        let deadline = now.saturating_add(Nanos::from(shared.timeout()));
        // The denial of a refundable charge is not cached, and a charge of 0 is never denied anyway.
        let cell = CellCharge { refundable: true, ..charge.cell_charge() };
        let check =
            StoreCharge { operation: Operation::Check, cell_charges: SmallVec::from_iter([cell]) };
        let reply = shared.settle(check, generation, deadline, now).await;
        let cells = reply.map_err(|failure| match failure {
            StoreFailure::Unreadable => LookUpError::OtherLimit,
            _ => LookUpError::Store,
        });
        let cells = cells?.cells;
        cells.first().map(|cell| cell.verdict).ok_or(LookUpError::Store)
    }
}

impl CellOfKey {
    /// The target of a charge of 0.
    fn target(self) -> Target {
        Target {
            limit: self.limit,
            key: self.key,
            family: self.family,
            cost: 0,
            authenticated: false,
            by_address: false,
            rate: self.rate,
            rate_source: RateSource::Own,
            unknown_rate: false,
            shadow: false,
            denied: false,
            banned_for: Nanos::ZERO,
            final_cost: FinalCost::of(0, &Cost::Fixed(0), 0),
        }
    }
}

fn plan_rate(
    generation: &Generation,
    limit: LimitIndex,
    plan: &str,
) -> Result<RateIndex, LookUpError> {
    let spec = generation.policy().limit(limit);
    let plans = spec.terms.plans.iter().flat_map(|plans| &plans.rates);
    let mut named = plans.filter(|(name, _)| **name == *plan);
    named.next().map(|(_, rate)| *rate).ok_or_else(|| LookUpError::UnknownPlan {
        limit: spec.name.to_string(),
        plan: plan.to_owned(),
    })
}
