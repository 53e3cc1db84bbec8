//! Whether a sample request may have the key of a limit, may lack it, and may have a configured one.
//!
//! What a sample does not decide is possible: a header that no condition reads may be there or not. So a key that is found
//! in no sample is found in no request, if the samples are complete.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use http::header::AUTHORIZATION;
use ipnet::IpNet;

use crate::config::model::Listener;
use crate::policy::client::unmapped;
use crate::policy::condition::{Condition, Subject, ValueTest};
use crate::policy::key::{KeyPart, TokenSource};
use crate::policy::{
    Class, Facts, HostPattern, KeySpec, KeyValues, MethodSet, PathPattern, RequestMatch, Route,
    Source,
};

/// Of an override with more keys than this it is not asked which of them requests have.
pub(super) const MAX_PROBED_KEYS: usize = 32;

/// What may be true of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Presence {
    pub(super) may_be_present: bool,
    pub(super) may_be_absent: bool,
}

/// Whether a request is the target of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    No,
    Maybe,
    Yes,
}

impl From<bool> for Answer {
    fn from(is_so: bool) -> Self {
        if is_so { Self::Yes } else { Self::No }
    }
}

/// What keys of sample requests are judged with.
pub(super) struct KeyReader<'r> {
    pub(super) listeners: &'r [Listener],
    pub(super) ipv6_prefix: u8,
    /// The values that the samples decide.
    pub(super) sampled: Vec<Subject>,
}

impl Presence {
    const BOTH: Self = Self { may_be_present: true, may_be_absent: true };
    const PRESENT: Self = Self { may_be_present: true, may_be_absent: false };

    fn known(is_present: bool) -> Self {
        Self { may_be_present: is_present, may_be_absent: !is_present }
    }

    /// Present at most where this is true; absent in any case.
    fn optional(may_be_present: bool) -> Self {
        Self { may_be_present, may_be_absent: true }
    }
}

