//! `/metrics` of the running binary: its sample names, their labels, and the values of these.
//!
//! The binary gets a policy that uses everything that has a metric, so that no family is without a sample. What must
//! always hold: every name in `src/ops/metrics.rs` and `fleet_metrics.rs` is in the scrape; a new one that is not needs a line of [`POLICY`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use regex::Regex;
use support::certificates::{ONE, folder, trusting};
use support::key_server::{KeyServer, Publishes};
use support::servers::{Gate, Origin, Reloaded, eventually, free_port, origin_yaml};
use support::signing::{SigningKey, set_of};

use super::promql::{Expression, Matcher, Selector};

/// Labels that Prometheus adds to every sample when it scrapes.
const OF_THE_SCRAPE: [&str; 2] = ["job", "instance"];

const POLICY: &str = "
store: { redis: { url: \"redis://127.0.0.1:STORE\" } }
limits:
  watched: { tier: estimate, rate: 100/1m, key: client_ip, scope: fleet }
  tried: { tier: exact, rate: 100/1m, key: client_ip, candidate: { rate: 50/1m } }
  punished: { tier: exact, rate: 100/1m, key: client_ip, penalty: { after: 20, within: 1m, ban: 10m } }
  told: { tier: exact, rate: 100/1m, key: client_ip, cost: { response_header: x-cost, reserve: 1, max: 9 } }
  at-once: { tier: exact, max_in_flight: 9, key: client_ip }
  signed:
    tier: exact
    rate: 100/1m
    key: { jwt: { jwks_url: \"KEYS\", jwks_ca_file: ca.pem, claim: sub, audience: api } }
    missing_key: skip
routes: [{ name: site, limits: [watched, tried, punished, told, at-once, signed] }]
";

const EMBEDDED_POLICY: &str = "
store: { embedded: { state: state } }
limits: { counted: { tier: exact, rate: 100/1m, key: client_ip } }
routes: [{ name: site, limits: [counted] }]
";

#[derive(Debug, Default)]
pub(crate) struct Scrape {
    /// Names of families, as the lines `# TYPE` have them.
    families: BTreeSet<String>,
    /// Names of samples (of a histogram with its suffix), their labels, and the values of each.
    samples: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

impl Scrape {
    /// Starts the binary, sends a request, reloads, and reads `/metrics` until every family is there.
    pub(crate) async fn of_a_running_binary() -> Self {
        let origin = Origin::start("site").await;
        let keys = Publishes::Set(set_of(&[&SigningKey::new("1")]), "");
        let keys = KeyServer::start(keys).await;
        let (folder, pairs) = folder(&["one.example"]);
        std::fs::write(folder.path().join("ca.pem"), &keys.certificate.pem).unwrap();
        let policy = POLICY.replace("STORE", &free_port().to_string()).replace("KEYS", &keys.url());
        let policy = format!("{}{policy}", origin_yaml(origin.address));
        let gate = Gate::start_in(folder, &policy, ONE).await;
        let to = std::net::SocketAddr::from(([127, 0, 0, 1], gate.port));
        let client = trusting(&pairs[0], "one.example", to).build().unwrap();
        let answer = client.get(format!("https://one.example:{}/", gate.port)).send().await;
        assert_eq!(answer.unwrap().status(), 200);
        assert_eq!(gate.reload(&policy, ONE).await, Reloaded::Applied, "{}", gate.log());
        // What only the embedded store has comes from a second process.
        let policy = format!("{}{EMBEDDED_POLICY}", origin_yaml(origin.address));
        let embedded = Gate::start(&policy).await;
        let text = || async { gate.metrics().await + &embedded.metrics().await };
        let missing = || async { Self::read(&text().await).missing_families() };
        let complete =
            eventually(Duration::from_secs(10), || async { missing().await.is_empty() }).await;
        assert!(complete, "no sample of {:?}: provoke one by POLICY", missing().await);
        Self::read(&text().await)
    }

    fn read(text: &str) -> Self {
        let label = Regex::new(r#"([a-z_]+)="((?:[^"\\]|\\.)*)""#).unwrap();
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                scrape.families.extend(family.split(' ').next().map(str::to_owned));
                continue;
            }
            if line.starts_with('#') {
                continue;
            }
            let name = line.split(['{', ' ']).next().unwrap();
            let labels = scrape.samples.entry(name.to_owned()).or_default();
            for found in label.captures_iter(line) {
                labels.entry(found[1].to_owned()).or_default().insert(found[2].to_owned());
            }
        }
        scrape
    }

    /// Families that the source names and that have no sample.
    fn missing_families(&self) -> Vec<String> {
        let source = concat!(
            include_str!("../../src/ops/metrics.rs"),
            include_str!("../../src/ops/fleet_metrics.rs")
        );
        let name = Regex::new(r#""(tollgate_[a-z_]+)""#).unwrap();
        let named: Vec<String> =
            name.captures_iter(source).map(|found| found[1].to_owned()).collect();
        assert!(named.len() > 40, "the names were not found");
        named.into_iter().filter(|name| !self.families.contains(name)).collect()
    }

    pub(crate) fn has_label(&self, metric: &str, label: &str) -> bool {
        let labels = self.samples.get(metric);
        labels.is_some_and(|all| OF_THE_SCRAPE.contains(&label) || all.contains_key(label))
    }

    /// Whether a series has the labels that the binary and the scrape give it.
    pub(crate) fn has_series_like(&self, Selector { metric, matchers }: &Selector) -> bool {
        let given: BTreeSet<&str> = matchers.iter().map(|matcher| matcher.label.as_str()).collect();
        self.samples.get(metric).is_some_and(|labels| {
            let own = labels.keys().map(String::as_str);
            given == own.chain(OF_THE_SCRAPE).collect::<BTreeSet<&str>>()
        })
    }

    /// What an expression names and the binary does not export.
    pub(crate) fn mistakes(&self, expression: &Expression) -> Vec<String> {
        let selectors = &expression.selectors;
        let mut found: Vec<String> =
            selectors.iter().flat_map(|selector| self.mistakes_of(selector)).collect();
        for label in &expression.grouped_by {
            if !selectors.iter().any(|selector| self.has_label(&selector.metric, label)) {
                found.push(format!("no metric of the expression has the label {label}"));
            }
        }
        found
    }

    fn mistakes_of(&self, Selector { metric, matchers }: &Selector) -> Vec<String> {
        let Some(labels) = self.samples.get(metric) else {
            return vec![format!("/metrics has no {metric}")];
        };
        let mistake = |matcher: &Matcher| {
            let Matcher { label, value, .. } = matcher;
            if OF_THE_SCRAPE.contains(&label.as_str()) {
                return None;
            }
            let Some(values) = labels.get(label) else {
                return Some(format!("{metric} has no label {label}"));
            };
            let unknown = matcher.alternatives().find(|wanted| !wanted.is_one_of(values))?;
            Some(format!("{metric} has no {label} {:?} (of {value:?})", unknown.0))
        };
        matchers.iter().filter_map(mistake).collect()
    }
}

/// One alternative of a pattern, or a value.
struct Wanted<'v>(&'v str);

impl Wanted<'_> {
    fn is_one_of(&self, values: &BTreeSet<String>) -> bool {
        let pattern = Regex::new(&format!("^(?:{})$", self.0)).unwrap();
        values.iter().any(|value| value == self.0 || pattern.is_match(value))
    }
}

impl Matcher {
    /// What the matcher names. The variables of a dashboard name nothing.
    fn alternatives(&self) -> impl Iterator<Item = Wanted<'_>> {
        let separator = if self.is_pattern { '|' } else { '\0' };
        self.value.split(separator).filter(|value| !value.starts_with('$')).map(Wanted)
    }
}

#[test]
fn names_that_are_not_exported_are_found() {
    let scrape = Scrape::read(
        "# HELP a A.\n# TYPE a counter\na{x=\"one\",y=\"\"} 1\na{x=\"two\",y=\"q\\\"}\"} 2\n# TYPE b gauge\nb 3\n",
    );
    assert_eq!(scrape.families.len(), 2);
    let mistakes = |text: &str| scrape.mistakes(&Expression::read(text)).len();
    let right =
        "sum by (x, job) (rate(a{x=~\"one|two\", instance=\"i\", y=~\"$y\"}[5m])) > on (job) b";
    assert_eq!(mistakes(right), 0);
    for wrong in [
        "c",
        "a{z=\"one\"}",
        "a{x=\"three\"}",
        "a{x=~\"one|three\"}",
        "a{x!~\"on\"}",
        "sum by (z) (a)",
        "sum by (x) (b)",
        "a + c",
    ] {
        assert_eq!(mistakes(wrong), 1, "{wrong}");
    }
}
