//! `tollgate explain`: the route, limits, keys and costs of one request. The request passes the real
//! request validation and the real engine, with empty counters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use serde_json::{Value, json};

mod listener;
mod missing;
mod node;
mod text;
mod unreadable;
mod why;

use super::admin_client::AdminClient;
use super::input::ConfigInput;
use super::key_sets;
use super::output::{self, Ending};
use crate::clock::{Clock, ManualClock, SystemClock};
use crate::config::{self, Config, Listener};
use crate::engine::{Decision, Engine, Generation, LimitVerdict, Outcome};
use crate::http::{
    FieldRules, Head, HeadBounds, RejectReason, ServedHosts, https_location, redirect, validate,
};
use crate::policy::key::KeyPart;
use crate::policy::{ConditionResults, Facts, KeySpec, LimitIndex, Route, Source};
use listener::{Arrival, ArrivalAtListener};

/// A request on the command line.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The configuration; - is standard input.
    #[arg(short, long, value_name = "FILE")]
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
    /// The listener that the request comes to. Without it, one that fits the scheme and the port of the URL.
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// A file with the keys at a jwks_url, as often as needed: URL=FILE. Nothing is fetched here.
    #[arg(long = "jwks", value_name = "URL=FILE")]
    key_files: Vec<String>,
    /// The admin API of a running process, which is asked what each key has spent: http://127.0.0.1:9900.
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The file with the token for --admin. Without it, that of the configuration.
    #[arg(long, value_name = "FILE", requires = "admin")]
    token_file: Option<PathBuf>,
    /// Answer in JSON.
    #[arg(long)]
    json: bool,
    /// The method, for example GET.
    method: String,
    /// The URL, for example https://api.example.com/api/track.
    url: String,
}

/// Explains. It succeeds whatever the decision is, and refuses a request that cannot be read.
pub(super) fn explain(args: &ExplainArgs) -> Ending {
    let loaded = match ConfigInput::open(&args.config).and_then(|input| input.load()) {
        Ok(loaded) => loaded,
        Err(errors) => {
            output::complain(&errors.to_string());
            return Ending::Refused;
        }
    };
    let explained = key_sets::install_files(&args.key_files, &loaded.config.policy.key_sets)
        .and_then(|()| admin_client(args, &loaded.config))
        .and_then(|node| {
            let request = ExplainedRequest::read(args, &loaded.config.listeners)?;
            request.explain(loaded.config, node.as_ref())
        });
    match explained {
        Ok(explanation) if args.json => {
            output::answer(&format!("{:#}\n", explanation.json), Ending::Success)
        }
        Ok(explanation) => {
            let text = format!("{}{}", text::lines(&explanation.json), explanation.earlier_routes);
            output::answer(&text, Ending::Success)
        }
        Err(why) => output::refuse("explain", &why),
    }
}

/// What asks the running process, if one is given. The token of the configuration is that of the process, as a rule.
fn admin_client(args: &ExplainArgs, config: &Config) -> Result<Option<AdminClient>, String> {
    let Some(url) = &args.admin else {
        return Ok(None);
    };
    let token = config.admin.as_ref().and_then(|admin| admin.token.as_deref());
    AdminClient::new(url, args.token_file.as_deref(), token).map(Some)
}

/// What is printed.
struct Explanation {
    json: Value,
    /// Why earlier routes do not match, as lines: of many, those that may have been expected.
    earlier_routes: String,
}

/// A request as it would be transmitted.
struct ExplainedRequest {
    peer: IpAddr,
    arrival: ArrivalAtListener,
    method: Method,
    target: String,
    headers: HeaderMap,
}

impl ExplainedRequest {
    fn read(args: &ExplainArgs, listeners: &[Listener]) -> Result<Self, String> {
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
        let arrival = Arrival {
            url: &url,
            listener: args.listener.as_deref(),
            tls_client: args.tls_client.as_deref(),
        };
        let arrival = arrival.at(listeners)?;
        Ok(Self { peer: args.ip, arrival, method, target, headers })
    }

