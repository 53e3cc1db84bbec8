//! What a log says of one request's values that are not in its [`super::Facts`].
//!
//! A log must contain no credential. So tollgate's own log has keyed hashes of the values that keys and plans are read from,
//! the results of conditions, and little else ([`RecordedValues`], written by `recorder.rs`). Other logs have the fields that
//! their format names ([`Coverage`]). When a log is replayed, sources and conditions ask here first. What must always hold:
//! equal values give equal keys, and what the log does not say is counted, never guessed in silence.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;

/// The values of one request as tollgate's own log has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "bin", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct RecordedValues {
    /// What each source of keys and plans found, by the source as a configuration writes it.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub values: BTreeMap<String, RecordedValue>,
    /// The result of each condition on a value, by the hash of its text. `None`: it cannot be known.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub conditions: BTreeMap<String, Option<bool>>,
    /// The lines of each header that names a cost; a line that is no number is `x`.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub costs: BTreeMap<String, Vec<String>>,
    /// Which part of a million the key of each limit with a rollout is in, by the limit's name.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "BTreeMap::is_empty"))]
    pub rollouts: BTreeMap<String, u32>,
    /// Limits for which an operator's rule holds for the key, by name.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "Vec::is_empty"))]
    pub ruled: Vec<String>,
    /// Whether the peer was a trusted proxy.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "is_false"))]
    pub trusted: bool,
    /// Whether it was a CORS preflight.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "is_false"))]
    pub preflight: bool,
    /// The name of the listener.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "Option::is_none"))]
    pub listener: Option<String>,
    /// Whether a token was checked in vain.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "is_false"))]
    pub token_failed: bool,
    /// Whether the limits that need no token had admitted the request before its token was checked, and were asked again.
    #[cfg_attr(feature = "bin", serde(skip_serializing_if = "is_false"))]
    pub asked_again: bool,
}

/// What one source found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "bin",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub enum RecordedValue {
    /// A value, by its keyed hash.
    Hash(u128),
    /// The number of a bucket, which is no secret.
    Bucket(u64),
    /// A value that is no secret, such as a user's name in a log of another server.
    Text(String),
    /// Nothing.
    Absent,
    /// Several values.
    Repeated,
    /// A value that origins may read in different ways.
    Unreadable,
    /// A claim of a token whose keys had not been fetched.
    Unknowable,
    /// A claim of a token whose signature was not checked, because another limit refused the request before.
    Unchecked,
}

/// A text is no [`RecordedValue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no recorded value")]
pub struct NotRecorded;

/// Which values the lines of a log have.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Header fields.
    pub headers: Vec<HeaderName>,
    /// Whether the target has its query.
    pub query: bool,
    /// Whether lines name the host.
    pub host: bool,
}

/// Different names of header fields of one log.
const MAX_HEADERS: usize = 256;

impl Coverage {
    /// Adds a header that lines have. What is no name, and what is one name too many, is left out.
    pub fn add_header(&mut self, name: &str) {
        if let Ok(name) = name.parse::<HeaderName>()
            && self.headers.len() < MAX_HEADERS
            && !self.headers.contains(&name)
        {
            self.headers.push(name);
        }
    }
}

/// Values that the configuration itself names, in overrides and plans. tollgate's own log has hashes of the values of requests.
#[derive(Debug, Default)]
pub struct Literals {
    /// By source and by their hash in the log. Empty if nobody knows the secret of the hashes.
    pub(super) by_hash: HashMap<String, HashMap<u128, Box<[u8]>>>,
    /// Sources of plans whose hashes cannot be told from one another.
    pub(super) unknown_plans: Vec<String>,
    /// The same for sources of keys that overrides name.
    pub(super) unknown_overrides: Vec<String>,
}

/// What was asked and is not in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingValue {
    /// The value of a source; the limit was not judged.
    Key(String),
    /// A condition on this was taken as it is without the value.
    Condition(String),
    /// The cost in this header was taken as it is without the header.
    Cost(HeaderName),
    /// An operator's rule applied to the key; the limit was not judged.
    Rule(Arc<str>),
    /// Which plan the value of this source names is not known, only its hash; the limit was not judged.
    Plan(String),
    /// Whether an override names the value of this source is not known, only its hash; it was taken for one of no override.
    Override(String),
}

/// What a log says of one request.
#[derive(Debug, Default)]
pub struct LogValues {
    coverage: Arc<Coverage>,
    recorded: Option<Box<RecordedValues>>,
    /// The user that a line of another server names.
    user: Option<Box<str>>,
    literals: Arc<Literals>,
    missing: Mutex<Vec<MissingValue>>,
}

/// What a log says of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundInLog {
    /// A value that stands for the true one.
    Value(Vec<u8>),
    /// What else the source found.
    Found(RecordedValue),
    /// A value that names a plan, and nobody knows which.
    UnknownPlan,
}

impl Literals {
    fn has_plans_of(&self, source: &str) -> bool {
        self.unknown_plans.iter().any(|unknown| unknown == source)
    }

    fn has_overrides_of(&self, source: &str) -> bool {
        self.unknown_overrides.iter().any(|unknown| unknown == source)
    }
}

impl LogValues {
    /// A request of a log whose lines have these values.
    pub fn new(
        coverage: Arc<Coverage>,
        recorded: Option<Box<RecordedValues>>,
        literals: Arc<Literals>,
    ) -> Self {
        Self { coverage, recorded, user: None, literals, missing: Mutex::default() }
    }

