//! One loaded policy, as far as a limiter uses it.

use std::sync::Arc;

#[cfg(feature = "pingora")]
use super::discard::DiscardBounds;
use crate::config::{Config, Responses};
use crate::engine::{Decision, Engine, Generation, ReloadReport};
use crate::http::{FieldRules, HeadBounds, RateLimitFields};
use crate::policy::PerRoute;
use crate::policy::client::ClientRules;

/// One loaded policy. Requests keep the one that judged them.
pub(super) struct LoadedPolicy {
    pub(super) generation: Generation,
    pub(super) clients: ClientRules,
    pub(super) bounds: HeadBounds,
    pub(super) field_rules: FieldRules,
    #[cfg(feature = "pingora")]
    pub(super) discard: DiscardBounds,
    responses: PerRoute<Arc<Responses>>,
    default_responses: Arc<Responses>,
}

impl LoadedPolicy {
    /// Counters of `previous` continue by the limit's name.
    pub(super) fn new(
        config: Config,
        engine: &Engine,
        previous: Option<&Generation>,
    ) -> (Self, ReloadReport) {
        let bounds = HeadBounds::of(&config.bounds);
        let field_rules = FieldRules::of(&config);
        let (generation, report) = engine.generation(config.policy, previous);
        let loaded = Self {
            generation,
            clients: config.clients,
            bounds,
            field_rules,
            #[cfg(feature = "pingora")]
            discard: DiscardBounds {
                bytes: config.bounds.discard_bytes,
                time: config.bounds.discard_time,
            },
            responses: config.responses,
            default_responses: config.default_responses,
        };
        (loaded, report)
    }

    /// How refusals look where no route was found.
    pub(super) fn default_responses(&self) -> &Responses {
        &self.default_responses
    }

    /// The rate limit fields of a decision.
    pub(super) fn fields<'d>(&'d self, decision: &'d Decision) -> RateLimitFields<'d> {
        let of_route = decision.route.and_then(|route| self.responses.get(route));
        let responses = of_route.unwrap_or(&self.default_responses);
        let policy = self.generation.policy();
        RateLimitFields::new(decision, policy, responses)
    }
}