    fn explain(&self, config: Config, node: Option<&AdminClient>) -> Result<Explanation, String> {
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
                return Ok(self.rejection(reason));
            }
        };
        let clock = SystemClock::new();
        let conditions = ConditionResults::default();
        let facts = clean.facts(
            config.clients.client(self.peer, &self.headers),
            &self.arrival.connection,
            clock.date(clock.now()),
            &self.method,
            &self.headers,
            &conditions,
        );
        let served = ServedHosts::of(&config.policy);
        match https_location(&clean, &facts, &served, config.default_responses.exempt) {
            Ok(None) => {}
            Ok(Some(location)) => return Ok(self.redirection(&location)),
            Err(reason) => return Ok(self.rejection(reason)),
        }
        let origins: Vec<Arc<str>> =
            config.origins.iter().map(|origin| origin.name.clone()).collect();
        let clock = Arc::new(ManualClock::new(facts.now));
        let engine = Engine::new(clock, node::SECRET);
        let (generation, _) = engine.generation(config.policy, None);
        key_sets::check(generation.policy(), &facts)?;
        let (decision, _) = engine.decide_now(&generation, &facts);
        let explained = ExplainedDecision {
            generation: &generation,
            decision: &decision,
            facts: &facts,
            origins: &origins,
            arrival: &self.arrival,
            node,
        };
        Ok(explained.explanation())
    }

    /// A request that is refused before it is decided.
    fn rejection(&self, reason: RejectReason) -> Explanation {
        let json = json!({
            "listener": self.arrival.json(),
            "decision": "rejected",
            "status": reason.status(),
            "reason": reason.name(),
        });
        Explanation { json, earlier_routes: String::new() }
    }

    /// A request that its listener sends to https.
    fn redirection(&self, location: &str) -> Explanation {
        let json = json!({
            "listener": self.arrival.json(),
            "decision": "redirected",
            "status": redirect(&self.method, location, "").status.as_u16(),
            "location": location,
        });
        Explanation { json, earlier_routes: String::new() }
    }
}

/// A decision with what it was made from.
struct ExplainedDecision<'e> {
    generation: &'e Generation,
    decision: &'e Decision,
    facts: &'e Facts<'e>,
    origins: &'e [Arc<str>],
    arrival: &'e ArrivalAtListener,
    /// The process that is asked what keys have spent.
    node: Option<&'e AdminClient>,
}