impl KeyReader<'_> {
    /// Whether a request may have a key, and may lack it.
    pub(super) fn key(&self, key: &KeySpec, facts: &Facts<'_>, route: &Route) -> Presence {
        let parts: Vec<Presence> =
            key.sources().iter().map(|source| self.source(source, facts, route)).collect();
        Presence {
            may_be_present: parts.iter().all(|part| part.may_be_present),
            may_be_absent: parts.iter().any(|part| part.may_be_absent),
        }
    }

    /// Whether a request may have a source.
    pub(super) fn source(&self, source: &Source, facts: &Facts<'_>, route: &Route) -> Presence {
        match source {
            Source::ClientIp | Source::Path | Source::Method | Source::Route => Presence::PRESENT,
            // A request of HTTP/1.0 may have none.
            Source::Host => {
                Presence { may_be_present: true, may_be_absent: route.matches.hosts.is_empty() }
            }
            Source::TlsSni => {
                Presence::optional(self.any_listener(facts, |it| !it.certificates.is_empty()))
            }
            Source::TlsClient => {
                Presence::optional(self.any_listener(facts, |it| it.client_ca.is_some()))
            }
            Source::Header(_) | Source::Cookie(_) | Source::Query(_) => {
                subject(source).map_or(Presence::BOTH, |subject| self.value(&subject, facts))
            }
            // Another scheme, or a token that is not believed, is no key.
            Source::Bearer | Source::BasicUser | Source::Jwt(_) => {
                let value = subject(source).map(|subject| self.value(&subject, facts));
                Presence::optional(value.is_none_or(|value| value.may_be_present))
            }
            Source::PathSegment(_) | Source::Class(_) | Source::FirstClass(_) => {
                match source.part(facts, route) {
                    KeyPart::Present(_) => Presence::known(true),
                    KeyPart::Absent => Presence::known(false),
                    KeyPart::Repeated
                    | KeyPart::Unreadable
                    | KeyPart::Unchecked
                    | KeyPart::Unknowable
                    | KeyPart::Unrecorded => Presence::BOTH,
                }
            }
            Source::Shard { of, .. } => self.source(of, facts, route),
        }
    }

    fn value(&self, subject: &Subject, facts: &Facts<'_>) -> Presence {
        if !self.sampled.contains(subject) {
            return Presence::BOTH;
        }
        // Of a cookie the first value is the key: an empty one may stand before the value of a condition.
        if matches!(subject, Subject::Cookie(_)) {
            let may_be_present = subject.any(facts, |value| !value.is_empty()).unwrap_or(true);
            return Presence { may_be_present, may_be_absent: true };
        }
        // An empty value is no key.
        subject.any(facts, |value| !value.is_empty()).map_or(Presence::BOTH, Presence::known)
    }

    fn any_listener(&self, facts: &Facts<'_>, has: impl Fn(&Listener) -> bool) -> bool {
        let is_own = |it: &&Listener| it.name == facts.connection.listener;
        self.listeners.is_empty() || self.listeners.iter().filter(is_own).any(has)
    }

    /// Whether a request has one of these keys.
    pub(super) fn has_key_of(
        &self,
        keys: &[KeyValues],
        key: &KeySpec,
        facts: &Facts<'_>,
        route: &Route,
    ) -> Answer {
        if keys.len() > MAX_PROBED_KEYS {
            return Answer::Maybe;
        }
        let is_key = |values: &KeyValues| {
            let parts = key.sources().iter().zip(values);
            let parts = parts.map(|(source, value)| self.is_value(source, value, facts, route));
            parts.min().unwrap_or(Answer::No)
        };
        keys.iter().map(is_key).max().unwrap_or(Answer::No)
    }

    fn is_value(&self, source: &Source, value: &[u8], facts: &Facts<'_>, route: &Route) -> Answer {
        match source {
            Source::ClientIp => network_of(value, self.ipv6_prefix)
                .map_or(Answer::Maybe, |network| {
                    network.contains(&unmapped(facts.client.ip)).into()
                }),
            Source::Host
            | Source::Path
            | Source::Method
            | Source::Route
            | Source::Class(_)
            | Source::FirstClass(_) => match source.part(facts, route) {
                KeyPart::Present(part) if *source == Source::Host => {
                    part.eq_ignore_ascii_case(value).into()
                }
                KeyPart::Present(part) if *part == *value => Answer::Yes,
                // A path that is no pattern is not sampled.
                KeyPart::Present(_)
                    if *source == Source::Path
                        && probe_of_value(source, value, self.ipv6_prefix).is_none() =>
                {
                    Answer::Maybe
                }
                KeyPart::Present(_) | KeyPart::Absent => Answer::No,
                KeyPart::Repeated
                | KeyPart::Unreadable
                | KeyPart::Unchecked
                | KeyPart::Unknowable
                | KeyPart::Unrecorded => Answer::Maybe,
            },
            // Which of their values a request may have is not sampled.
            Source::Header(_)
            | Source::Cookie(_)
            | Source::Query(_)
            | Source::Bearer
            | Source::BasicUser
            | Source::Jwt(_)
            | Source::TlsSni
            | Source::TlsClient
            | Source::PathSegment(_)
            | Source::Shard { .. } => match self.source(source, facts, route).may_be_present {
                true => Answer::Maybe,
                false => Answer::No,
            },
        }
    }
}

/// The value that a source reads, if it reads one.
fn subject(source: &Source) -> Option<Subject> {
    match source {
        Source::Header(name) => Some(Subject::Header(name.clone())),
        Source::Cookie(name) => Some(Subject::Cookie(name.as_str().into())),
        Source::Query(name) => Some(Subject::Query(name.as_str().into())),
        Source::Bearer | Source::BasicUser => Some(Subject::Header(AUTHORIZATION)),
        Source::Jwt(claim) => Some(match &claim.from {
            TokenSource::Authorization => Subject::Header(AUTHORIZATION),
            TokenSource::Header(name) => Subject::Header(name.clone()),
            TokenSource::Cookie(name) => Subject::Cookie(name.clone()),
            TokenSource::Query(name) => Subject::Query(name.clone()),
        }),
        Source::Shard { of, .. } => subject(of),
        Source::ClientIp
        | Source::Host
        | Source::TlsSni
        | Source::TlsClient
        | Source::Path
        | Source::Method
        | Source::Route
        | Source::PathSegment(_)
        | Source::Class(_)
        | Source::FirstClass(_) => None,
    }
}

