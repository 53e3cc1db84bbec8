//! The dashboard of `conf/grafana` and the rules of `conf/prometheus` name metrics, labels and label values that
//! `/metrics` of the running binary has, and each rule fires and stays silent where its cases say so.
//!
//! [`Scrape`] is what the binary answers, [`promql`] finds the names in an expression. `promtool` reads the expressions
//! too, so a mistake in their syntax is found by the reader that Prometheus itself has.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

mod grafana;
mod promql;
mod rules;
mod scrape;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use grafana::Dashboard;
use promql::Expression;
use rules::Rule;
use scrape::Scrape;

/// A file of `conf/`.
fn conf(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name)
}

/// What promtool answers: whether it is content, and what it printed.
fn promtool(words: &[&str], file: &Path) -> (bool, String) {
    let output = Command::new("promtool").args(words).arg(file).output();
    let output = output.expect("promtool is installed by make test");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// An expression that a file has, and where.
struct Source {
    name: String,
    text: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_name_in_an_expression_is_one_that_the_binary_exports() {
    let scrape = Scrape::of_a_running_binary().await;
    let rules = rules::read();
    let of_rules = rules.iter().map(|rule| Source {
        name: format!("alerts.yaml: {}", rule.alert),
        text: rule.expr.clone(),
    });
    let dashboard = Dashboard::read();
    let sources: Vec<Source> = of_rules.chain(dashboard.expressions()).collect();
    assert!(sources.len() > 60, "{} expressions were found", sources.len());
    let wrong: Vec<String> = sources
        .iter()
        .flat_map(|source| {
            let wrong = scrape.mistakes(&Expression::read(&source.text));
            wrong.into_iter().map(|mistake| format!("{}: {mistake}", source.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for series in rules::given_series() {
        assert!(scrape.has_series_like(&series), "alerts.test.yaml: no such series: {series:?}");
    }
    for (variable, metric, label) in dashboard.listed_labels() {
        let known = scrape.has_label(&metric, &label);
        assert!(known, "tollgate.json: variable {variable}: {metric} has no label {label}");
    }
}

/// Whoever is alerted finds the metric on the dashboard.
#[test]
fn every_metric_of_a_rule_is_on_the_dashboard() {
    let expressions = Dashboard::read().expressions();
    let shown: BTreeSet<String> =
        expressions.iter().flat_map(|source| metrics(&source.text)).collect();
    for Rule { alert, expr, .. } in rules::read() {
        for metric in metrics(&expr) {
            assert!(shown.contains(&metric), "{alert}: no panel shows {metric}");
        }
    }
}

fn metrics(expression: &str) -> Vec<String> {
    Expression::read(expression).selectors.into_iter().map(|selector| selector.metric).collect()
}
