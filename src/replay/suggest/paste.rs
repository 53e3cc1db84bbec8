//! A suggestion as an entry of a policy, to paste.

use std::fmt::Write as _;

use super::suggestion::SuggestedLimit;
use crate::limit::TypedRate;

/// What the policy already says of a limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitLines<'l> {
    /// Its name.
    pub name: &'l str,
    /// Its other settings, each with its value as YAML, in this order: `("tier", "exact")`, `("algorithm",
    /// "token_bucket")`, `("key", "client_ip")`.
    pub settings: &'l [(&'l str, &'l str)],
}

/// The entry of the limit with the suggested numbers, ending in a new line.
///
/// ```text
/// limits:
///   writes:
///     tier: exact
///     algorithm: sliding_window
///     key: client_ip
///     rate: 120/1m
/// ```
pub fn paste(lines: LimitLines<'_>, suggested: SuggestedLimit) -> String {
    let mut text = format!("limits:\n  {}:\n", quoted(lines.name));
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {name}: {value}");
    };
    let replaced = |name: &str| matches!(name, "rate" | "burst" | "max_in_flight");
    for (name, value) in lines.settings.iter().filter(|(name, _)| !replaced(name)) {
        line(name, value);
    }
    match suggested {
        SuggestedLimit::Rate(rate) => line("rate", &TypedRate(rate).to_string()),
        SuggestedLimit::Bucket { rate, burst } => {
            line("rate", &TypedRate(rate).to_string());
            line("burst", &burst.to_string());
        }
        SuggestedLimit::InFlight(max) => line("max_in_flight", &max.to_string()),
    }
    text
}

/// A name as a key of a mapping: in quotes, unless it is a plain word that YAML cannot take for something else.
fn quoted(name: &str) -> String {
    const NOT_TEXT: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && !NOT_TEXT.iter().any(|word| name.eq_ignore_ascii_case(word));
    if is_plain {
        return name.to_owned();
    }
    let mut text = String::from('"');
    for c in name.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\U{:08x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Nanos;
    use crate::limit::Rate;

    #[test]
    fn entries_are_valid_yaml() {
        let minute = Nanos::from_secs(60);
        let rate = Rate::new(120, minute).unwrap();
        let settings = [
            ("tier", "exact"),
            ("algorithm", "token_bucket"),
            ("rate", "9/s"),
            ("key", "client_ip"),
        ];
        let lines = LimitLines { name: "writes", settings: &settings };
        assert_eq!(
            paste(lines, SuggestedLimit::Bucket { rate, burst: 7 }),
            "limits:\n  writes:\n    tier: exact\n    algorithm: token_bucket\n    key: client_ip\n    \
             rate: 120/1m\n    burst: 7\n"
        );
        let lines = LimitLines { name: "a \"b\"\n", settings: &[("tier", "exact")] };
        assert_eq!(
            paste(lines, SuggestedLimit::InFlight(3)),
            "limits:\n  \"a \\\"b\\\"\\U0000000a\":\n    tier: exact\n    max_in_flight: 3\n"
        );
        for (name, expected) in [("no", "\"no\""), ("9a", "\"9a\""), ("a-b_9", "a-b_9")] {
            assert_eq!(quoted(name), expected);
        }
    }
}
