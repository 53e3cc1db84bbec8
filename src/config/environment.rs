//! Environment variables. A configuration names one only as a full value (`env:NAME`), and only where a deployment and
//! not a policy decides: addresses, servers and URLs. No other text is expanded, because a policy should be what its
//! file says, and because a secret in the environment is seen by every child and in every crash report.

/// Begins a value that is in the environment.
pub(super) const PREFIX: &str = "env:";

/// Why a variable has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum VariableError {
    /// The text after `env:` cannot be the name of one.
    #[error("{0:?} is not the name of an environment variable")]
    NoName(String),
    /// There is none.
    #[error("environment variable {0} is not set")]
    NotSet(String),
    /// It has no characters.
    #[error("environment variable {0} is empty")]
    Empty(String),
    /// It is not UTF-8.
    #[error("environment variable {0} is not UTF-8")]
    NotText(String),
}

impl VariableError {
    /// What to do.
    pub(super) fn cure(&self) -> String {
        match self {
            Self::NoName(_) => {
                "write env:NAME with letters, digits and _, and nothing else".to_owned()
            }
            Self::NotSet(name) | Self::Empty(name) | Self::NotText(name) => {
                format!("set {name} before tollgate starts, or write the value")
            }
        }
    }
}

/// The value of a variable of this process.
pub(super) fn value(name: &str) -> Result<String, VariableError> {
    if !is_name(name) {
        return Err(VariableError::NoName(name.to_owned()));
    }
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Err(VariableError::Empty(name.to_owned())),
        Ok(value) => Ok(value),
        Err(std::env::VarError::NotPresent) => Err(VariableError::NotSet(name.to_owned())),
        Err(std::env::VarError::NotUnicode(_)) => Err(VariableError::NotText(name.to_owned())),
    }
}

/// Whether a text is `env:NAME`.
pub(super) fn is_reference(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(is_name)
}

fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Whether a text waits to be replaced by a variable: it is `$NAME`, or it contains `${NAME}`, `${ENV:NAME}` or
/// `${NAME:-default}` with a name in capitals. `${jndi:` is none: rules against attacks name it.
pub(super) fn is_variable(text: &str) -> bool {
    if text.strip_prefix('$').is_some_and(is_name) {
        return true;
    }
    text.match_indices("${").any(|(at, opening)| {
        let rest = &text[at + opening.len()..];
        let name = rest.split('}').next().filter(|name| name.len() < rest.len());
        name.is_some_and(|name| {
            let name =
                name.strip_prefix("ENV:").or_else(|| name.strip_prefix("env:")).unwrap_or(name);
            let name = name.split(":-").next().unwrap_or(name);
            is_name(name) && !name.bytes().any(|b| b.is_ascii_lowercase())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_seen_and_other_dollars_are_not() {
        for text in
            ["$PORT", "${PORT}", "10.0.0.1:${PORT}", "${ENV:PORT}", "${env:PORT}", "${A:-80}"]
        {
            assert!(is_variable(text), "{text}");
        }
        for text in ["$", "a$", "^a$", "${jndi:ldap://x}", "${", "${A", "$$5", "a$B", "\\$\\{A\\}"]
        {
            assert!(!is_variable(text), "{text}");
        }
    }

    #[test]
    fn a_variable_has_a_value_or_a_reason() {
        assert_eq!(value("CARGO_MANIFEST_DIR").as_deref(), Ok(env!("CARGO_MANIFEST_DIR")));
        assert_eq!(value("A B"), Err(VariableError::NoName("A B".into())));
        let missing = VariableError::NotSet("TOLLGATE_NOT_SET".into());
        assert_eq!(value("TOLLGATE_NOT_SET"), Err(missing.clone()));
        assert!(missing.cure().contains("TOLLGATE_NOT_SET"));
    }
}
