//! Examples of requests whose decision changes: few, and each of another key.

use crate::replay::judged::JudgedRequest;
use crate::replay::tally::RequestExample;

/// Examples of one direction.
const MAX_EXAMPLES: usize = 20;
/// Examples of one limit, so that others have some too.
const MAX_OF_LIMIT: usize = 10;
/// Hashes of keys that need no second look. More than one hash may be shown as the same text.
const MAX_SEEN: usize = 256;

/// The examples of one direction.
#[derive(Default)]
pub(super) struct Examples {
    examples: Vec<RequestExample>,
    /// The limit of each example; `None` for those without a key.
    limits: Vec<Option<usize>>,
    seen: Vec<u64>,
    /// Routes with an example without a key.
    routes: Vec<Option<usize>>,
}

impl Examples {
    /// Adds a request whose key has no example yet. `example` is asked if there is room for it.
    pub(super) fn add(
        &mut self,
        hash: u64,
        limit: usize,
        example: impl FnOnce() -> RequestExample,
    ) {
        let of_limit = self.limits.iter().filter(|known| **known == Some(limit)).count();
        if self.is_full() || of_limit >= MAX_OF_LIMIT || self.seen.contains(&hash) {
            return;
        }
        if self.seen.len() < MAX_SEEN {
            self.seen.push(hash);
        }
        let example = example();
        if self.examples.iter().all(|known| known.key != example.key) {
            self.examples.push(example);
            self.limits.push(Some(limit));
        }
    }

    /// Adds a request that no key decides: one of each route.
    pub(super) fn add_without_key(&mut self, request: &JudgedRequest<'_>) {
        if !self.is_full()
            && self.routes.len() < MAX_OF_LIMIT
            && !self.routes.contains(&request.route)
        {
            self.routes.push(request.route);
            self.examples.push(RequestExample::of(request, None, None));
            self.limits.push(None);
        }
    }

    pub(super) fn into_list(self) -> Vec<RequestExample> {
        self.examples
    }

    fn is_full(&self) -> bool {
        self.examples.len() >= MAX_EXAMPLES
    }
}