/// Matches by which samples tell requests with a source from those without. `subjects`: the values that other conditions
/// read; all others are free.
pub(super) fn probes_of_source(source: &Source, subjects: &[Subject]) -> Vec<RequestMatch> {
    match source {
        Source::PathSegment(n) => {
            let segments = "/*".repeat(*n);
            let paths = [segments.clone(), format!("{segments}/**")];
            let paths = paths.iter().filter_map(|path| PathPattern::parse(path).ok());
            paths
                .map(|path| RequestMatch { paths: vec![path], ..RequestMatch::default() })
                .collect()
        }
        Source::Class(_) | Source::FirstClass(_) => source.classes().iter().map(in_class).collect(),
        Source::Shard { of, .. } => probes_of_source(of, subjects),
        other => {
            let subject = subject(other).filter(|subject| subjects.contains(subject));
            let probe = |subject| {
                let tests = vec![ValueTest::Present, ValueTest::Equals("".into())];
                let values = vec![Condition::new(subject, tests)];
                RequestMatch { values, ..RequestMatch::default() }
            };
            subject.map(probe).into_iter().collect()
        }
    }
}

/// The match of the requests in a class.
pub(super) fn in_class(class: &Arc<Class>) -> RequestMatch {
    RequestMatch { classes: vec![Arc::clone(class)], ..RequestMatch::default() }
}

/// Matches by which samples tell requests with one of these keys from others.
pub(super) fn probes_of_keys(
    keys: &[KeyValues],
    key: &KeySpec,
    ipv6_prefix: u8,
) -> Vec<RequestMatch> {
    if keys.len() > MAX_PROBED_KEYS {
        return Vec::new();
    }
    let values = keys.iter().flat_map(|values| key.sources().iter().zip(values));
    values.filter_map(|(source, value)| probe_of_value(source, value, ipv6_prefix)).collect()
}

fn probe_of_value(source: &Source, value: &[u8], ipv6_prefix: u8) -> Option<RequestMatch> {
    let all = RequestMatch::default();
    let text = || str::from_utf8(value).ok();
    match source {
        Source::ClientIp => {
            Some(RequestMatch { clients: vec![network_of(value, ipv6_prefix)?], ..all })
        }
        Source::Host => {
            let host = HostPattern::Exact(text()?.to_ascii_lowercase().into());
            Some(RequestMatch { hosts: vec![host], ..all })
        }
        Source::Path => {
            let path = text().filter(|path| !path.contains('*'))?;
            Some(RequestMatch { paths: vec![PathPattern::parse(path).ok()?], ..all })
        }
        Source::Method => {
            Some(RequestMatch { methods: MethodSet::new([text()?.to_owned()]), ..all })
        }
        // The samples decide them already, or nothing does.
        Source::Header(_)
        | Source::Cookie(_)
        | Source::Query(_)
        | Source::Bearer
        | Source::BasicUser
        | Source::Jwt(_)
        | Source::TlsSni
        | Source::TlsClient
        | Source::Route
        | Source::PathSegment(_)
        | Source::Class(_)
        | Source::FirstClass(_)
        | Source::Shard { .. } => None,
    }
}

/// The addresses of one client, as a key holds them.
fn network_of(value: &[u8], ipv6_prefix: u8) -> Option<IpNet> {
    let (address, bits) = match value.len() {
        4 => (IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?)), 32),
        16 => (IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?)), ipv6_prefix),
        _ => return None,
    };
    IpNet::new(address, bits).ok()
}
