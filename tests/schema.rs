//! The JSON Schema of the configuration accepts what the reader accepts, and has the same keys.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate::cli::SCHEMA;
use tollgate::config;

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

fn configurations() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["conf", "conf/examples", "conf/compose", "tests/policies"];
    let mut found: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let other = name.ends_with(".test.yaml") || name.starts_with("docker-compose");
            name.ends_with(".yaml") && !other
        })
        .collect();
    found.push(root.join("src/cli/demo.yaml"));
    found
}

fn as_json(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

#[test]
fn every_configuration_here_is_valid() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let files = configurations();
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        let value = as_json(&std::fs::read_to_string(&file).unwrap());
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", file.display());
    }
}

/// The schema that `tollgate schema --included` prints, for files that a configuration includes.
#[test]
fn an_included_file_has_a_schema_of_its_own() {
    let printed =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["schema", "--included"]).output();
    let schema: Value = serde_json::from_slice(&printed.unwrap().stdout).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("main.yaml");
    std::fs::write(
        &main,
        "version: 1\nlisteners: [{ address: \"127.0.0.1:1\" }]\ninclude: part.yaml\n",
    )
    .unwrap();
    for (part, is_good) in [
        ("origins: { o: { servers: [\"127.0.0.1:2\"] } }\nroutes: [{ name: r, origin: o }]", true),
        ("version: 1\norigins: { o: { servers: [\"127.0.0.1:2\"] } }\nroutes: [{ name: r }]", true),
        (
            "origins: { o: { servers: [\"127.0.0.1:2\"] } }\nroutes: [{ name: r }]\n\
             limits: { l: { tier: exact, rate: 1/s, key: client_ip } }\nclasses: { c: { client: 10.0.0.0/8 } }",
            true,
        ),
        ("listeners: [{ address: \"127.0.0.1:1\" }]", false),
        ("include: other.yaml", false),
        ("limits: { l: { tier: exact, rate: 1, key: client_ip } }", false),
    ] {
        std::fs::write(folder.path().join("part.yaml"), part).unwrap();
        assert_eq!(validator.is_valid(&as_json(part)), is_good, "schema: {part}");
        let text = std::fs::read_to_string(&main).unwrap();
        let read = config::read_text(&text, "main.yaml", folder.path());
        assert_eq!(read.is_ok(), is_good, "reader: {part}: {:?}", read.err());
    }
}

#[test]
fn mistakes_are_refused() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let good = "{ version: 1, listeners: [{ address: a }], origins: { o: { servers: [a] } }, \
                limits: { l: { tier: exact, rate: 1/s, key: client_ip } }, routes: [{ name: r }] }";
    assert!(validator.is_valid(&as_json(good)));
    for (from, to) in
        [("{ name: r }", "{ name: R_1-a }"), ("l: {", "Per_User: {"), ("o: {", "O_: {")]
    {
        assert!(good.contains(from));
        assert!(validator.is_valid(&as_json(&good.replacen(from, to, 1))), "{from} -> {to}");
    }
    for (from, to) in [
        ("rate: 1/s", "rate: 1"),
        ("rate: 1/s", "rate: 1/w"),
        ("tier: exact", "tier: exactly"),
        ("key: client_ip", "key: client-ip"),
        ("key: client_ip", "key: []"),
        ("rate: 1/s,", ""),
        ("rate: 1/s", "rate: 1/s, burts: 3"),
        ("rate: 1/s", "rate: 1/s, rollout: 5"),
        ("rate: 1/s", "rate: 1/s, count: { status: [20] }"),
        ("rate: 1/s", "rate: 1/s, penalty: { after: 2 }"),
        ("rate: 1/s", "rate: 1/s, cost: { header: x }"),
        ("rate: 1/s", "rate: 1/s, overrides: [{ action: deny }]"),
        ("{ name: r }", "{ name: r.1 }"),
        ("version: 1", "version: 2"),
        ("l: {", "l.1: {"),
    ] {
        assert!(good.contains(from));
        assert!(!validator.is_valid(&as_json(&good.replacen(from, to, 1))), "{from} -> {to}");
    }
}

