//! The documentation, README.md included: every policy is valid, every case passes, every command
//! and every link exists, and what is generated is what its source generates. The guide to a first limit is run.
//!
//! `TOLLGATE_DOCS_WRITE=1` writes the generated pages and plots instead of comparing them.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

mod decisions;
mod first_limit;
mod fleet_plot;
mod links;
mod named_tests;
mod names;
mod pages;
mod plots;
mod policies;
mod reference;

use std::path::Path;

/// Compares a generated file with the committed one, or writes it when asked to.
fn compare_or_write(file: &Path, text: &str) {
    if std::env::var_os("TOLLGATE_DOCS_WRITE").is_some() {
        std::fs::write(file, text).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        committed == text,
        "{} is not what its source generates: run `make docs-generated` and commit it",
        file.display()
    );
}
