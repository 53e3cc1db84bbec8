//! What is already known of a request's values, so that each condition is evaluated once.
//!
//! One request is judged several times: by the router, by overrides, by classes in keys, and once more for each other
//! reading of its path. The values of its fields stay the same. So results are remembered for the request, by the
//! identity of the condition, the query and the cookies are split once, and all conditions share one budget of work. What
//! must always hold: a result is remembered for one request only, and what is remembered equals what the condition would
//! say again.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::log_values::LogValues;
use super::names::NameIndex;
use super::unreadable::Unreadable;
use super::work_budget::WorkBudget;

/// A test of a subject, by number.
pub(super) type Guard = usize;

/// The guards that hold for a request, in no particular order.
pub(super) type HeldGuards = SmallVec<[Guard; 8]>;

/// Identifies a condition, or an index of conditions. Clones share it, since they give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConditionId(u64);

impl ConditionId {
    /// An identity that no other condition of this process has.
    pub(super) fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The results of conditions for one request.
#[derive(Debug, Default)]
pub struct ConditionResults {
    known: Mutex<Known>,
    budget: WorkBudget,
    query: NameIndex,
    cookies: NameIndex,
    /// What a log says, if the request is read from one.
    log: Option<Box<LogValues>>,
}

#[derive(Debug, Default)]
struct Known {
    by_condition: HashMap<ConditionId, Result<bool, Unreadable>>,
    /// Of the index that was asked last.
    guards: Option<(ConditionId, HeldGuards)>,
}

impl ConditionResults {
    /// For a request that is read from a log.
    pub fn of_log(values: LogValues) -> Self {
        Self { log: Some(Box::new(values)), ..Self::default() }
    }

    /// What a log says of the request, if it is read from one.
    pub fn log(&self) -> Option<&LogValues> {
        self.log.as_deref()
    }

    /// Whether a log says that limits had admitted the request before its token was checked, and were asked again after that.
    pub(crate) fn is_asked_again(&self) -> bool {
        self.log().is_some_and(LogValues::is_asked_again)
    }

    /// The result of a condition, evaluated unless it is known.
    pub(super) fn result(
        &self,
        condition: ConditionId,
        evaluate: impl FnOnce() -> Result<bool, Unreadable>,
    ) -> Result<bool, Unreadable> {
        if let Some(known) = self.known.lock().by_condition.get(&condition) {
            return *known;
        }
        let result = evaluate();
        self.known.lock().by_condition.insert(condition, result);
        result
    }

    /// The guards of an index that hold, evaluated unless they are known.
    pub(super) fn guards(
        &self,
        index: ConditionId,
        evaluate: impl FnOnce() -> HeldGuards,
    ) -> HeldGuards {
        if let Some((known, held)) = &self.known.lock().guards
            && *known == index
        {
            return held.clone();
        }
        let held = evaluate();
        self.known.lock().guards = Some((index, held.clone()));
        held
    }

    /// What is left of the work that conditions may cause.
    pub(super) const fn budget(&self) -> &WorkBudget {
        &self.budget
    }

    /// The query parameters by name.
    pub(super) const fn query(&self) -> &NameIndex {
        &self.query
    }

    /// The cookies by name.
    pub(super) const fn cookies(&self) -> &NameIndex {
        &self.cookies
    }
}
