//! What `Cargo.toml` promises about compilers: every dependency builds with the `rust-version` that it names.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its files shall fail")]

use std::process::Command;

use serde_json::Value;

/// `1.88` or `1.88.0`, as numbers that compare.
fn version(text: &str) -> Vec<u32> {
    text.split('.').map(|number| number.parse().unwrap()).collect()
}

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Packages of other platforms may not have been fetched.
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let about = String::from_utf8(rustc.stdout).unwrap();
    let host = about.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
    command.args(["--filter-platform", host]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn no_dependency_needs_a_newer_compiler() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let own = packages.iter().find(|package| package["name"] == "tollgate").unwrap();
    let own = version(own["rust_version"].as_str().unwrap());
    let needs = |package: &Value| {
        let needed = version(package["rust_version"].as_str()?);
        (needed > own).then(|| format!("{} needs {needed:?}", package["name"]))
    };
    let newer: Vec<String> = packages.iter().filter_map(needs).collect();
    assert!(packages.len() > 100, "the dependencies were not found");
    assert!(newer.is_empty(), "rust-version is {own:?}, and {newer:#?}");
}
