//! The dashboard of `conf/grafana/tollgate.json` as Grafana reads it: rows, panels, variables and their queries.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use regex::Regex;
use serde_json::Value;

use super::{Source, conf, promtool};

/// What every panel and query takes as its data source.
const DATA_SOURCE: &str = "${datasource}";

pub(crate) struct Dashboard(Value);

impl Dashboard {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string(conf("grafana/tollgate.json")).unwrap();
        Self(serde_json::from_str(&text).unwrap())
    }

    fn list(&self, pointer: &str) -> &[Value] {
        self.0.pointer(pointer).unwrap().as_array().unwrap()
    }

    /// The panels that show something. Rows are none.
    fn panels(&self) -> impl Iterator<Item = &Value> {
        self.list("/panels").iter().filter(|panel| panel["type"] != "row")
    }

    fn rows(&self) -> Vec<&str> {
        let rows = self.list("/panels").iter().filter(|panel| panel["type"] == "row");
        rows.map(|row| row["title"].as_str().unwrap()).collect()
    }

    /// Variables whose values Prometheus lists.
    fn query_variables(&self) -> impl Iterator<Item = &Value> {
        self.list("/templating/list").iter().filter(|variable| variable["type"] == "query")
    }

    fn variables(&self) -> BTreeSet<&str> {
        let all = self.list("/templating/list").iter();
        all.map(|variable| variable["name"].as_str().unwrap()).collect()
    }

    /// Every expression, with `$__rate_interval` as Prometheus sees it.
    pub(crate) fn expressions(&self) -> Vec<Source> {
        let mut found = Vec::new();
        for panel in self.panels() {
            let title = panel["title"].as_str().unwrap_or("a panel without a title");
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{title} asks nothing");
            found.extend(targets.iter().map(|target| (title, &target["expr"])));
        }
        for variable in self.query_variables() {
            found.push((variable["name"].as_str().unwrap(), &variable["query"]["query"]));
        }
        for annotation in self.list("/annotations/list").iter().filter(|one| one["builtIn"] != 1) {
            found.push((annotation["name"].as_str().unwrap(), &annotation["expr"]));
        }
        // Nothing that Prometheus is asked stands anywhere else in the file.
        let exprs = count_keys(&self.0, "expr") + self.query_variables().count();
        assert_eq!(found.len(), exprs, "an expression stands where this test does not look");
        let source = |(name, text): (&str, &Value)| Source {
            name: format!("tollgate.json: {name}"),
            text: selected(text.as_str().unwrap()).replace("$__rate_interval", "5m"),
        };
        found.into_iter().map(source).collect()
    }

    /// Variable, metric and label of every variable that lists the values of a label.
    pub(crate) fn listed_labels(&self) -> Vec<(String, String, String)> {
        let query = Regex::new(r"^label_values\((\w+)(?:\{.*\})?, (\w+)\)$").unwrap();
        let listed = self.query_variables().map(|variable| {
            let text = variable["query"]["query"].as_str().unwrap();
            assert_eq!(variable["definition"], text, "Grafana shows one and asks the other");
            let found = query.captures(text).unwrap_or_else(|| panic!("{text}"));
            let name = variable["name"].as_str().unwrap().to_owned();
            (name, found[1].to_owned(), found[2].to_owned())
        });
        listed.collect()
    }
}

/// The selector in Grafana's `label_values(SELECTOR, LABEL)`, which is no PromQL. Any other text as it is.
fn selected(text: &str) -> &str {
    let inner = text.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(", "));
    inner.map_or(text, |(selector, _)| selector)
}

fn count_keys(value: &Value, key: &str) -> usize {
    match value {
        Value::Object(map) => {
            map.iter().map(|(name, value)| usize::from(name == key) + count_keys(value, key)).sum()
        }
        Value::Array(list) => list.iter().map(|value| count_keys(value, key)).sum(),
        _ => 0,
    }
}

#[test]
fn every_panel_says_what_it_shows_and_asks_the_chosen_data_source() {
    let dashboard = Dashboard::read();
    assert_eq!(
        dashboard.rows(),
        ["Overview", "Limits", "Store", "Fleet", "Origins", "Process and configuration"]
    );
    let mut ids = BTreeSet::new();
    for panel in dashboard.list("/panels") {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "two panels have the id {}",
            panel["id"]
        );
    }
    assert!(ids.len() > 40, "the panels were not found");
    let asks = |value: &Value| value["datasource"]["uid"] == DATA_SOURCE;
    for panel in dashboard.panels() {
        let says = |pointer: &str| {
            let text = panel.pointer(pointer).and_then(Value::as_str);
            text.is_some_and(|text| !text.is_empty())
        };
        for pointer in ["/title", "/description", "/fieldConfig/defaults/unit"] {
            assert!(says(pointer), "panel {} {} has no {pointer}", panel["id"], panel["title"]);
        }
        let all_ask = panel["targets"].as_array().unwrap().iter().all(asks);
        assert!(asks(panel) && all_ask, "panel {} asks another data source", panel["title"]);
    }
    let annotations = dashboard.list("/annotations/list").iter().filter(|one| one["builtIn"] != 1);
    for other in dashboard.query_variables().chain(annotations) {
        assert!(asks(other), "{} asks another data source", other["name"]);
    }
}

#[test]
fn panels_do_not_cover_one_another() {
    let dashboard = Dashboard::read();
    let mut taken = BTreeSet::new();
    for panel in dashboard.list("/panels") {
        let of = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(of("x") + of("w") <= 24, "{} is wider than the grid", panel["title"]);
        for cell in (0..of("w") * of("h")).map(|n| (of("x") + n % of("w"), of("y") + n / of("w"))) {
            assert!(taken.insert(cell), "{} covers another panel", panel["title"]);
        }
    }
}

#[test]
fn every_variable_of_an_expression_exists() {
    let dashboard = Dashboard::read();
    let variables = dashboard.variables();
    assert_eq!(variables, BTreeSet::from(["datasource", "instance", "job", "limit", "route"]));
    let variable = Regex::new(r"\$\{?(\w+)").unwrap();
    let mut used = BTreeSet::from(["datasource".to_owned()]);
    for source in dashboard.expressions() {
        for found in variable.captures_iter(&source.text) {
            assert!(variables.contains(&found[1]), "{}: ${}", source.name, &found[1]);
            used.insert(found[1].to_owned());
        }
        let chosen = source.text.matches("job=~\"$job\"").count();
        let selectors = source.text.matches('{').count();
        assert!(chosen == selectors || source.text == "tollgate_build_info", "{}", source.name);
    }
    assert_eq!(used.len(), variables.len(), "a variable chooses nothing: {used:?}");
}

/// promtool reads the expressions as rules that record.
#[test]
fn promtool_accepts_every_expression() {
    let mut rules = String::from("groups:\n  - name: g\n    rules:\n");
    for (n, source) in Dashboard::read().expressions().iter().enumerate() {
        let expr = serde_json::to_string(&source.text).unwrap();
        let _ = writeln!(rules, "      - {{ record: \"r{n}\", expr: {expr} }}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rules).unwrap();
    let (passes, printed) = promtool(&["check", "rules"], file.path());
    assert!(passes, "{printed}");
}
