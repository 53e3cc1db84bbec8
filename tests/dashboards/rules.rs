//! The rules of `conf/prometheus/alerts.yaml` and their cases: promtool accepts both, every rule has a case in which it
//! fires and one in which it could and does not, and the cases fail for a rule with another number.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::promql::{Expression, Selector};
use super::{conf, promtool};

const RULES: &str = "prometheus/alerts.yaml";
const CASES: &str = "prometheus/alerts.test.yaml";

#[derive(Clone, Debug, Deserialize, Serialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Rule {
    pub(crate) alert: String,
    pub(crate) expr: String,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    lasts: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct CaseFile {
    rule_files: Vec<String>,
    evaluation_interval: String,
    tests: Vec<Case>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Case {
    name: String,
    interval: String,
    input_series: Vec<Series>,
    alert_rule_test: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Series {
    series: String,
    values: String,
}

/// Which alerts fire under a rule at a time.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Step {
    eval_time: String,
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<Firing>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Firing {
    exp_labels: BTreeMap<String, String>,
    exp_annotations: BTreeMap<String, String>,
}

fn rule_file() -> RuleFile {
    serde_yaml::from_str(&std::fs::read_to_string(conf(RULES)).unwrap()).unwrap()
}

fn case_file() -> CaseFile {
    serde_yaml::from_str(&std::fs::read_to_string(conf(CASES)).unwrap()).unwrap()
}

/// Every rule.
pub(crate) fn read() -> Vec<Rule> {
    rule_file().groups.into_iter().flat_map(|group| group.rules).collect()
}

/// Every series that the cases give, as a selector.
pub(crate) fn given_series() -> Vec<Selector> {
    let series = case_file().tests.into_iter().flat_map(|case| case.input_series);
    series.flat_map(|series| Expression::read(&series.series).selectors).collect()
}

#[test]
fn promtool_accepts_the_rules_and_every_case() {
    for (words, file) in [(["check", "rules"], RULES), (["test", "rules"], CASES)] {
        let (passes, printed) = promtool(&words, &conf(file));
        assert!(passes, "{printed}");
    }
}

#[test]
fn every_rule_says_what_it_means_and_what_to_do() {
    let mut names = BTreeSet::new();
    for rule in read() {
        let says = |name: &str| rule.annotations.get(name).is_some_and(|text| !text.is_empty());
        assert!(says("summary") && says("description"), "{}", rule.alert);
        let description = &rule.annotations["description"];
        let has_both = description.starts_with("Clients: ") && description.contains("First: ");
        assert!(has_both, "{}: what it means for clients, and what to do first", rule.alert);
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning")), "{}", rule.alert);
        assert!(names.insert(rule.alert.clone()), "{} is there twice", rule.alert);
    }
}

#[test]
fn every_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() {
    let rules = read();
    let cases = case_file().tests;
    for step in cases.iter().flat_map(|case| &case.alert_rule_test) {
        let known = rules.iter().any(|rule| rule.alert == step.alertname);
        assert!(known, "a case is of no rule: {}", step.alertname);
    }
    let label = Regex::new(r"\$labels\.(\w+)").unwrap();
    for rule in &rules {
        let (mut fires, mut is_silent) = (false, false);
        for case in &cases {
            let given: BTreeSet<&str> = case.input_series.iter().map(Series::metric).collect();
            let wanted = Expression::read(&rule.expr).selectors;
            // Without a sample of what it reads no rule can fire, so its silence would show nothing.
            let could_fire = wanted.iter().all(|found| given.contains(found.metric.as_str()));
            for step in case.alert_rule_test.iter().filter(|step| step.alertname == rule.alert) {
                assert!(could_fire, "{}: {} lacks a series", rule.alert, case.name);
                fires |= !step.exp_alerts.is_empty();
                is_silent |= step.exp_alerts.is_empty();
                for firing in &step.exp_alerts {
                    let texts = rule.annotations.values();
                    for found in texts.flat_map(|text| label.captures_iter(text)) {
                        let has_label = firing.exp_labels.contains_key(&found[1]);
                        assert!(has_label, "{}: an alert has no {}", rule.alert, &found[1]);
                    }
                }
            }
        }
        assert!(fires, "no case in which {} fires", rule.alert);
        assert!(is_silent, "no case in which {} does not fire", rule.alert);
    }
}

impl Series {
    fn metric(&self) -> &str {
        self.series.split('{').next().unwrap()
    }
}

/// Every number of a rule (a threshold, the least traffic, `for`) is held by a case close to it: with half or twice the
/// number a case of the rule fails.
#[test]
fn the_cases_fail_for_a_rule_with_another_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut survivors = String::new();
    for rule in read() {
        let (passes, printed) = try_rule(folder.path(), &rule);
        assert!(passes, "{printed}");
        let variants = variants(&rule);
        assert!(!variants.is_empty(), "{} has no number", rule.alert);
        for variant in variants {
            let (passes, printed) = try_rule(folder.path(), &variant);
            if passes {
                let _ = writeln!(survivors, "{}: {} {:?}", rule.alert, variant.expr, variant.lasts);
            } else {
                let names_it = printed.contains(&format!("alertname: {}", rule.alert));
                assert!(names_it, "not because of a case: {printed}");
            }
        }
    }
    assert!(survivors.is_empty(), "no case fails for\n{survivors}");
}

/// Runs the cases of a rule against it.
fn try_rule(folder: &Path, rule: &Rule) -> (bool, String) {
    let group = Group { name: "g".to_owned(), rules: vec![rule.clone()] };
    let mut cases = case_file();
    for case in &mut cases.tests {
        case.alert_rule_test.retain(|step| step.alertname == rule.alert);
    }
    cases.tests.retain(|case| !case.alert_rule_test.is_empty());
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    write("alerts.yaml", serde_yaml::to_string(&RuleFile { groups: vec![group] }).unwrap());
    write("alerts.test.yaml", serde_yaml::to_string(&cases).unwrap());
    promtool(&["test", "rules"], &folder.join("alerts.test.yaml"))
}

/// The rule with one number halved or doubled, and with `for` left out or doubled. Zero has no half; 2 is more than the
/// counts and rates of the cases.
fn variants(rule: &Rule) -> Vec<Rule> {
    let mut variants = Vec::new();
    for range in Expression::read(&rule.expr).numbers {
        let number: f64 = rule.expr[range.clone()].parse().unwrap();
        let others = if number == 0.0 { vec![2.0] } else { vec![number / 2.0, number * 2.0] };
        variants.extend(others.into_iter().map(|other| {
            let mut variant = rule.clone();
            variant.expr.replace_range(range.clone(), &other.to_string());
            variant
        }));
    }
    if let Some(lasts) = &rule.lasts {
        let minutes: u32 = lasts.strip_suffix('m').unwrap().parse().unwrap();
        variants.extend([0, 2 * minutes].map(|other| {
            let lasts = (other > 0).then(|| format!("{other}m"));
            Rule { lasts, ..rule.clone() }
        }));
    }
    variants
}
