//! Requests that stand for all requests, as far as the conditions of some routes can tell them apart.
//!
//! Each dimension (host, path, method, client, listener, and each value that a condition reads) has a few samples: for
//! every subset of the conditions on it that a request can fulfil, one that fulfils it. All combinations of the samples
//! are the requests. The space says whether that is complete: samples of a regular expression are not made.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;

use crate::clock::Nanos;
use crate::policy::client::RequestClient;
use crate::policy::condition::{Condition, Subject, ValueTest};
use crate::policy::path_samples::{SearchBudget, sample_paths};
use crate::policy::{
    ConnectionFacts, Facts, HostPattern, KNOWN_METHODS, PathPattern, RequestMatch,
};

/// The most samples of one value that are also combined in pairs.
const MAX_PAIRED_SAMPLES: usize = 8;

/// A label that no host pattern names.
const FRESH_LABEL: &str = "~other~";

/// Characters of which one is in no text of a subject.
const FRESH_CHARACTERS: &str = "~^|`!*'#$&0123456789zyxwvutsrqponmlkjihgfedcba";

/// One request.
pub(super) struct SampleRequest {
    host: String,
    path: String,
    query: Option<String>,
    method: &'static str,
    address: IpAddr,
    connection: ConnectionFacts,
    headers: HeaderMap,
}

/// The samples of every dimension.
pub(super) struct SampleSpace<'s> {
    hosts: Vec<String>,
    paths: Vec<String>,
    methods: Vec<&'static str>,
    addresses: Vec<IpAddr>,
    listeners: Vec<Option<Arc<str>>>,
    values: Vec<ValueSamples<'s>>,
    is_complete: bool,
}

/// The samples of one value: each is a list of lines, empty where the value is absent.
struct ValueSamples<'s> {
    subject: &'s Subject,
    lines: Vec<Vec<String>>,
}

impl<'s> SampleSpace<'s> {
    /// The requests that may fulfil `later`, told apart by its conditions and by those of `earlier`.
    pub(super) fn new(
        later: &'s RequestMatch,
        earlier: &[&'s RequestMatch],
        listeners: &[Option<Arc<str>>],
        budget: &SearchBudget,
    ) -> Self {
        let all = std::iter::once(&later).chain(earlier);
        let nested: Vec<&RequestMatch> = all.flat_map(|matches| matches.nested()).collect();
        let (paths, paths_are_complete) = path_samples(later, &nested, budget);
        let (values, values_are_complete) = value_samples(&nested);
        Self {
            hosts: host_samples(later, &nested),
            paths,
            methods: method_samples(later, &nested),
            addresses: address_samples(later, &nested),
            listeners: listener_samples(later, listeners),
            values,
            is_complete: paths_are_complete && values_are_complete,
        }
    }

    /// Whether the requests stand for all requests.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The number of the requests.
    pub(super) fn len(&self) -> usize {
        self.sizes().iter().fold(1_usize, |count, size| count.saturating_mul(*size))
    }

    /// The number of samples of each dimension.
    fn sizes(&self) -> Vec<usize> {
        [
            self.hosts.len(),
            self.paths.len(),
            self.methods.len(),
            self.addresses.len(),
            self.listeners.len(),
        ]
        .into_iter()
        .chain(self.values.iter().map(|samples| samples.lines.len()))
        .collect()
    }

    /// Every combination of the samples.
    pub(super) fn requests(&self) -> impl Iterator<Item = SampleRequest> {
        let sizes = self.sizes();
        let count = self.len();
        (0..count).map(move |number| {
            let mut rest = number;
            let digits = sizes.iter().map(|size| {
                let digit = rest % size;
                rest /= size;
                digit
            });
            self.request(&digits.collect::<Vec<_>>())
        })
    }

    /// The request with these samples, by index.
    fn request(&self, indices: &[usize]) -> SampleRequest {
        let mut request = SampleRequest {
            host: self.hosts[indices[0]].clone(),
            path: self.paths[indices[1]].clone(),
            query: None,
            method: self.methods[indices[2]],
            address: self.addresses[indices[3]],
            connection: ConnectionFacts::NONE.with_listener(self.listeners[indices[4]].clone()),
            headers: HeaderMap::new(),
        };
        for (samples, index) in self.values.iter().zip(&indices[5..]) {
            for line in &samples.lines[*index] {
                request.add_value(samples.subject, line);
            }
        }
        request
    }
}

impl SampleRequest {
    /// The facts that a policy judges.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            client: RequestClient { ip: self.address, ipv6_prefix: 128, peer_trusted: false },
            connection: &self.connection,
            now: Nanos::ZERO,
            method: self.method,
            host: &self.host,
            path: &self.path,
            readings: &[],
            query: self.query.as_deref(),
            headers: &self.headers,
            conditions: None,
        }
    }

    /// Its path.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The same request with another path.
    pub(super) fn with_path(self, path: String) -> Self {
        Self { path, ..self }
    }

    /// The same request with a path below its own.
    pub(super) fn below(mut self) -> Self {
        self.path = format!("{}/{FRESH_LABEL}", self.path.trim_end_matches('/'));
        self
    }

    fn add_value(&mut self, subject: &Subject, text: &str) {
        match subject {
            Subject::Header(name) => {
                // A text that cannot be a value was refused where it is configured.
                if let Ok(value) = HeaderValue::try_from(text) {
                    self.headers.append(name, value);
                }
            }
            Subject::Query(name) => {
                let query = self.query.get_or_insert_default();
                let separator = if query.is_empty() { "" } else { "&" };
                query.push_str(&format!("{separator}{}={}", escaped(name), escaped(text)));
            }
            Subject::Cookie(name) => {
                if let Ok(value) = HeaderValue::try_from(format!("{name}={}", escaped(text))) {
                    self.headers.append(COOKIE, value);
                }
            }
        }
    }
}

