//! Numbers for the names of routes, limits and plans, so that a record of a refusal copies numbers only.
//!
//! A number stands for its name as long as the process lives: it survives reloads, and is never given to another name.
//! What must always hold: there are at most [`MAX_NAMES`]; a name beyond that has no number, and shows as
//! [`UNKNOWN_NAME`].

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::policy::{Count, KeySpec, Limit, MissingKey, PerLimit, PerRoute, Policy, Tier};

/// The most names that get a number: three configurations of 10,000 routes that have no name in common. Each takes some
/// hundred bytes at most.
pub(super) const MAX_NAMES: usize = 32_768;

/// What stands for a name without a number. No route or limit can have this name.
pub const UNKNOWN_NAME: &str = "(unknown)";

/// The number of a name; 0 stands for every name without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameNumber(pub(super) u32);

/// The names that have numbers.
#[derive(Default)]
pub(super) struct NameTable(Mutex<NumberedNames>);

#[derive(Default)]
struct NumberedNames {
    numbers: HashMap<Arc<str>, NameNumber>,
    /// Number 1 is the first.
    names: Vec<Arc<str>>,
}

impl NameTable {
    /// The number of a name, which gets one if there is room.
    fn obtain(&self, name: &Arc<str>) -> NameNumber {
        let NumberedNames { numbers, names } = &mut *self.0.lock();
        if let Some(number) = numbers.get(name) {
            return *number;
        }
        if names.len() >= MAX_NAMES {
            return NameNumber::default();
        }
        names.push(Arc::clone(name));
        let number = NameNumber(u32::try_from(names.len()).unwrap_or_default());
        numbers.insert(Arc::clone(name), number);
        number
    }

    /// The number of a name that has one.
    pub(super) fn find(&self, name: &str) -> Option<NameNumber> {
        self.0.lock().numbers.get(name).copied()
    }

    /// The name of a number.
    pub(super) fn name(&self, number: NameNumber) -> Arc<str> {
        let index = (number.0 as usize).checked_sub(1);
        let names = &self.0.lock().names;
        let name = index.and_then(|index| names.get(index)).cloned();
        name.unwrap_or_else(|| Arc::from(UNKNOWN_NAME))
    }
}

/// Algorithms as configurations name them. A `leaky_bucket` shows as the token bucket that it is.
const ALGORITHMS: [&str; 5] =
    ["token_bucket", "sliding_window", "sliding_log", "fixed_window", "max_in_flight"];

/// How a limit counts, by its index in the list of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmNumber(pub(super) u8);

impl AlgorithmNumber {
    fn of(limit: &Limit) -> Self {
        let name = match &limit.count {
            // Suspects are counted by this one.
            Count::Estimate { .. } => "sliding_window",
            Count::Exact { quota, .. } => quota.name(),
            Count::InFlight { .. } => "max_in_flight",
        };
        let index = ALGORITHMS.iter().position(|known| *known == name);
        Self(index.and_then(|index| u8::try_from(index).ok()).unwrap_or(u8::MAX))
    }

    /// The name.
    pub fn name(self) -> &'static str {
        ALGORITHMS.get(usize::from(self.0)).copied().unwrap_or(UNKNOWN_NAME)
    }
}

/// The numbers of one policy's names, and what else a record says of its limits.
pub struct PolicyNames {
    pub(super) routes: PerRoute<NameNumber>,
    pub(super) limits: PerLimit<LimitNames>,
}

/// What a record says of a limit whatever the request is.
pub(super) struct LimitNames {
    pub(super) name: NameNumber,
    pub(super) tier: Tier,
    pub(super) algorithm: AlgorithmNumber,
    /// In the order of the limit's list.
    pub(super) plans: Box<[NameNumber]>,
    pub(super) address_as_key: AddressAsKey,
}

/// Which keys of a limit are the client's address and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressAsKey {
    Always,
    /// It stands for a credential that is missing.
    WithoutCredential,
    Never,
}

impl AddressAsKey {
    fn of(limit: &Limit) -> Self {
        if limit.key == KeySpec::client_ip() {
            Self::Always
        } else if limit.missing_key == MissingKey::ClientIp && limit.key.is_credential() {
            Self::WithoutCredential
        } else {
            Self::Never
        }
    }

    /// Whether a key is the client's address.
    pub(super) const fn holds(self, authenticated: bool) -> bool {
        match self {
            Self::Always => true,
            Self::WithoutCredential => !authenticated,
            Self::Never => false,
        }
    }
}

impl PolicyNames {
    pub(super) fn of(policy: &Policy, table: &NameTable) -> Self {
        let plan_numbers = |limit: &Limit| -> Box<[NameNumber]> {
            let plans = limit.terms.plans.iter().flat_map(|plans| &plans.rates);
            plans.map(|(name, _)| table.obtain(&Arc::from(&**name))).collect()
        };
        Self {
            routes: PerRoute::of(&policy.routes, |_, route| table.obtain(&route.name)),
            limits: PerLimit::of(&policy.limits, |_, limit| LimitNames {
                name: table.obtain(&limit.name),
                tier: limit.count.tier(),
                algorithm: AlgorithmNumber::of(limit),
                plans: plan_numbers(limit),
                address_as_key: AddressAsKey::of(limit),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_given_twice_and_are_bounded() {
        let table = NameTable::default();
        let name = |n: usize| Arc::from(n.to_string());
        let first = table.obtain(&name(0));
        assert_eq!((table.obtain(&name(0)), &*table.name(first)), (first, "0"));
        let all: Vec<_> = (0..MAX_NAMES + 3).map(|n| table.obtain(&name(n))).collect();
        let unknown = all.iter().filter(|number| **number == NameNumber::default()).count();
        assert_eq!(unknown, 3);
        assert_eq!(&*table.name(all[MAX_NAMES - 1]), (MAX_NAMES - 1).to_string());
        assert_eq!(&*table.name(all[MAX_NAMES]), UNKNOWN_NAME);
        assert_eq!(table.find("17"), Some(all[17]));
        assert_eq!(table.find(&(MAX_NAMES + 1).to_string()), None);
    }
}
