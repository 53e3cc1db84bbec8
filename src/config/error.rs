//! Errors and warnings about a configuration: where, what, and what to write instead. Nothing here
//! knows what a configuration means.

use std::fmt;

/// A position in a file; both numbers start at 1.
///
/// ```
/// use tollgate::{Limiter, LimiterError, Location};
///
/// let built = Limiter::builder().policy_text("version: 1\nroutes: [{ nam: site }]").build();
/// let Err(LimiterError::Policy(errors)) = built else { panic!("a key is misspelt") };
/// assert_eq!(errors.errors[0].location.map(|at: Location| at.line), Some(2));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl Location {
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

/// One mistake.
///
/// ```
/// use tollgate::{ConfigError, Limiter, LimiterError};
///
/// /// What an editor underlines, and what it offers instead.
/// fn mark(error: &ConfigError) -> (usize, &str, Option<&str>) {
///     let line = error.location.map_or(0, |location| location.line);
///     (line, &error.message, error.cure.as_deref())
/// }
///
/// let built = Limiter::builder().policy_text("version: 1\nroutes: [{ nam: site }]").build();
/// let Err(LimiterError::Policy(errors)) = built else { panic!("a key is misspelt") };
/// assert_eq!(mark(&errors.errors[0]).0, 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Name of the included file with the mistake; `None`: the file that was read.
    pub file: Option<String>,
    /// Position in the text; `None` if the file cannot be read.
    pub location: Option<Location>,
    /// Position in the configuration, for example `routes[2].limits[0]`.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub cure: Option<String>,
}

/// All mistakes of a file, in the order of its lines, and then those of the files that it includes; at least one.
///
/// ```
/// use tollgate::{ConfigErrors, Limiter, LimiterError};
///
/// let built = Limiter::builder().policy_text("version: 1\nroutes: [{ nam: site }]").build();
/// let Err(LimiterError::Policy(errors)) = built else { panic!("a key is misspelt") };
/// let errors: ConfigErrors = errors;
/// assert_eq!(errors.lines().len(), errors.errors.len());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// Name of the file, as the caller gave it.
    pub file: String,
    /// The mistakes.
    pub errors: Vec<ConfigError>,
}

/// Something that is valid and probably not intended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Name of the warning, by which `check: { silence: [..] }` turns it off.
    pub code: &'static str,
    /// Name of the file, as the caller gave it.
    pub file: String,
    /// Position in the text.
    pub location: Location,
    /// Position in the configuration.
    pub path: String,
    /// What is unusual, and why it matters.
    pub message: String,
    /// What to write instead.
    pub cure: String,
}

impl ConfigError {
    /// A mistake of a whole file.
    pub(super) fn of_file(message: String) -> Self {
        Self { file: None, location: None, path: String::new(), message, cure: None }
    }
}

impl ConfigErrors {
    /// A file that cannot be read at all.
    pub(super) fn unreadable(file: String, message: String) -> Self {
        Self { file, errors: vec![ConfigError::of_file(message)] }
    }

    /// One line for each mistake.
    pub fn lines(&self) -> Vec<String> {
        self.errors.iter().map(|error| format!("{}{error}", self.prefix(error))).collect()
    }

    fn prefix(&self, error: &ConfigError) -> String {
        let file = error.file.as_ref().unwrap_or(&self.file);
        match error.location {
            Some(Location { line, column }) => format!("{file}:{line}:{column}: "),
            None => format!("{file}: "),
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
