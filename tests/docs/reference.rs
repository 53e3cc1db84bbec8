//! `reference.md` is generated from the schema: a table for each mapping of the configuration.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_yaml::{Mapping, Value};
use tollgate::cli::SCHEMA;

use super::{compare_or_write, pages};

const HEAD: &str = "# Every configuration key

<!-- Generated from the JSON Schema (`tollgate schema`) by `make docs-generated`. Edit the schema's descriptions. -->

The configuration is one YAML file. A name in capitals, as `NAME`, stands for a name of yours; `[]` stands for an item
of a list. [Commands](commands.md#words-and-units) explains durations, rates and sizes, and
[conf/tollgate.yaml](https://github.com/tollgate-proxy/tollgate/blob/main/conf/tollgate.yaml) shows all keys in one
file. Unknown keys are refused.
";

/// Pages that explain a mapping or a key.
const EXPLAINED: [(&str, &str, &str); 26] = [
    ("admin", "Admin listener and metrics", "operating/metrics.md"),
    ("clients", "Keys", "concepts/keys.md#the-clients-address"),
    ("store", "Redis", "operating/redis.md"),
    ("store.embedded", "State on disk", "operating/state.md"),
    ("fleet", "Two tiers", "concepts/tiers.md#one-estimate-for-many-nodes"),
    ("limits.NAME", "Two tiers", "concepts/tiers.md"),
    ("limits.NAME.scope", "Two tiers", "concepts/tiers.md#one-estimate-for-many-nodes"),
    ("limits.NAME.algorithm", "Algorithms", "concepts/algorithms.md"),
    ("limits.NAME.max_in_flight", "Algorithms", "concepts/algorithms.md#max_in_flight"),
    ("limits.NAME.max_delay", "Algorithms", "concepts/algorithms.md#leaky_bucket-and-max_delay"),
    ("limits.NAME.key", "Keys", "concepts/keys.md"),
    ("limits.NAME.missing_key", "Keys", "concepts/keys.md#a-missing-key"),
    ("limits.NAME.cost", "Costs", "concepts/limit-options.md#cost"),
    ("limits.NAME.count", "Costs", "concepts/limit-options.md#count-and-refund"),
    ("limits.NAME.plans", "Plans", "concepts/limit-options.md#plans"),
    ("limits.NAME.overrides[]", "Overrides", "concepts/limit-options.md#overrides"),
    ("limits.NAME.candidate", "Candidate", "concepts/limit-options.md#candidate"),
    ("limits.NAME.penalty", "Penalty", "concepts/limit-options.md#penalty"),
    ("limits.NAME.after_crash", "State on disk", "operating/state.md#what-a-crash-loses"),
    ("limits.NAME.on_store_failure", "Redis", "operating/redis.md#when-the-store-is-away"),
    ("routes[]", "Routes and decisions", "concepts/decisions.md"),
    ("limits_of_this_proxy", "Bounds on clients", "security/bounds.md"),
    ("access_log", "Logs", "operating/logs.md#access-log"),
    ("check", "Warnings", "warnings.md"),
    ("jwt", "Signed tokens", "concepts/limit-options.md#signed-tokens"),
    ("responses", "Answers and headers", "answers.md"),
];

#[test]
fn the_reference_is_what_the_schema_says() {
    // As YAML, which JSON is: this reader keeps the order of the keys.
    let schema: Value = serde_yaml::from_str(SCHEMA).unwrap();
    let mut reference =
        Reference { schema: &schema, text: HEAD.to_owned(), explained: BTreeSet::new() };
    reference.table("", &schema);
    for (name, value) in entries(&schema["properties"]) {
        reference.section(2, name, value, false);
    }
    reference.text.push_str("\n## Types\n\nSeveral keys take values of these types.\n");
    for (name, value) in entries(&schema["definitions"]) {
        reference.section(3, name, value, true);
    }
    let missing: Vec<&str> = EXPLAINED
        .iter()
        .map(|(path, _, _)| *path)
        .filter(|path| !reference.explained.contains(path))
        .collect();
    assert!(missing.is_empty(), "in no table: {missing:?}");
    compare_or_write(&pages::book().join("reference.md"), &reference.text);
}

struct Reference<'s> {
    schema: &'s Value,
    text: String,
    /// Links of [`EXPLAINED`] that were written.
    explained: BTreeSet<&'static str>,
}

/// A mapping below a key, with its path.
struct Below<'s> {
    path: String,
    value: &'s Value,
}