/// A text with an escape for everything but letters and digits.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn host_samples(later: &RequestMatch, nested: &[&RequestMatch]) -> Vec<String> {
    let mut hosts = vec![FRESH_LABEL.to_owned()];
    for pattern in nested.iter().flat_map(|matches| &matches.hosts) {
        push_new(
            &mut hosts,
            match pattern {
                HostPattern::Exact(host) => host.to_string(),
                HostPattern::Below(domain) => format!("{FRESH_LABEL}.{domain}"),
            },
        );
    }
    hosts.retain(|host| {
        later.hosts.is_empty() || later.hosts.iter().any(|pattern| pattern.matches(host))
    });
    hosts
}

/// The samples, and whether they are complete.
fn path_samples(
    later: &RequestMatch,
    nested: &[&RequestMatch],
    budget: &SearchBudget,
) -> (Vec<String>, bool) {
    let others: Vec<&PathPattern> = nested.iter().flat_map(|matches| &matches.paths).collect();
    let everything = PathPattern::everything();
    let own: Vec<&PathPattern> = match later.paths.as_slice() {
        [] => vec![&everything],
        own => own.iter().collect(),
    };
    let (mut paths, mut is_complete) = (Vec::new(), true);
    for pattern in own {
        let samples = sample_paths(pattern, &others, budget).or_else(|| {
            is_complete = false;
            sample_paths(pattern, &[], budget)
        });
        for path in samples.unwrap_or_default() {
            push_new(&mut paths, path);
        }
    }
    (paths, is_complete)
}

fn method_samples(later: &RequestMatch, nested: &[&RequestMatch]) -> Vec<&'static str> {
    let is_named =
        |method: &str| nested.iter().any(|matches| matches.methods.iter().any(|m| m == method));
    let mut unnamed = KNOWN_METHODS.iter().filter(|method| !is_named(method) && **method != "HEAD");
    let named = KNOWN_METHODS.iter().filter(|method| is_named(method) || **method == "HEAD");
    let all = named.chain(unnamed.next()).copied();
    all.filter(|method| later.methods.contains(method)).collect()
}

/// The first address of every range that the networks divide the addresses into.
fn address_samples(later: &RequestMatch, nested: &[&RequestMatch]) -> Vec<IpAddr> {
    let mut addresses = vec![IpAddr::from([0, 0, 0, 0]), IpAddr::from([0_u16; 8])];
    for network in nested.iter().flat_map(|matches| &matches.clients) {
        push_new(&mut addresses, network.network());
        if let Some(next) = after(network) {
            push_new(&mut addresses, next);
        }
    }
    addresses.retain(|address| {
        later.clients.is_empty() || later.clients.iter().any(|network| network.contains(address))
    });
    addresses
}

