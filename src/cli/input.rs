//! The files that commands read. `-` is standard input.
//!
//! It does not know what a file is used for. What must always hold: standard input is read at most once, and no more of it
//! than any accepted file has.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::config::{self, ConfigError, ConfigErrors, LoadedConfig, TestCase};

/// What stands for standard input on a command line.
const STANDARD_INPUT: &str = "-";

/// What standard input is called in errors.
const STANDARD_INPUT_NAME: &str = "<stdin>";

/// The largest number of bytes that are read; more than the largest file that is accepted.
const MAX_INPUT: u64 = 2 << 20;

/// A configuration that can be loaded as often as needed.
pub(super) enum ConfigInput {
    File(PathBuf),
    /// The content of standard input.
    Text(String),
}

impl ConfigInput {
    /// Reads standard input if `file` stands for it. A file is read when it is loaded.
    pub(super) fn open(file: &Path) -> Result<Self, ConfigErrors> {
        match is_standard_input(file) {
            true => standard_input().map(Self::Text),
            false => Ok(Self::File(file.to_owned())),
        }
    }

    /// Loads the configuration. Relative names in standard input start at the working directory.
    pub(super) fn load(&self) -> Result<LoadedConfig, ConfigErrors> {
        match self {
            Self::File(file) => config::load(file),
            Self::Text(text) => config::read_text(text, STANDARD_INPUT_NAME, Path::new("")),
        }
    }

    /// The file, if it can be read again.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Text(_) => None,
        }
    }
}

/// Loads a file of policy tests.
pub(super) fn load_cases(file: &Path) -> Result<Vec<TestCase>, ConfigErrors> {
    match is_standard_input(file) {
        true => config::read_cases(&standard_input()?, STANDARD_INPUT_NAME, Path::new("")),
        false => config::load_cases(file),
    }
}

/// The error if more than one file stands for standard input.
pub(super) fn check_read_once(files: &[&Path]) -> Result<(), String> {
    match files.iter().filter(|file| is_standard_input(file)).count() {
        0 | 1 => Ok(()),
        _ => Err("standard input (-) can be read once only; name a file instead".to_owned()),
    }
}

/// What a file is called in errors.
pub(super) fn name(file: &Path) -> String {
    match is_standard_input(file) {
        true => STANDARD_INPUT_NAME.to_owned(),
        false => file.display().to_string(),
    }
}

fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == STANDARD_INPUT
}

fn standard_input() -> Result<String, ConfigErrors> {
    let refused = |message: String| {
        let error =
            ConfigError { file: None, location: None, path: String::new(), message, cure: None };
        ConfigErrors { file: STANDARD_INPUT_NAME.to_owned(), errors: vec![error] }
    };
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_INPUT).read_to_end(&mut bytes);
    read.map_err(|error| refused(format!("cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        refused(format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
    })
}
