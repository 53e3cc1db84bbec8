//! Every case of every policy of this folder.

use std::path::{Path, PathBuf};

use tollgate::cli::test::{Store, run};
use tollgate::config;

/// Runs them on a store; says how many there were. `yaml`: what a policy says of that store.
pub fn run_all(store: &dyn Store, yaml: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies");
    let mut policies: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.ends_with(".yaml") && !name.ends_with(".test.yaml")
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
            let loaded = config::read_text(&text, &name, &folder);
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
