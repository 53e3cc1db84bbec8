//! Every YAML block of the documentation is what it says that it is.
//!
//! | block | checked as |
//! |---|---|
//! | `yaml` that begins with `cases:` | cases, which pass under the last complete policy above them |
//! | any other `yaml` | a complete policy: no error, no warning that is not silenced |
//! | `yaml,fragment` | keys of the top level; [`completed`] adds what is missing |
//! | `yaml,limit` | keys of one limit; [`limit`] adds what is missing |
//! | `yaml,prometheus` | a configuration of Prometheus that promtool accepts |
//! | `yaml,envoy`, `yaml,comment` | YAML of somebody else, a comment: YAML |

use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;
use serde_yaml::Value;
use tollgate::cli::test::{InProcessStore, run};
use tollgate::config;

use super::pages::{self, Block, Page};

/// Files that policies of the documentation name.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self { folder };
        let keys = pages::root().join("conf/examples/keys/jwks.json");
        files.write("keys/jwks.json", &std::fs::read_to_string(keys).unwrap());
        let pair = support::certificates::pair("example.com");
        files.write("tls/site.crt", &pair.pem);
        files.write("tls/site.key", &pair.key);
        for name in ["tls/ca.pem", "tls/edge.pem", "tls/edge.key"] {
            let example = pages::root().join("conf/examples").join(name);
            files.write(name, &std::fs::read_to_string(example).unwrap());
        }
        files.write("denied.html", "<h1>Too many requests</h1>");
        for name in ["slow-down.html", "sorry.html", "sorry"] {
            files.write(name, "{{status}} {{request_id}}");
        }
        files.write("secrets/keys", "sixteen characters or more\n");
        files
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Reads a policy; `/run/secrets` is the folder's.
    fn read(&self, text: &str, name: &str) -> Result<config::LoadedConfig, Vec<String>> {
        let secrets = format!("{}/secrets", self.path().display());
        let text = text.replace("/run/secrets", &secrets);
        config::read_text(&text, name, self.path()).map_err(|errors| errors.lines())
    }
}

#[test]
fn every_yaml_block_is_valid_and_every_case_passes() {
    let files = Files::new();
    let mut wrong = Vec::new();
    let (mut policies, mut cases) = (0, 0);
    for page in pages::all() {
        let mut policy = None;
        for block in page.blocks().iter().filter(|block| block.language.starts_with("yaml")) {
            let at = format!("{}:{}", page.file.display(), block.line);
            let checked = match block.language.as_str() {
                "yaml" if block.text.starts_with("cases:") => {
                    run_cases(&files, policy, block, &at, &mut cases)
                }
                "yaml" => {
                    policy = Some(block);
                    policies += 1;
                    complete(&files, &block.text, &at)
                }
                "yaml,fragment" => valid(&files, &completed(&block.text), &at),
                "yaml,limit" => valid(&files, &limit(&block.text), &at),
                "yaml,prometheus" => prometheus(&block.text),
                "yaml,envoy" | "yaml,comment" => documents(&block.text).map(drop),
                other => Err(format!("{other:?} is not a kind of block")),
            };
            if let Err(why) = checked {
                wrong.push(format!("{at}: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(policies > 10 && cases > 20, "{policies} policies, {cases} cases");
}

fn complete(files: &Files, text: &str, at: &str) -> Result<(), String> {
    let loaded = files.read(text, at).map_err(|errors| errors.join("\n"))?;
    match loaded.warnings.as_slice() {
        [] => Ok(()),
        warnings => Err(format!("{warnings:?}")),
    }
}

fn valid(files: &Files, text: &str, at: &str) -> Result<(), String> {
    let read = files.read(text, at);
    read.map(drop).map_err(|errors| format!("{}\nin\n{text}", errors.join("\n")))
}

fn run_cases(
    files: &Files,
    policy: Option<&Block>,
    block: &Block,
    at: &str,
    passed: &mut usize,
) -> Result<(), String> {
    let policy = policy.ok_or("no policy above these cases")?;
    let cases = config::read_cases(&block.text, at, files.folder.path());
    let cases = cases.map_err(|errors| errors.lines().join("\n"))?;
    for case in &cases {
        let loaded = files.read(&policy.text, at).map_err(|errors| errors.join("\n"))?;
        let outcome = run(loaded.config, case, &InProcessStore);
        if !outcome.differences.is_empty() {
            return Err(format!("{}: {}", outcome.name, outcome.differences.join("\n")));
        }
        *passed += 1;
    }
    Ok(())
}

/// A fragment with the keys of the top level that it leaves out: a listener, origins that routes
/// name, and a route with all of its limits.
fn completed(fragment: &str) -> String {
    let value: Value = serde_yaml::from_str(fragment).unwrap_or_default();
    let mut text = fragment.to_owned();
    let mut add = |key: &str, rest: &str| {
        if value.get(key).is_none() {
            let _ = writeln!(text, "{key}: {rest}");
        }
    };
    add("version", "1");
    add("listeners", "[{ address: 127.0.0.1:8080 }]");
    add("origins", "{ site: { servers: [127.0.0.1:9000] } }");
    let limits = value.get("limits").and_then(Value::as_mapping);
    let names = limits.into_iter().flatten().filter_map(|(name, _)| name.as_str());
    let names: Vec<&str> = names.collect();
    add("routes", &format!("[{{ name: all, limits: [{}] }}]", names.join(", ")));
    text
}

/// An exact limit with these keys.
fn limit(fields: &str) -> String {
    let value: Value = serde_yaml::from_str(fields).unwrap_or_default();
    let mut text = String::from("limits:\n  example:\n");
    for (key, rest) in [("tier", "exact"), ("rate", "100/1m"), ("key", "client_ip")] {
        if value.get(key).is_none() {
            let _ = writeln!(text, "    {key}: {rest}");
        }
    }
    for line in fields.lines() {
        let _ = writeln!(text, "    {line}");
    }
    completed(&text)
}

fn documents(text: &str) -> Result<Vec<Value>, String> {
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    documents.collect::<Result<_, _>>().map_err(|error| error.to_string())
}

fn prometheus(text: &str) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let output = std::process::Command::new("promtool")
        .args(["check", "config", "--syntax-only"])
        .arg(file.path())
        .output()
        .expect("promtool is installed by make test");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// What a page says about a kind of block must not depend on a typing mistake.
#[test]
fn blocks_have_known_languages() {
    const KNOWN: [&str; 7] = ["sh", "text", "http", "nginx", "json", "rust", "toml"];
    for Page { file, text } in pages::all() {
        let page = Page { file, text };
        for block in page.blocks() {
            let word = block.language.split(',').next().unwrap();
            let known = word == "yaml" || KNOWN.contains(&word);
            assert!(known, "{}:{}: {:?}", page.file.display(), block.line, block.language);
        }
    }
}
