//! `tollgate test`: runs policy tests.
//!
//! The requests of a case pass the real request validation and the real engine. The clock is set by
//! the test, so that days pass in milliseconds. Exact limits count in this process, whatever the
//! store of the policy.

mod bench;
mod observed;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use super::REFUSED;
use crate::clock::ManualClock;
use crate::config::{self, ConfigErrors};
use crate::engine::{Decision, Engine, Generation, PendingSettlement};
use crate::policy::{Facts, KeySecret};

pub use bench::run;
use report::{Suite, junit, summary};

/// Cases and the policy that they test.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Write the results as JUnit XML, for a CI server.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Files of cases.
    #[arg(required = true, value_name = "CASES")]
    cases: Vec<PathBuf>,
}

/// Where exact limits count during a test.
pub trait TestStore {
    /// Creates an engine with an empty store and this clock.
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine;
    /// Decides, and waits for the store if necessary.
    fn decide(
        &self,
        engine: &Engine,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement);
    /// Waits until no charge or refund is on its way to the store.
    fn wait_until_settled(&self, _engine: &Engine) {}
}

/// Counts in this process.
#[derive(Debug)]
pub struct InProcessStore;

impl TestStore for InProcessStore {
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine {
        Engine::new(clock, secret)
    }

    fn decide(
        &self,
        engine: &Engine,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement) {
        engine.decide_now(generation, facts)
    }
}

/// The result of one case.
#[derive(Debug)]
pub struct CaseResult {
    /// Name of the case.
    pub name: String,
    /// What differs from the expectation, in words; empty if the case passes.
    pub differences: Vec<String>,
}

/// The exit status is 0 if all cases pass, 1 if one fails, and 2 if a file is refused.
pub(super) fn test(args: &TestArgs) -> ExitCode {
    let mut suites = Vec::new();
    for file in &args.cases {
        match suite(&args.config, file) {
            Ok(results) => suites.push(Suite { file: file.display().to_string(), results }),
            Err(errors) => {
                errors.lines().iter().for_each(|line| eprintln!("{line}"));
                return ExitCode::from(REFUSED);
            }
        }
    }
    print!("{}", summary(&suites));
    if let Some(file) = &args.junit
        && let Err(error) = std::fs::write(file, junit(&suites))
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::from(REFUSED);
    }
    if suites.iter().all(Suite::passes) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn suite(policy: &Path, cases: &Path) -> Result<Vec<CaseResult>, ConfigErrors> {
    let cases = config::load_cases(cases)?;
    cases.iter().map(|case| Ok(run(config::load(policy)?.config, case, &InProcessStore))).collect()
}