    /// The same, with the user that a line of another server names.
    pub fn with_user(mut self, user: Option<Box<str>>) -> Self {
        self.user = user;
        self
    }

    /// What was asked in vain, each once.
    pub fn missing(&self) -> Vec<MissingValue> {
        std::mem::take(&mut *self.missing.lock())
    }

    /// Notes that something was asked in vain.
    pub(crate) fn note(&self, missing: MissingValue) {
        let mut noted = self.missing.lock();
        if !noted.contains(&missing) {
            noted.push(missing);
        }
    }

    /// Whether the log names the host.
    pub(super) fn has_host(&self) -> bool {
        self.coverage.host
    }

    /// Whether the log has this header: its lines do, or this one has it though the first ones did not.
    pub(super) fn has_header(&self, name: &HeaderName, of_line: &HeaderMap) -> bool {
        self.coverage.headers.contains(name) || of_line.contains_key(name)
    }

    /// Whether the log would have this header, which names a cost.
    pub(super) fn has_costs(&self, name: &HeaderName, of_line: &HeaderMap) -> bool {
        self.is_recorded() || self.has_header(name, of_line)
    }

    /// Whether the log has the query.
    pub(super) fn has_query(&self) -> bool {
        self.coverage.query
    }

    /// What was recorded of a source, by its text in a configuration.
    pub(super) fn recorded(&self, source: &str) -> Option<FoundInLog> {
        let Some(recorded) = &self.recorded else {
            let user = self.user.as_ref().filter(|_| source == "basic_user")?;
            return Some(FoundInLog::Value(user.as_bytes().to_vec()));
        };
        Some(match recorded.values.get(source)? {
            RecordedValue::Hash(_) if self.literals.has_plans_of(source) => {
                self.note(MissingValue::Plan(source.to_owned()));
                FoundInLog::UnknownPlan
            }
            RecordedValue::Hash(hash) => {
                if self.literals.has_overrides_of(source) {
                    self.note(MissingValue::Override(source.to_owned()));
                }
                let by_hash = &self.literals.by_hash;
                let literal = by_hash.get(source).and_then(|known| known.get(hash));
                let stand_in = || format!("{hash:032x}").into_bytes();
                FoundInLog::Value(literal.map_or_else(stand_in, |literal| literal.to_vec()))
            }
            RecordedValue::Bucket(bucket) => FoundInLog::Value(bucket.to_be_bytes().to_vec()),
            RecordedValue::Text(text) => FoundInLog::Value(text.clone().into_bytes()),
            other => FoundInLog::Found(other.clone()),
        })
    }

    /// The recorded result of a condition, by its fingerprint. The inner `None`: it cannot be known.
    pub(super) fn condition(&self, fingerprint: u64) -> Option<Option<bool>> {
        let recorded = self.recorded.as_ref().filter(|found| !found.conditions.is_empty())?;
        recorded.conditions.get(&condition_name(fingerprint)).copied()
    }

    /// The position of the key in the rollout of the limit of this name.
    pub fn rollout(&self, limit: &str) -> Option<u64> {
        self.recorded.as_ref()?.rollouts.get(limit).map(|part| u64::from(*part))
    }

    /// Whether an operator's rule applied to the key under the limit of this name.
    pub fn is_ruled(&self, limit: &str) -> bool {
        self.recorded.as_ref().is_some_and(|found| found.ruled.iter().any(|name| name == limit))
    }

    /// Whether a token of the request was checked in vain.
    pub fn token_failed(&self) -> bool {
        self.recorded.as_ref().is_some_and(|found| found.token_failed)
    }

    /// Whether the limits were asked before a token was checked, and once more.
    pub(super) fn is_asked_again(&self) -> bool {
        self.recorded.as_ref().is_some_and(|found| found.asked_again)
    }

    /// Whether the line is of tollgate's own log, with everything that its policy read.
    pub const fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }
}

#[cfg(feature = "bin")]
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// How a log names a condition.
pub(super) fn condition_name(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

impl From<RecordedValue> for String {
    fn from(part: RecordedValue) -> Self {
        match part {
            RecordedValue::Hash(hash) => format!("#{hash:032x}"),
            RecordedValue::Bucket(bucket) => format!("bucket {bucket}"),
            RecordedValue::Text(text) => format!("={text}"),
            RecordedValue::Absent => "absent".to_owned(),
            RecordedValue::Repeated => "repeated".to_owned(),
            RecordedValue::Unreadable => "unreadable".to_owned(),
            RecordedValue::Unknowable => "unknowable".to_owned(),
            RecordedValue::Unchecked => "unchecked".to_owned(),
        }
    }
}

impl TryFrom<String> for RecordedValue {
    type Error = NotRecorded;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(match text.as_str() {
            "absent" => Self::Absent,
            "repeated" => Self::Repeated,
            "unreadable" => Self::Unreadable,
            "unknowable" => Self::Unknowable,
            "unchecked" => Self::Unchecked,
            other => match (other.strip_prefix('#'), other.strip_prefix("bucket ")) {
                (Some(hash), _) => {
                    Self::Hash(u128::from_str_radix(hash, 16).map_err(|_| NotRecorded)?)
                }
                (None, Some(bucket)) => Self::Bucket(bucket.parse().map_err(|_| NotRecorded)?),
                (None, None) => Self::Text(other.strip_prefix('=').ok_or(NotRecorded)?.to_owned()),
            },
        })
    }
}
