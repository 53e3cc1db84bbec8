//! Random policies on the shared store, against the slow model. (The target `policies` runs the written cases.)

use support::scripted::Scripted;

#[test]
fn every_interplay_is_what_the_model_says() {
    let _alone = crate::ALONE.blocking_lock();
    Scripted::with(|store, yaml| {
        let run = |seed| support::model::run(seed, store, yaml, 1_000);
        let compared: usize = (0..300).map(run).sum();
        assert!(compared > 1_000, "only {compared} refusals with all that their limits say");
    });
}
