//! The cases of `policies/` on the embedded store.

use support::policies::run_all;
use tollgate::cli::test::InProcessStore;

#[test]
fn every_policy_does_what_its_cases_say() {
    let cases = run_all(&InProcessStore, "store: embedded\n");
    assert!(cases >= 200, "only {cases} cases");
}