/// The address after the last one of a network.
fn after(network: &IpNet) -> Option<IpAddr> {
    match network.broadcast() {
        IpAddr::V4(last) => last.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(last) => last.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

fn listener_samples(later: &RequestMatch, listeners: &[Option<Arc<str>>]) -> Vec<Option<Arc<str>>> {
    let mut samples: Vec<Option<Arc<str>>> = Vec::new();
    // A limiter inside another server has no listeners, and its connections have no listener's name.
    for name in listeners.iter().chain(listeners.is_empty().then_some(&None)) {
        push_new(&mut samples, name.clone());
    }
    samples.retain(|sample| {
        let is_own = |name: &Arc<str>| later.listeners.contains(name);
        later.listeners.is_empty() || sample.as_ref().is_some_and(is_own)
    });
    samples
}

/// The samples of each subject that a condition reads, and whether they are complete.
fn value_samples<'s>(nested: &[&'s RequestMatch]) -> (Vec<ValueSamples<'s>>, bool) {
    let conditions: Vec<&Condition> = nested.iter().flat_map(|matches| &matches.values).collect();
    let mut samples: Vec<ValueSamples<'s>> = Vec::new();
    let mut is_complete = true;
    for subject in conditions.iter().map(|condition| condition.subject()) {
        if samples.iter().any(|known| known.subject == subject) {
            continue;
        }
        let is_own = |condition: &&&Condition| condition.subject() == subject;
        let tests = conditions.iter().filter(is_own).flat_map(|condition| condition.tests());
        let tests: Vec<&ValueTest> = tests.collect();
        is_complete &= !tests.iter().any(|test| matches!(test, ValueTest::Regex(_)));
        let Some(texts) = sample_texts(&tests) else {
            is_complete = false;
            continue;
        };
        // One line fulfils one condition; a match with two conditions on a subject may need two lines.
        let own_conditions = |matches: &&RequestMatch| {
            matches.values.iter().filter(|c| c.subject() == subject).count()
        };
        let needs_pairs = nested.iter().map(own_conditions).max().unwrap_or_default() > 1
            || nested.len() > 1 && texts.len() <= MAX_PAIRED_SAMPLES;
        is_complete &= !needs_pairs || texts.len() <= MAX_PAIRED_SAMPLES;
        let mut lines: Vec<Vec<String>> = vec![Vec::new()];
        lines.extend(texts.iter().map(|text| vec![text.clone()]));
        if needs_pairs && texts.len() <= MAX_PAIRED_SAMPLES {
            for (index, first) in texts.iter().enumerate() {
                let pairs = texts[index + 1..].iter();
                lines.extend(pairs.map(|second| vec![first.clone(), second.clone()]));
            }
        }
        samples.push(ValueSamples { subject, lines });
    }
    (samples, is_complete)
}

/// Values of which one passes only what a test implies, for each test, and one that passes none. `None` if every
/// character is in a test.
fn sample_texts(tests: &[&ValueTest]) -> Option<Vec<String>> {
    let text_of = |test: &&ValueTest| match test {
        ValueTest::Equals(text)
        | ValueTest::Prefix(text)
        | ValueTest::Suffix(text)
        | ValueTest::Contains(text) => Some(text.to_string()),
        ValueTest::Regex(pattern) => Some(pattern.as_str().to_owned()),
        ValueTest::Present | ValueTest::Absent => None,
    };
    let used: String = tests.iter().filter_map(text_of).collect();
    let fresh = FRESH_CHARACTERS.chars().find(|fresh| !used.contains(*fresh))?;
    let mut texts = vec![fresh.to_string()];
    for test in tests {
        match test {
            ValueTest::Equals(text) => push_new(&mut texts, text.to_string()),
            ValueTest::Prefix(text) => push_new(&mut texts, format!("{text}{fresh}")),
            ValueTest::Suffix(text) => push_new(&mut texts, format!("{fresh}{text}")),
            ValueTest::Contains(text) => push_new(&mut texts, format!("{fresh}{text}{fresh}")),
            ValueTest::Present | ValueTest::Absent | ValueTest::Regex(_) => {}
        }
    }
    Some(texts)
}
