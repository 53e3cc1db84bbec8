//! A test target whose tests are the cases of files: each case runs alone, under its own name.

use std::collections::BTreeSet;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

/// A test with the name that its file gives it.
pub struct Case {
    name: String,
    check: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

impl Case {
    /// `check` returns what differs from the expectation.
    pub fn new(name: String, check: impl FnOnce() -> Result<(), String> + Send + 'static) -> Self {
        Self { name, check: Box::new(check) }
    }
}

/// The `main` of such a target. It understands the arguments of the built-in harness, for example a part
/// of a name. One more test fails if two cases have the same name, or if fewer cases than expected have
/// names with a prefix; `min_cases` lists both.
pub fn run(min_cases: &'static [(&str, usize)], cases: Vec<Case>) -> ExitCode {
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let mut trials = vec![Trial::test("every case is there and has its own name", move || {
        complete(min_cases, &names).map_err(Failed::from)
    })];
    trials.extend(
        cases
            .into_iter()
            .map(|case| Trial::test(case.name, move || (case.check)().map_err(Failed::from))),
    );
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn complete(min_cases: &[(&str, usize)], names: &[String]) -> Result<(), String> {
    for (prefix, min) in min_cases {
        let count = names.iter().filter(|name| name.starts_with(prefix)).count();
        if count < *min {
            return Err(format!("{count} cases {prefix:?}, expected at least {min}"));
        }
    }
    let mut distinct = BTreeSet::new();
    names
        .iter()
        .find(|name| !distinct.insert(*name))
        .map_or(Ok(()), |name| Err(format!("two cases have the name {name:?}")))
}
