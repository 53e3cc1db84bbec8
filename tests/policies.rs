//! The cases of `policies/` on the embedded store.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "policies/cases.rs"]
mod cases;

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::engine::{Decision, Engine, Generation};
use tollgate::policy::{Facts, KeySecret};

struct Embedded;

impl cases::Store for Embedded {
    fn yaml(&self) -> String {
        "store: embedded\n".to_owned()
    }

    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine {
        Engine::new(clock, secret)
    }

    fn decide(&self, engine: &Engine, generation: &Generation, facts: &Facts<'_>) -> Decision {
        engine.decide_embedded(generation, facts)
    }
}

#[test]
fn every_policy_does_what_its_cases_say() {
    let cases = cases::run_all(&Embedded);
    assert!(cases >= 60, "only {cases} cases");
}
