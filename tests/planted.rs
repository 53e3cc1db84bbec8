//! The bugs that `make planted` plants still fit: each is a patch of the code as it is.

use std::path::Path;
use std::process::Command;

/// As many as are wanted at least.
const LEAST: usize = 40;

#[test]
fn every_planted_bug_fits_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut patches = 0;
    for entry in std::fs::read_dir(root.join("tests/planted")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "patch") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for (line, begin) in text.lines().zip(["Rule: ", "Item: ", "Found by: "]) {
            assert!(line.starts_with(begin), "{}: {line}", path.display());
        }
        let mut check = Command::new("git");
        check.args(["apply", "--check"]).arg(&path).current_dir(root);
        let told = check.output().unwrap();
        let why = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.status.success(), "{} does not apply: {why}", path.display());
        patches += 1;
    }
    assert!(patches >= LEAST, "{patches} patches");
}
