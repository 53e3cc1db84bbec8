//! `tollgate test`: a policy meets cases before it meets traffic.
//!
//! The cases run through the real gate and the real engine on a clock that is turned by hand, so
//! days pass in milliseconds. The exact tier counts in this process, whatever the policy's store.

mod bench;
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
use report::{junit, told};

/// Cases and the policy that they are for.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Writes the results for a CI server.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Files of cases.
    #[arg(required = true, value_name = "CASES")]
    cases: Vec<PathBuf>,
}

/// Where the exact tier of a bench counts.
pub trait TestStore {
    /// An engine on an empty store, with this clock.
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine;
    /// Decides, waiting for the store if need be.
    fn decide(
        &self,
        engine: &Engine,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement);
    /// Waits until nothing is on its way to the store.
    fn settled(&self, _engine: &Engine) {}
}

/// In this process.
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

/// What came of one case.
#[derive(Debug)]
pub struct CaseResult {
    /// Its name.
    pub name: String,
    /// What was not as expected, in words; empty: it passed.
    pub differences: Vec<String>,
}

/// 0 when all pass, 1 when one does not, 2 when a file cannot be read.
pub(super) fn test(args: &TestArgs) -> ExitCode {
    let mut suites = Vec::new();
    for file in &args.cases {
        match suite(&args.config, file) {
            Ok(outcomes) => suites.push((file.display().to_string(), outcomes)),
            Err(errors) => {
                errors.lines().iter().for_each(|line| eprintln!("{line}"));
                return ExitCode::from(REFUSED);
            }
        }
    }
    let (told, failed) = told(&suites);
    print!("{told}");
    if let Some(file) = &args.junit
        && let Err(error) = std::fs::write(file, junit(&suites))
    {
        eprintln!("{}: {error}", file.display());
        return ExitCode::from(REFUSED);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn suite(policy: &Path, cases: &Path) -> Result<Vec<CaseResult>, ConfigErrors> {
    let cases = config::load_cases(cases)?;
    cases.iter().map(|case| Ok(run(config::load(policy)?.config, case, &InProcessStore))).collect()
}
