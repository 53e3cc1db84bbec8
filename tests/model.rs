//! Stacks, costs, shadows, exceptions, plans and answers together: random policies and random
//! traffic through the reader and the engine, against a slow model that knows nothing of either.
//! (`stores` runs some of them on the other store.)

use support::model::run;
use tollgate::cli::test::InProcessStore;

/// Random policies; each meets some dozens of requests.
const CASES: u64 = 5_000;

#[test]
fn every_interplay_is_what_the_model_says() {
    let compared: usize = (0..CASES).map(|seed| run(seed, &InProcessStore, "", 1)).sum();
    assert!(compared > CASES as usize, "only {compared} refusals");
}
