//! `tollgate explain`: the route, limits, keys and costs of one request. The request passes the real
//! request validation and the real engine, with empty counters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use serde_json::{Value, json};

use super::REFUSED;
use crate::clock::{Clock, ManualClock, SystemClock};
use crate::config::{self, Config};
use crate::engine::{Decision, Engine, Generation, Outcome};
use crate::http::{FieldRules, Head, HeadBounds, validate};
use crate::policy::key::KeyPart;
use crate::policy::{ConnectionFacts, Facts, KeySecret, KeySpec, Route};

/// A request on the command line.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The peer's address.
    #[arg(long, default_value = "192.0.2.1", value_name = "ADDRESS")]
    ip: IpAddr,
    /// A header field, as often as needed.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The name in the certificate that the client shows, for example dns:web.internal or uri:spiffe://prod/web.
    #[arg(long, value_name = "NAME", value_parser = config::client_name)]
    tls_client: Option<String>,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
    /// The method, for example GET.
    method: String,
    /// The URL, for example https://api.example.com/api/track.
    url: String,
}

/// Explains. The exit status is 0 whatever the decision is, and 2 if the request cannot be read.
pub(super) fn explain(args: &ExplainArgs) -> ExitCode {
    let loaded = match config::load(&args.config) {
        Ok(loaded) => loaded,
        Err(errors) => {
            errors.lines().iter().for_each(|line| eprintln!("{line}"));
            return ExitCode::from(REFUSED);
        }
    };
    match ExplainedRequest::read(args).and_then(|request| request.explain(loaded.config)) {
        Ok(explanation) if args.json => println!("{explanation:#}"),
        Ok(explanation) => print!("{}", lines(&explanation)),
        Err(why) => {
            eprintln!("tollgate explain: {why}");
            return ExitCode::from(REFUSED);
        }
    }
    ExitCode::SUCCESS
}

/// A request as it would be transmitted.
struct ExplainedRequest {
    peer: IpAddr,
    connection: ConnectionFacts,
    method: Method,
    target: String,
    headers: HeaderMap,
}

impl ExplainedRequest {
    fn read(args: &ExplainArgs) -> Result<Self, String> {
        let url: Uri = args.url.parse().map_err(|error| format!("{}: {error}", args.url))?;
        let method =
            args.method.parse().map_err(|error| format!("method {}: {error}", args.method))?;
        let mut headers = HeaderMap::new();
        for line in &args.headers {
            let (name, value) =
                line.split_once(':').ok_or_else(|| format!("{line}: write NAME: VALUE"))?;
            let name: HeaderName =
                name.trim().parse().map_err(|error| format!("{line}: {error}"))?;
            let value: HeaderValue =
                value.trim().parse().map_err(|error| format!("{line}: {error}"))?;
            headers.append(name, value);
        }
        if let Some(authority) = url.authority()
            && !headers.contains_key(http::header::HOST)
        {
            let host = HeaderValue::try_from(authority.as_str()).map_err(|e| e.to_string())?;
            headers.insert(http::header::HOST, host);
        }
        // The target as typed, because the URL type normalizes what request validation has to see.
        let after_scheme = args.url.split_once("://").map_or(args.url.as_str(), |(_, rest)| rest);
        let target = after_scheme.find('/').map_or("/", |start| &after_scheme[start..]).to_owned();
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let connection = ConnectionFacts::for_url(url.scheme_str().unwrap_or_default(), authority);
        if args.tls_client.is_some() && !connection.is_tls {
            return Err(
                "--tls-client: a client shows a certificate over TLS only; write https".into()
            );
        }
        let connection = connection.with_client_name(args.tls_client.clone());
        Ok(Self { peer: args.ip, connection, method, target, headers })
    }

    fn explain(&self, config: Config) -> Result<Value, String> {
        let bounds = HeadBounds {
            header_size: config.bounds.header_size,
            header_fields: config.bounds.header_fields,
            body_size: config.bounds.body_size,
        };
        let has_host = self.headers.contains_key(http::header::HOST);
        let head = Head {
            method: &self.method,
            target: self.target.as_bytes(),
            authority: None,
            // A URL without a host means a request without a host, which only HTTP/1.0 allows.
            version: if has_host { Version::HTTP_11 } else { Version::HTTP_10 },
            headers: &self.headers,
        };
        let rules = FieldRules::of(&config);
        let checked = validate(head, bounds).and_then(|clean| {
            rules.check(clean.uncommon, &self.method, &self.headers).map(|()| clean)
        });
        let clean = match checked {
            Ok(clean) => clean,
            Err(reason) => {
                return Ok(json!({
                    "decision": "rejected", "status": reason.status(), "reason": reason.name(),
                }));
            }
        };
        let clock = SystemClock::new();
        let facts = clean.facts(
            config.clients.client(self.peer, &self.headers),
            &self.connection,
            clock.date(clock.now()),
            &self.method,
            &self.headers,
        );
        let origins: Vec<Arc<str>> =
            config.origins.iter().map(|origin| origin.name.clone()).collect();
        let clock = Arc::new(ManualClock::new(facts.now));
        let engine = Engine::new(clock, KeySecret::new([0; 16]));
        let (generation, _) = engine.generation(config.policy, None);
        let (decision, _) = engine.decide_now(&generation, &facts);
        Ok(explanation(&generation, &decision, &facts, &origins))
    }
}

