//! The cases of `policies/` on the embedded store.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

#[path = "policies/all.rs"]
mod all;

use tollgate::cli::test::InProcessStore;

#[test]
fn every_policy_does_what_its_cases_say() {
    let cases = all::run_all(&InProcessStore, "store: embedded\n");
    assert!(cases >= 200, "only {cases} cases");
}
