//! The parameters of a question to the admin API.
//!
//! It does not know what is asked. What must always hold: a parameter that is unknown, comes twice or has a wrong value is
//! refused by name, with the cure, and never ignored.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use http::StatusCode;

use super::keys::Unanswered;
use crate::clock::Nanos;

/// The longest query. Every parameter fits, with names of 64 characters, escaped.
const MAX_QUERY_BYTES: usize = 1_024;

/// The largest number of items of one answer.
pub(super) const MAX_COUNT: usize = 1_000;

/// The number of items of an answer to a question that names none.
const DEFAULT_COUNT: usize = 100;

/// The longest part of a foreign text that an answer repeats, in characters.
const MAX_REPEATED: usize = 64;

/// The parameters of a question.
pub(super) struct Parameters<'q>(Vec<(&'static str, Cow<'q, str>)>);

pub(super) fn bad_request(detail: String) -> Unanswered {
    Unanswered { status: StatusCode::BAD_REQUEST, detail }
}

pub(super) fn not_found(detail: String) -> Unanswered {
    Unanswered { status: StatusCode::NOT_FOUND, detail }
}

impl<'q> Parameters<'q> {
    /// The parameters of a query, all of which are `known`.
    pub(super) fn of(
        query: Option<&'q str>,
        known: &'static [&'static str],
    ) -> Result<Self, Unanswered> {
        let query = query.unwrap_or_default();
        if query.len() > MAX_QUERY_BYTES {
            let detail = format!("the query has more than {MAX_QUERY_BYTES} bytes");
            return Err(bad_request(detail));
        }
        let mut parameters: Vec<(&'static str, Cow<'q, str>)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let Some(name) = known.iter().find(|known| ***known == *name) else {
                return Err(bad_request(unknown(&name, known)));
            };
            if parameters.iter().any(|(other, _)| other == name) {
                return Err(bad_request(format!("{name} comes twice; write it once")));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    /// The value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }

    /// A whole number from `min` to `max`.
    pub(super) fn number<N>(
        &self,
        name: &str,
        default: N,
        (min, max): (N, N),
    ) -> Result<N, Unanswered>
    where
        N: FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        let number = text.parse().ok().filter(|number| (&min..=&max).contains(&number));
        number.ok_or_else(|| {
            let text = shortened(text);
            bad_request(format!("{name}={text}: write a whole number from {min} to {max}"))
        })
    }

    /// `count`: how many items the answer may have.
    pub(super) fn count(&self) -> Result<usize, Unanswered> {
        self.number("count", DEFAULT_COUNT, (1, MAX_COUNT))
    }

    /// A date (RFC 3339), or a span before `now`, which is a date too. `None` if the parameter is absent.
    pub(super) fn date(&self, name: &str, now: Nanos) -> Result<Option<Nanos>, Unanswered> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let date = humantime::parse_rfc3339_weak(text).ok();
        let date = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok()).map(Nanos::from);
        let before = || {
            let span = humantime::parse_duration(text).ok()?;
            Some(now.saturating_sub(span.into()))
        };
        date.or_else(before).map(Some).ok_or_else(|| {
            let text = shortened(text);
            bad_request(format!(
                "{name}={text}: write a date as 2026-11-26T03:00:00Z, or a span as 10m"
            ))
        })
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    let name = shortened(name);
    match known {
        [] => format!("unknown parameter {name:?}; there are none here"),
        known => format!("unknown parameter {name:?}; known are {}", known.join(", ")),
    }
}

/// The beginning of a text of the question, which an error repeats.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MAX_REPEATED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["since", "count"];
    const NOW: Nanos = Nanos::from_secs(1_800_000_000);

    fn refusal<T>(result: Result<T, Unanswered>) -> String {
        result.err().map(|refused| refused.detail).unwrap_or_default()
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let of = |query| Parameters::of(Some(query), KNOWN);
        for (query, expected) in [
            ("cuont=1", "unknown parameter \"cuont\"; known are since, count"),
            ("count=1&count=1", "count comes twice"),
            ("=", "unknown parameter \"\""),
            ("%00%ff=1", "unknown parameter \"\\0\u{fffd}\""),
        ] {
            let why = refusal(of(query));
            assert!(why.starts_with(expected), "{query}: {why}");
        }
        let long = format!("since={}", "1".repeat(MAX_QUERY_BYTES));
        assert!(refusal(Parameters::of(Some(&long), KNOWN)).contains("more than 1024 bytes"));
        assert!(refusal(Parameters::of(Some("a=b"), &[])).contains("there are none here"));
        for (query, expected) in [
            ("", Ok(100)),
            ("count=1", Ok(1)),
            ("count=1000", Ok(1_000)),
            ("count=0", Err("count=0: write a whole number from 1 to 1000")),
            ("count=1001", Err("count=1001: write")),
            ("count=-1", Err("count=-1: write")),
            ("count=", Err("count=: write")),
            ("count=99999999999999999999999", Err("count=9999")),
        ] {
            match (of(query).ok().unwrap().count(), expected) {
                (Ok(count), Ok(expected)) => assert_eq!(count, expected, "{query}"),
                (Err(why), Err(expected)) => assert!(why.detail.starts_with(expected), "{query}"),
                _ => panic!("{query}"),
            }
        }
        for (query, expected) in [
            ("", Some(None)),
            ("since=2027-01-15T07:59:59Z", Some(Some(1_799_999_999))),
            ("since=1970-01-01", None),
            ("since=10m", Some(Some(1_799_999_400))),
            ("since=1d", Some(Some(1_799_913_600))),
            ("since=99999999999d", Some(Some(0))),
            ("since=yesterday", None),
            ("since=", None),
        ] {
            let date = of(query).ok().unwrap().date("since", NOW);
            assert_eq!(date.ok().map(|date| date.map(Nanos::secs)), expected, "{query}");
        }
    }
}