impl ExplainedDecision<'_> {
    fn explanation(&self) -> Explanation {
        let Self { generation, decision, facts, origins, .. } = *self;
        let policy = generation.policy();
        let earlier = why::earlier_routes(policy, decision.route, facts);
        let (word, status) = match decision.outcome {
            Outcome::Allowed => ("allowed", None),
            Outcome::Limited => ("limited", Some(429)),
            Outcome::Outage => ("the store does not answer", Some(503)),
            Outcome::NoTokenKeys { .. } => {
                ("the keys of the token have not been fetched", Some(503))
            }
            Outcome::NoRoute => ("no route", Some(404)),
            Outcome::AmbiguousPath => ("a path that origins may read in other ways", Some(400)),
            Outcome::MissingKey { status, .. } => ("missing key", Some(status)),
            Outcome::RepeatedKey { .. } => ("repeated key", Some(400)),
            Outcome::UnreadableCondition => ("a condition that cannot be known", Some(400)),
            Outcome::UnreadableKey { .. } => {
                ("a key that origins may read in other ways", Some(400))
            }
        };
        let route = decision.route.map(|route| policy.route(route));
        let limits = decision.verdicts.iter().filter_map(|verdict| Some((verdict, route?)));
        let limits = limits.map(|(verdict, route)| self.limit(verdict, route));
        let without_key = decision.outcome.limit_without_key().zip(route);
        let without_key = without_key.map(|(limit, route)| self.limit_without_key(limit, route));
        let limits: Vec<Value> = limits.chain(without_key).collect();
        let is_judged = matches!(decision.outcome, Outcome::Allowed | Outcome::Limited);
        let now = self.node.filter(|_| is_judged).map(|_| node::decision(&limits));
        let json = json!({
            "listener": self.arrival.json(),
            "client_ip": facts.client.ip.to_string(),
            "host": facts.host,
            "path": facts.path,
            "route": route.map(|route| &*route.name),
            "rewritten": route
                .and_then(|route| route.rewrite.as_ref()?.forwarded(facts.path))
                .filter(|_| decision.outcome == Outcome::Allowed),
            "origin": route.and_then(|route| origins.get(route.origin)).map(|name| &**name),
            "earlier_routes": why::earlier_routes_json(&earlier),
            "limits": limits,
            "rejected_tokens":
                route.map(|route| why::rejected_tokens_json(policy, route, facts)),
            "absent_tokens":
                route.map(|route| missing::absent_tokens_json(policy, route, facts)),
            "skipped_limits": why::skipped_limits_json(generation, decision, facts),
            "decision": word,
            "status": status,
            "unreadable_condition": unreadable::condition_json(policy, decision, facts),
            "now": now,
        });
        Explanation { json, earlier_routes: why::earlier_routes_lines(&earlier) }
    }

    /// A limit that refuses because the request has no key for it.
    fn limit_without_key(&self, limit: LimitIndex, route: &Route) -> Value {
        let limit = self.generation.policy().limit(limit);
        json!({
            "limit": &*limit.name,
            "tier": limit.count.tier().name(),
            "key": limit.key.to_string(),
            "parts": key_values(&limit.key, self.facts, route),
            "missing_key": limit.missing_key.to_string(),
            "refuses": true,
        })
    }

    /// What one limit does.
    fn limit(&self, verdict: &LimitVerdict, route: &Route) -> Value {
        let Self { generation, facts, .. } = *self;
        let policy = generation.policy();
        let limit = policy.limit(verdict.limit);
        let parts = key_values(&limit.key, facts, route);
        let now = self.node.map(|node| node::state_of(node, policy, verdict, &parts, facts.client));
        json!({
            "limit": &*limit.name,
            "tier": verdict.tier.name(),
            "key": limit.key.to_string(),
            "parts": parts,
            "missing_key": limit.missing_key.to_string(),
            "cost": verdict.cost,
            "of": verdict.verdict.limit,
            "rate": why::rate(policy, verdict, facts, route),
            "shadow": verdict.shadow,
            "refuses": verdict.refuses(),
            "now": now,
        })
    }
}

/// The values of a key, which are printed because they come from this command line.
fn key_values(key: &KeySpec, facts: &Facts<'_>, route: &Route) -> Vec<Value> {
    let value_of = |source: &Source| {
        let value = match source.part(facts, route) {
            KeyPart::Present(_) if matches!(source, Source::ClientIp) => {
                Value::from(facts.client.prefix().to_string())
            }
            KeyPart::Present(value) => Value::from(shown(source, &value)),
            KeyPart::Absent => Value::Null,
            KeyPart::Repeated => Value::from("(more than one)"),
            KeyPart::Unreadable => Value::from("(can be read in more than one way)"),
            KeyPart::Unchecked => Value::from("(not checked)"),
            KeyPart::Unknowable => Value::from("(its keys have not been fetched)"),
            KeyPart::Unrecorded => Value::from("(not in the log)"),
        };
        let absent = missing::absence(source, facts, route);
        json!({ "source": source.to_string(), "value": value, "absent": absent })
    };
    key.sources().iter().map(value_of).collect()
}

/// A value as people can read it: of a shard the bucket, and bytes that are no UTF-8 as escapes.
fn shown(source: &Source, value: &[u8]) -> String {
    match (source, <[u8; 8]>::try_from(value), str::from_utf8(value)) {
        (Source::Shard { buckets, .. }, Ok(bucket), _) => {
            format!("bucket {} of {buckets}", u64::from_be_bytes(bucket))
        }
        (_, _, Ok(text)) => text.to_owned(),
        (_, _, Err(_)) => value.escape_ascii().to_string(),
    }
}