/// A configuration with `@` instead of the entries of a mapping, and the pointer to that mapping in the
/// schema.
const MAPPINGS: [(&str, &str); 27] = [
    ("listeners: [{ address: 127.0.0.1:1, @ }]", "listeners/items"),
    ("listeners: [{ address: 127.0.0.1:1, tls: { @ } }]", "listeners/items/properties/tls/anyOf/0"),
    ("admin: { address: 127.0.0.1:2, @ }", "admin"),
    ("clients: { @ }", "clients"),
    ("store: { @ }", "store/anyOf/1"),
    ("store: { redis: { @ } }", "store/anyOf/1/properties/redis"),
    (
        "store: { redis: { url: \"rediss://a\", tls: { @ } } }",
        "store/anyOf/1/properties/redis/properties/tls",
    ),
    ("store: { redis: { sentinel: { @ } } }", "store/anyOf/1/properties/redis/properties/sentinel"),
    ("fleet: { @ }", "fleet"),
    ("origins: { o: { @ } }", "origins/additionalProperties"),
    (
        "origins: { o: { servers: [{ @ }] } }",
        "origins/additionalProperties/properties/servers/items/anyOf/1",
    ),
    ("origins: { o: { tls: { @ } } }", "origins/additionalProperties/properties/tls"),
    (
        "origins: { o: { health_check: { @ } } }",
        "origins/additionalProperties/properties/health_check",
    ),
    ("origins: { o: { timeouts: { @ } } }", "origins/additionalProperties/properties/timeouts"),
    ("limits: { l: { tier: exact, @ } }", "limits/additionalProperties"),
    (
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip, penalty: { @ } } }",
        "limits/additionalProperties/properties/penalty",
    ),
    (
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip, plans: { @ } } }",
        "limits/additionalProperties/properties/plans",
    ),
    (
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip, count: { @ } } }",
        "limits/additionalProperties/properties/count",
    ),
    (
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip, refund: { @ } } }",
        "limits/additionalProperties/properties/refund",
    ),
    (
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip, candidate: { @ } } }",
        "limits/additionalProperties/properties/candidate",
    ),
    (
        "limits: { l: { tier: exact, rate: 1/s, key: client_ip, overrides: [{ rate: 1/s, network: 10.0.0.0/8, @ }] } }",
        "limits/additionalProperties/properties/overrides/items",
    ),
    (
        "limits: { l: { tier: estimate, rate: 1/s, key: client_ip, expect: { @ } } }",
        "limits/additionalProperties/properties/expect",
    ),
    ("defaults: { @ }", "defaults"),
    ("routes: [{ name: r, @ }]", "routes/items"),
    ("limits_of_this_proxy: { @ }", "limits_of_this_proxy"),
    ("access_log: { @ }", "access_log"),
    ("check: { @ }", "check"),
];

#[test]
fn the_schema_knows_the_keys_that_the_reader_knows() {
    let schema = schema();
    let mut mappings: Vec<(String, String)> = MAPPINGS
        .iter()
        .map(|(text, pointer)| ((*text).to_owned(), format!("/properties/{pointer}")))
        .collect();
    for (text, definition) in [
        ("responses: { @ }", "responses"),
        ("limits: { l: { tier: exact, rate: 1/s, key: { jwt: { @ } } } }", "jwt"),
        ("routes: [{ name: r, match: { @ } }]", "match"),
        ("routes: [{ name: r, match: { header: { x: { @ } } } }]", "test"),
    ] {
        mappings.push((text.to_owned(), format!("/definitions/{definition}")));
    }
    for (text, pointer) in &mappings {
        let errors = config::read_text(&text.replace('@', "\"\": 1"), "f", Path::new(""));
        let errors = errors.unwrap_err().lines().join("\n");
        let known = errors.split("unknown key \"\"; known here: ").nth(1);
        let known = known.unwrap_or_else(|| panic!("{text}: {errors}"));
        let known: BTreeSet<&str> = known.lines().next().unwrap().split(", ").collect();
        let mapping = schema.pointer(pointer);
        // A definition that is also written as a text has its mapping as the last alternative.
        let described = mapping.and_then(|mapping| {
            mapping["properties"]
                .as_object()
                .or_else(|| mapping["anyOf"][1]["properties"].as_object())
        });
        let described = described.unwrap_or_else(|| panic!("no properties at {pointer}"));
        let described: BTreeSet<&str> = described.keys().map(String::as_str).collect();
        assert_eq!(described, known, "{text}");
    }
    let errors = config::read_text("\"\": 1", "f", Path::new("")).unwrap_err().lines().join("\n");
    let known = errors.split("known here: ").nth(1).unwrap();
    let known: BTreeSet<&str> = known.lines().next().unwrap().split(", ").collect();
    let described = schema["properties"].as_object().unwrap();
    assert_eq!(described.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
}

/// Every property has a description.
#[test]
fn every_key_is_described() {
    fn walk(value: &Value, path: &str) {
        let Some(object) = value.as_object() else {
            return;
        };
        if let Some(properties) = object.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                let is_described =
                    property["description"].is_string() || property["$ref"].is_string();
                assert!(is_described, "{path}/{name} is not described");
            }
        }
        for (name, child) in object {
            walk(child, &format!("{path}/{name}"));
            for (index, item) in child.as_array().into_iter().flatten().enumerate() {
                walk(item, &format!("{path}/{name}[{index}]"));
            }
        }
    }
    walk(&schema(), "");
}

