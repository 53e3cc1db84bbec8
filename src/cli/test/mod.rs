//! `tollgate test`: runs policy tests.
//!
//! The requests of a case pass the real request validation and the real engine. The clock is set by
//! the test, so that days pass in milliseconds. Exact limits count in this process, whatever the
//! store of the policy. A case may have several nodes, which share what nodes with that store share.

mod bench;
mod channel;
mod nodes;
mod observed;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::input::ConfigInput;
use super::output::{self, Ending};
use crate::clock::ManualClock;
use crate::config::ConfigErrors;
use crate::engine::{Decision, Engine, Generation, PendingSettlement};
use crate::policy::{Facts, KeySecret};

pub use bench::run;
use report::{Suite, junit, summary};

/// Cases and the policy that they test.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// The configuration; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Write the results as JUnit XML, for a CI server.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Files of cases; - is standard input.
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

/// Succeeds if all cases pass.
pub(super) fn test(args: &TestArgs) -> Ending {
    let files: Vec<&Path> =
        std::iter::once(&args.config).chain(&args.cases).map(PathBuf::as_path).collect();
    if let Err(why) = super::input::check_read_once(&files) {
        return output::refuse("test", &why);
    }
    let suites = match suites(args) {
        Ok(suites) => suites,
        Err(errors) => {
            output::complain(&errors.to_string());
            return Ending::Refused;
        }
    };
    let passes = suites.iter().all(Suite::passes);
    let ending = if passes { Ending::Success } else { Ending::Negative };
    let ending = output::answer(&summary(&suites), ending);
    match &args.junit {
        Some(file) => match std::fs::write(file, junit(&suites)) {
            Ok(()) => ending,
            Err(error) => output::unwritten(&file.display().to_string(), &error),
        },
        None => ending,
    }
}

fn suites(args: &TestArgs) -> Result<Vec<Suite>, ConfigErrors> {
    let policy = ConfigInput::open(&args.config)?;
    let suite = |file: &PathBuf| {
        let cases = super::input::load_cases(file)?;
        let results =
            cases.iter().map(|case| Ok(run(policy.load()?.config, case, &InProcessStore)));
        Ok(Suite { file: super::input::name(file), results: results.collect::<Result<_, _>>()? })
    };
    args.cases.iter().map(suite).collect()
}