/// The decision as JSON.
fn explanation(
    generation: &Generation,
    decision: &Decision,
    facts: &Facts<'_>,
    origins: &[Arc<str>],
) -> Value {
    let policy = generation.policy();
    let (word, status) = match decision.outcome {
        Outcome::Allowed => ("allowed", None),
        Outcome::Limited => ("limited", Some(429)),
        Outcome::Outage => ("the store does not answer", Some(503)),
        Outcome::NoRoute => ("no route", Some(404)),
        Outcome::AmbiguousPath => ("a path that origins may read in other ways", Some(400)),
        Outcome::MissingKey { status, .. } => ("missing key", Some(status)),
        Outcome::RepeatedKey { .. } => ("repeated key", Some(400)),
        Outcome::UnreadableCondition => {
            ("a parameter or cookie that origins may read in other ways", Some(400))
        }
        Outcome::UnreadableKey { .. } => ("a key that origins may read in other ways", Some(400)),
    };
    let route = decision.route.map(|route| policy.route(route));
    let limits = decision.verdicts.iter().map(|verdict| {
        let limit = policy.limit(verdict.limit);
        json!({
            "limit": &*limit.name,
            "tier": verdict.tier.name(),
            "key": limit.key.to_string(),
            "parts": route.map(|route| key_values(&limit.key, facts, route)),
            "missing_key": limit.missing_key.to_string(),
            "cost": verdict.cost,
            "of": verdict.verdict.limit,
            "shadow": verdict.shadow,
        })
    });
    json!({
        "client_ip": facts.client.ip.to_string(),
        "host": facts.host,
        "path": facts.path,
        "route": route.map(|route| &*route.name),
        "origin": route.and_then(|route| origins.get(route.origin)).map(|name| &**name),
        "limits": limits.collect::<Vec<_>>(),
        "decision": word,
        "status": status,
    })
}

/// The values of a key, which are printed because they come from this command line.
fn key_values(key: &KeySpec, facts: &Facts<'_>, route: &Route) -> Vec<Value> {
    let value_of = |source: &crate::policy::Source| {
        let value = match source.part(facts, route) {
            KeyPart::Present(_) if matches!(source, crate::policy::Source::ClientIp) => {
                Value::from(facts.client.prefix().to_string())
            }
            KeyPart::Present(value) => Value::from(String::from_utf8_lossy(&value).into_owned()),
            KeyPart::Absent => Value::Null,
            KeyPart::Repeated => Value::from("(more than one)"),
            KeyPart::Unreadable => Value::from("(can be read in more than one way)"),
            KeyPart::Unchecked => Value::from("(not checked)"),
        };
        json!({ "source": source.to_string(), "value": value })
    };
    key.sources().iter().map(value_of).collect()
}

/// The explanation as lines of text.
fn lines(explanation: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut lines = String::new();
    for name in ["client_ip", "host", "path", "route", "origin", "decision", "status", "reason"] {
        if let Some(value) = explanation.get(name).filter(|value| !value.is_null()) {
            lines.push_str(&format!("{name:<10} {}\n", text(value)));
        }
    }
    for limit in explanation["limits"].as_array().into_iter().flatten() {
        let shadow = if limit["shadow"] == true { ", shadow" } else { "" };
        lines.push_str(&format!(
            "limit      {} ({}{shadow}): cost {} of {}, key {}\n",
            text(&limit["limit"]),
            text(&limit["tier"]),
            limit["cost"],
            limit["of"],
            text(&limit["key"]),
        ));
        for part in limit["parts"].as_array().into_iter().flatten() {
            let value = match &part["value"] {
                Value::Null => format!("absent ({})", text(&limit["missing_key"])),
                value => text(value),
            };
            lines.push_str(&format!("           {} = {value}\n", text(&part["source"])));
        }
    }
    lines
}