/// Mappings with defaults: a configuration with `@` instead of entries, and the pointer to the mapping in the schema.
const WITH_DEFAULTS: [(&str, &str); 9] = [
    ("limits_of_this_proxy: { @ }", "limits_of_this_proxy"),
    ("limits_of_this_proxy: { discard: { @ } }", "limits_of_this_proxy/properties/discard"),
    ("origins: { o: { servers: [127.0.0.1:1], @ } }", "origins/additionalProperties"),
    (
        "origins: { o: { servers: [127.0.0.1:1], timeouts: { @ } } }",
        "origins/additionalProperties/properties/timeouts",
    ),
    (
        "origins: { o: { servers: [127.0.0.1:1], health_check: { path: /, @ } } }",
        "origins/additionalProperties/properties/health_check",
    ),
    ("store: { redis: { url: \"redis://127.0.0.1:1\", @ } }", "store/anyOf/1/properties/redis"),
    ("access_log: { @ }", "access_log"),
    ("fleet: { @ }", "fleet"),
    ("clients: { trusted_proxies: [192.0.2.0/24], @ }", "clients"),
];

#[test]
fn defaults_of_the_schema_are_those_of_the_reader() {
    let schema = schema();
    let mut compared = 0;
    for (text, pointer) in WITH_DEFAULTS {
        let others =
            ["listeners: [{ address: 127.0.0.1:1 }]", "origins: { o: { servers: [127.0.0.1:1] } }"];
        let others = others.into_iter().filter(|other| !text.starts_with(&other[..7]));
        let others: Vec<&str> = others.collect();
        let read = |entry: &str| {
            let text = format!(
                "version: 1\n{}\n{}\nroutes: [{{ name: r, origin: o }}]\n",
                others.join("\n"),
                text.replace('@', entry)
            );
            let loaded = config::read_text(&text, "f", Path::new(""));
            let config = loaded.unwrap_or_else(|errors| panic!("{text}: {errors}")).config;
            let parts = (&config.bounds, &config.origins, &config.store, &config.access_log);
            format!("{parts:?} {:?} {:?}", config.clients, config.policy.max_keys)
        };
        let plain = read("");
        let keys = schema.pointer(&format!("/properties/{pointer}/properties")).unwrap();
        for (key, value) in keys.as_object().unwrap() {
            if let Some(default) = value.get("default").filter(|_| key != "trusted_proxies") {
                assert_eq!(read(&format!("{key}: {default}")), plain, "{pointer}: {key}");
                compared += 1;
            }
        }
    }
    assert!(compared > 40, "{compared}");
}

#[test]
fn descriptions_state_the_defaults() {
    fn check(at: &str, value: &Value, stated: &mut usize) {
        if let (Some(default), Some(text)) = (value.get("default"), value["description"].as_str())
            && let Some((_, said)) = text.split_once("The default is ")
        {
            let words = match default {
                Value::String(text) => text.clone(),
                Value::Array(items) if items.is_empty() => "none".to_owned(),
                Value::Array(_) => "both".to_owned(),
                other => other.to_string(),
            };
            assert_eq!(said.replace(',', ""), format!("{words}."), "{at}");
            *stated += 1;
        }
        let entries =
            value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value));
        let items = value.as_array().into_iter().flatten().map(|value| ("", value));
        for (key, value) in entries.chain(items) {
            check(&format!("{at}/{key}"), value, stated);
        }
    }
    let mut stated = 0;
    check("", &schema(), &mut stated);
    assert!(stated > 50, "{stated}");
}

#[test]
fn the_commented_file_has_every_bound_with_its_default() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/tollgate.yaml");
    let file = as_json(&std::fs::read_to_string(file).unwrap());
    let written = file["limits_of_this_proxy"].as_object().unwrap();
    let schema = schema();
    let bounds = schema["properties"]["limits_of_this_proxy"]["properties"].as_object().unwrap();
    let names = |keys: &serde_json::Map<String, Value>| -> BTreeSet<String> {
        keys.keys().cloned().collect()
    };
    assert_eq!(names(written), names(bounds));
    for (key, bound) in bounds {
        match bound.get("default") {
            Some(default) => assert_eq!(&written[key], default, "{key}"),
            None => {
                for (inner, bound) in bound["properties"].as_object().unwrap() {
                    assert_eq!(written[key][inner], bound["default"], "{key}.{inner}");
                }
            }
        }
    }
}
