//! Each case of `policies/` and of `conf/examples` is a test: `embedded::POLICY::CASE` on the embedded
//! store, `script::POLICY::CASE` on the shared one. Cases with several nodes run as `tollgate test` runs them.
//!
//! `cargo test --test policies 'keys::'` runs the cases of one policy on both stores.

use std::process::ExitCode;
use std::sync::Arc;

use support::cases::{self, Case};
use support::policies;
use support::scripted::Scripted;
use tollgate::cli::test::InProcessStore;

/// Fewer cases than this on a store mean that a file was not found.
const MIN_CASES: &[(&str, usize)] = &[("embedded::", 200), ("script::", 200)];

fn main() -> ExitCode {
    let all = policies::all().into_iter().map(Arc::new);
    let mut tests = Vec::new();
    for case in all {
        let shared = Arc::clone(&case);
        if !case.needs_in_process_store() {
            tests.push(Case::new(format!("script::{}", case.name()), move || {
                Scripted::with(|store, yaml| shared.check(store, yaml))
            }));
        }
        tests.push(Case::new(format!("embedded::{}", case.name()), move || {
            case.check(&InProcessStore, "store: embedded\n")
        }));
    }
    cases::run(MIN_CASES, tests)
}
