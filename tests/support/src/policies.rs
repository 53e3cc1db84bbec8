//! The written cases of policies: `NAME.test.yaml` next to `NAME.yaml`, in `tests/policies` and `conf/examples`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate::cli::test::{TestStore, run};
use tollgate::config::{self, TestCase};

/// A policy and one of its cases.
pub struct PolicyCase {
    policy: Arc<Policy>,
    case: TestCase,
}

struct Policy {
    file: PathBuf,
    text: String,
}

impl PolicyCase {
    /// `POLICY::CASE`.
    pub fn name(&self) -> String {
        let policy = self.policy.file.file_stem().unwrap().to_str().unwrap();
        format!("{policy}::{}", self.case.name)
    }

    /// Whether the case is for `tollgate test` alone: it uses something that only the embedded store has, or has nodes that
    /// stand for several processes.
    pub fn needs_in_process_store(&self) -> bool {
        self.case.only_embedded || self.case.nodes.len() > 1 || self.policy.names_store()
    }

    /// Runs the case on a store; `yaml` is the policy's section for that store, unless the policy has one. The error lists
    /// each difference.
    pub fn check(&self, store: &dyn TestStore, yaml: &str) -> Result<(), String> {
        let Policy { file, text } = &*self.policy;
        let yaml = if self.policy.names_store() { "" } else { yaml };
        let text = format!("{text}\n{yaml}");
        let loaded = config::read_text(&text, &file.display().to_string(), file.parent().unwrap());
        let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
        let result = run(loaded.config, &self.case, store);
        if result.differences.is_empty() {
            return Ok(());
        }
        Err(format!("{}: {}", cases_of(file).display(), result.differences.join("\n")))
    }
}

impl Policy {
    fn names_store(&self) -> bool {
        self.text.lines().any(|line| line.starts_with("store:"))
    }
}

/// Every case of every policy.
pub fn all() -> Vec<PolicyCase> {
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
    policies.into_iter().flat_map(of_policy).collect()
}

fn of_policy(file: PathBuf) -> Vec<PolicyCase> {
    let cases = config::load_cases(&cases_of(&file));
    let cases = cases.unwrap_or_else(|errors| panic!("{}", errors.lines().join("\n")));
    let text = std::fs::read_to_string(&file).unwrap();
    let policy = Arc::new(Policy { file, text });
    cases.into_iter().map(|case| PolicyCase { policy: Arc::clone(&policy), case }).collect()
}

fn cases_of(policy: &Path) -> PathBuf {
    policy.with_extension("test.yaml")
}
