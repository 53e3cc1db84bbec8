//! What is wrong with a configuration: where, what, and what to write instead.

use std::fmt;

/// A place in a file, both counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where in the text; none when the file cannot be read at all.
    pub location: Option<Location>,
    /// Where in the configuration, for example `routes[2].limits[0]`.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub cure: Option<String>,
}

/// All mistakes of a file, in the order of its lines; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file's name as it was given.
    pub file: String,
    /// The mistakes.
    pub errors: Vec<ConfigError>,
}

/// What is allowed and probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// By which `check: { silence: [..] }` silences it.
    pub code: &'static str,
    /// The file's name as it was given.
    pub file: String,
    /// Where in the text.
    pub location: Location,
    /// Where in the configuration.
    pub path: String,
    /// What, and why it matters.
    pub message: String,
    /// What to write instead.
    pub cure: String,
}

impl ConfigErrors {
    /// One line per mistake.
    pub fn lines(&self) -> Vec<String> {
        self.errors.iter().map(|error| format!("{}{error}", self.prefix(error))).collect()
    }

    fn prefix(&self, error: &ConfigError) -> String {
        match error.location {
            Some(location) => format!("{}:{}:{}: ", self.file, location.line, location.column),
            None => format!("{}: ", self.file),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.cure {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { line, column } = self.location;
        write!(f, "{}:{line}:{column}: warning[{}]: {}: ", self.file, self.code, self.path)?;
        write!(f, "{}; {}", self.message, self.cure)
    }
}
