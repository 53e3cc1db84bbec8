//! The report of `tollgate check --json`. docs/src/commands.md describes its members: more may be added, none is renamed.

use serde_json::{Value, json};

use super::CheckedFile;
use super::limit::{LimitFact, limit_facts};
use super::report::matches;
use crate::config::{Config, ConfigError, ConfigErrors, Warning};
use crate::policy::{Limit, Mode, Route};
use crate::server::DescriptorShortage;

/// The report of all files, with a line end.
pub(super) fn report(files: &[CheckedFile], accepted: bool) -> String {
    let files: Vec<Value> = files.iter().map(file).collect();
    format!("{:#}\n", json!({ "accepted": accepted, "files": files }))
}

fn file(checked: &CheckedFile) -> Value {
    let errors = checked.errors.as_ref().map(errors).unwrap_or_default();
    let config = checked.config.as_ref();
    let list = |items: fn(&Config) -> Vec<Value>| config.map(items).unwrap_or_default();
    json!({
        "file": checked.file,
        "valid": checked.errors.is_none(),
        "errors": errors,
        "warnings": checked.warnings.iter().map(warning).collect::<Vec<_>>(),
        "addresses": config.map(|config| addresses(config, checked)).unwrap_or_default(),
        "descriptors": checked.rehearsal.shortage.map(shortage),
        "routes": list(|config| {
            config.policy.routes.iter().map(|route| self::route(config, route)).collect()
        }),
        "limits": list(|config| {
            config.policy.limits.iter().map(|limit| self::limit(config, limit)).collect()
        }),
    })
}

fn errors(errors: &ConfigErrors) -> Vec<Value> {
    let error = |error: &ConfigError| {
        json!({
            "file": error.file.as_ref().unwrap_or(&errors.file),
            "line": error.location.map(|at| at.line),
            "column": error.location.map(|at| at.column),
            "path": error.path,
            "message": error.message,
            "cure": error.cure,
        })
    };
    errors.errors.iter().map(error).collect()
}

fn warning(warning: &Warning) -> Value {
    json!({
        "code": warning.code,
        "file": warning.file,
        "line": warning.location.line,
        "column": warning.location.column,
        "path": warning.path,
        "message": warning.message,
        "cure": warning.cure,
    })
}

fn shortage(shortage: DescriptorShortage) -> Value {
    let DescriptorShortage { max_connections, needed, allowed, connections, exchanges } = shortage;
    json!({
        "max_connections": max_connections,
        "needed": needed,
        "allowed": allowed,
        "connections": connections,
        "exchanges": exchanges,
    })
}

fn addresses(config: &Config, checked: &CheckedFile) -> Vec<Value> {
    let listeners = config.listeners.iter().map(|listener| {
        let kind = if listener.certificates.is_empty() { "http" } else { "https" };
        (listener.address, listener.name.as_deref(), kind)
    });
    let admin = config.admin.iter().map(|admin| (admin.address, None, "admin"));
    let address = |(address, name, kind): (std::net::SocketAddr, Option<&str>, &str)| {
        let in_use = checked.rehearsal.in_use.contains(&address);
        json!({ "address": address.to_string(), "name": name, "kind": kind, "in_use": in_use })
    };
    listeners.chain(admin).map(address).collect()
}

fn route(config: &Config, route: &Route) -> Value {
    let limits = route.limits.iter().map(|route_limit| {
        let limit = config.policy.limit(route_limit.limit);
        json!({ "limit": &*limit.name, "cost": route_limit.cost.to_string() })
    });
    json!({
        "name": &*route.name,
        "matches": matches(&route.matches),
        "limits": limits.collect::<Vec<_>>(),
        "origin": config.origins.get(route.origin).map(|origin| &*origin.name),
    })
}

fn limit(config: &Config, limit: &Limit) -> Value {
    let facts = limit_facts(config, limit).0.into_iter().map(
        |LimitFact { label, name, text }| json!({ "fact": label, "name": name, "text": text }),
    );
    json!({
        "name": &*limit.name,
        "tier": limit.count.tier().name(),
        "mode": if limit.mode == Mode::Shadow { "shadow" } else { "enforce" },
        "key": limit.key.to_string(),
        "facts": facts.collect::<Vec<_>>(),
    })
}
