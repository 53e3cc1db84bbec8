//! The limits of a file with their locations, in the order of the file.

use crate::config::reader::{Located, did_you_mean};
use crate::policy::{Limit, LimitIndex, MissingKey};

/// A limit and where it is defined.
pub(crate) struct DefinedLimit<'n> {
    pub(crate) limit: Limit,
    pub(crate) at: Located<'n>,
}

/// Every limit of the file. A limit with a mistake has a substitute, so that a reference to it is
/// not reported as unknown.
#[derive(Default)]
pub(crate) struct DefinedLimits<'n> {
    limits: Vec<DefinedLimit<'n>>,
    /// Whether the section is no mapping: its limits are not known, and no reference is reported as unknown.
    is_unreadable: bool,
}

impl<'n> DefinedLimits<'n> {
    /// No limits, in a section that may not be readable.
    pub(super) const fn new(is_unreadable: bool) -> Self {
        Self { limits: Vec::new(), is_unreadable }
    }

    pub(super) fn push(&mut self, limit: DefinedLimit<'n>) {
        self.limits.push(limit);
    }

    pub(crate) fn len(&self) -> usize {
        self.limits.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &DefinedLimit<'n>> {
        self.limits.iter()
    }

    /// The limit of a valid index.
    pub(crate) fn get(&self, LimitIndex(index): LimitIndex) -> &Limit {
        &self.limits[index].limit
    }

    /// The index of the limit with this name. An unknown name is recorded as a mistake.
    pub(crate) fn find(&self, at: &Located<'_>, name: &str) -> Option<LimitIndex> {
        if self.is_unreadable {
            return None;
        }
        let names: Vec<&str> = self.iter().map(|defined| &*defined.limit.name).collect();
        find_name(&names, at, name)
    }

    /// A limit, followed by the limits that apply instead if a key is missing.
    pub(crate) fn missing_key_chain(
        &self,
        first: LimitIndex,
    ) -> impl Iterator<Item = LimitIndex> + use<'_, 'n> {
        let next = |index: &LimitIndex| match self.get(*index).missing_key {
            MissingKey::Limit(next) => Some(next),
            MissingKey::Impossible
            | MissingKey::Skip
            | MissingKey::Deny(_)
            | MissingKey::ClientIp => None,
        };
        // A chain with a cycle is refused elsewhere, but must end here.
        std::iter::successors(Some(first), next).take(self.len())
    }

    pub(crate) fn into_limits(self) -> Vec<Limit> {
        self.limits.into_iter().map(|defined| defined.limit).collect()
    }
}

/// The index of a name in the list of all names. An unknown name is recorded as a mistake.
pub(super) fn find_name(names: &[&str], at: &Located<'_>, name: &str) -> Option<LimitIndex> {
    let index = names.iter().position(|other| *other == name);
    if index.is_none() {
        let cure = did_you_mean(name, names).unwrap_or_else(|| "define it under limits".to_owned());
        at.error_with(format!("unknown limit {name:?}"), cure);
    }
    index.map(LimitIndex)
}