impl<'s> Reference<'s> {
    /// A heading, the description and the table of a mapping and of all mappings below it. A key that
    /// holds no mapping has its line in the table of the mapping above, and no section.
    fn section(&mut self, level: usize, path: &str, value: &'s Value, always: bool) {
        let mappings = mappings(path, value);
        if mappings.is_empty() && !always {
            return;
        }
        let _ = writeln!(self.text, "\n{} {path}\n", "#".repeat(level));
        self.describe(path, value);
        if mappings.is_empty() {
            let _ = writeln!(self.text, "\nValue: {}.", self.kind(value));
        }
        for below in mappings {
            if below.path == path {
                self.table(path, below.value);
                for (name, value) in entries(&below.value["properties"]) {
                    self.section(3, &format!("{path}.{name}"), value, false);
                }
            } else {
                self.variant(&below);
            }
        }
    }

    /// One of several mappings that a key takes, or the item of a list.
    fn variant(&mut self, below: &Below<'s>) {
        let _ = writeln!(self.text, "\n### {}\n", below.path);
        self.describe(&below.path, below.value);
        self.table(&below.path, below.value);
        for (name, value) in entries(&below.value["properties"]) {
            self.section(3, &format!("{}.{name}", below.path), value, false);
        }
    }

    fn describe(&mut self, path: &str, value: &Value) {
        let text = value["description"].as_str().unwrap_or_default();
        let link = self.link(path);
        let _ = writeln!(self.text, "{}{link}", text.trim());
    }

    fn link(&mut self, path: &str) -> String {
        let Some((path, title, page)) = EXPLAINED.iter().find(|(at, _, _)| *at == path) else {
            return String::new();
        };
        self.explained.insert(path);
        format!(" See [{title}]({page}).")
    }

    fn table(&mut self, path: &str, mapping: &Value) {
        self.text.push_str("\n| key | value | default | |\n|---|---|---|---|\n");
        let required: Vec<&str> = mapping["required"]
            .as_sequence()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for (name, value) in entries(&mapping["properties"]) {
            let default = match value.get("default").unwrap_or(&Value::Null) {
                _ if required.contains(&name) => "required".to_owned(),
                Value::Null => String::new(),
                value => format!("`{}`", plain(value)),
            };
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            // A key with a section of its own has its link there.
            let link =
                if mappings(&path, value).is_empty() { self.link(&path) } else { String::new() };
            let description = value["description"].as_str().unwrap_or_else(|| {
                self.resolved(value)["description"].as_str().unwrap_or_default()
            });
            let _ = writeln!(
                self.text,
                "| `{name}` | {} | {default} | {}{link} |",
                self.kind(value).replace('|', "\\|"),
                description.replace('|', "\\|")
            );
        }
    }

