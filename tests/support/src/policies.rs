//! Every case of every policy of this folder, and of the examples.

use std::path::{Path, PathBuf};

use tollgate::cli::test::{TestStore, run};
use tollgate::config;

/// Runs them on a store; says how many there were. `yaml`: what a policy says of that store.
pub fn run_all(store: &dyn TestStore, yaml: &str) -> usize {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut policies: Vec<PathBuf> = ["tests/policies", "conf/examples"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap())
        .filter_map(|entry| {
            let cases = entry.unwrap().path().display().to_string();
            cases.strip_suffix(".test.yaml").map(|policy| PathBuf::from(format!("{policy}.yaml")))
        })
        .collect();
    policies.sort();
    let (mut ran, mut failures) = (0, Vec::new());
    for policy in policies {
        let name = policy.display().to_string();
        let text = format!("{}\n{yaml}", std::fs::read_to_string(&policy).unwrap());
        let cases = config::load_cases(&policy.with_extension("test.yaml"));
        let cases = cases.unwrap_or_else(|errors| panic!("{}", errors.lines().join("\n")));
        for case in cases.iter().filter(|case| yaml.contains("embedded") || !case.only_embedded) {
            let loaded = config::read_text(&text, &name, policy.parent().unwrap());
            let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
            let outcome = run(loaded.config, case, store);
            ran += 1;
            if !outcome.differences.is_empty() {
                failures.push(format!("{name}: {outcome:#?}"));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    ran
}