    fn resolved(&self, value: &'s Value) -> &'s Value {
        match value["$ref"].as_str() {
            Some(target) => &self.schema["definitions"][target.rsplit('/').next().unwrap()],
            None => value,
        }
    }

    /// What a key takes, in words.
    fn kind(&self, value: &Value) -> String {
        if let Some(target) = value["$ref"].as_str() {
            let name = target.rsplit('/').next().unwrap();
            return format!("[{name}](#{name})");
        }
        for several in ["anyOf", "allOf"] {
            if let Some(kinds) =
                value[several].as_sequence().filter(|_| properties(value).is_none())
            {
                let mut words: Vec<String> = Vec::new();
                for kind in kinds.iter().map(|kind| self.kind(kind)) {
                    if !words.contains(&kind) {
                        words.push(kind);
                    }
                }
                return words.join(" or ");
            }
        }
        if let Some(words) = value["enum"].as_sequence() {
            let words = words.iter().filter(|word| word.as_str() != Some("1"));
            return words.map(|word| format!("`{}`", plain(word))).collect::<Vec<_>>().join(", ");
        }
        match &value["type"] {
            Value::Sequence(_) => "text".to_owned(),
            Value::String(kind) => match kind.as_str() {
                "object" if properties(value).is_none() => "mapping of names".to_owned(),
                "object" => "mapping".to_owned(),
                "array" => format!("list of: {}", self.kind(&value["items"])),
                "integer" => match (value["minimum"].as_u64(), value["maximum"].as_u64()) {
                    (Some(min), Some(max)) => format!("{min} to {max}"),
                    (Some(min), None) => format!("a number, {min} at least"),
                    _ => "a number".to_owned(),
                },
                "boolean" => "`true`, `false`".to_owned(),
                "string" => self.text_kind(value),
                other => other.to_owned(),
            },
            _ => "text".to_owned(),
        }
    }

    /// What a text stands for, by its pattern.
    fn text_kind(&self, value: &Value) -> String {
        if value["format"] == "date-time" {
            return "an instant, as `2026-12-01T00:00:00Z`".to_owned();
        }
        let Some(pattern) = value["pattern"].as_str() else {
            return "text".to_owned();
        };
        for name in ["duration", "rate", "name"] {
            if self.schema["definitions"][name]["pattern"] == *pattern {
                return format!("[{name}](#{name})");
            }
        }
        let words = [
            ("^[0-9]+(B|KiB|MiB|GiB)?$", "a size"),
            ("^(auto|[0-9]+(B|KiB|MiB|GiB)?)$", "`auto` or a size"),
            ("^([0-9]+/([0-9]+(ms|s|m|h|d)|[smhd])|none)$", "[rate](#rate) or `none`"),
            ("^[0-9]+(\\.[0-9]{1,4})?%$", "a share, as `25%`"),
            ("^[0-9]{3} *- *[0-9]{3}$", "a range, as `500-599`"),
            ("^[A-Z]{1,32}$", "a method"),
            ("\\$[a-z0-9_]+", "a template"),
            ("^((header|cookie):.+|class)$", "`header:NAME`, `cookie:NAME`, `class`"),
            ("^https?://.+$", "a URL"),
            (
                "^(authorization|(header|cookie|query):.+)$",
                "`authorization`, `header:NAME`, `cookie:NAME`, `query:NAME`",
            ),
            (
                "^(header|cookie|query|path_segment|class):.+$",
                "`header:NAME`, `cookie:NAME`, `query:NAME`, `path_segment:N`, `class:NAME`",
            ),
        ];
        let word = words.iter().find(|(other, _)| *other == pattern);
        word.unwrap_or_else(|| panic!("no words for the pattern {pattern}")).1.to_owned()
    }
}

/// A value as YAML has it in one line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Sequence(items) => {
            format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", "))
        }
        Value::Number(number) => number.to_string(),
        Value::Bool(value) => value.to_string(),
        other => panic!("a default or a word that is {other:?}"),
    }
}

fn properties(value: &Value) -> Option<&Mapping> {
    value.get("properties").and_then(Value::as_mapping)
}

/// The names and values of a mapping, in its order.
fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let mapping = value.as_mapping().unwrap();
    mapping.iter().map(|(name, value)| (name.as_str().unwrap(), value))
}

/// The mappings that a key holds: itself, one of its variants, the item of a list, a value by name.
fn mappings<'s>(path: &str, value: &'s Value) -> Vec<Below<'s>> {
    if properties(value).is_some() {
        return vec![Below { path: path.to_owned(), value }];
    }
    if let Some(kinds) = value["anyOf"].as_sequence() {
        let mut found: Vec<Below<'s>> = Vec::new();
        for below in kinds.iter().flat_map(|kind| mappings(path, kind)) {
            // A list of what may also be written alone is described once.
            if found.iter().all(|other| other.value != below.value) {
                found.push(below);
            }
        }
        if let [_, _, ..] = found.as_slice() {
            for below in &mut found {
                let first = below.value["required"][0].as_str().unwrap();
                below.path = format!("{} ({first})", below.path);
            }
        }
        return found;
    }
    if value["type"] == "array" {
        return mappings(&format!("{path}[]"), &value["items"]);
    }
    if value["additionalProperties"].is_mapping() {
        return mappings(&format!("{path}.NAME"), &value["additionalProperties"]);
    }
    Vec::new()
}
