//! The report of `tollgate check` as text.

use std::io::{self, Write};
use std::net::SocketAddr;

use super::CheckedFile;
use super::limit::{LimitFact, limit_facts};
use super::memory::write_memory;
use crate::config::{
    Admin, Config, Listener, MethodOverride, RedisServers, StoreConfig, Underscores,
};
use crate::policy::{Cost, HostPattern, Limit, Mode, PathPattern, RequestMatch, Route};
use crate::server::Rehearsal;

/// Writes the errors of a file, or what it promises; its warnings in either case.
pub(super) fn write_report(
    out: &mut dyn Write,
    checked: &CheckedFile,
    strict: bool,
) -> io::Result<()> {
    let (file, warnings) = (&checked.file, &checked.warnings);
    match &checked.errors {
        Some(errors) => {
            errors.lines().iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        None => writeln!(out, "{file}: valid")?,
    }
    for warning in warnings {
        writeln!(out, "{warning}")?;
    }
    if strict && !warnings.is_empty() {
        let number = warnings.len();
        let noun = if number == 1 { "warning" } else { "warnings" };
        writeln!(out, "{file}: refused by --strict: {number} {noun}")?;
    }
    match &checked.config {
        Some(config) if checked.errors.is_none() => write_promises(out, config, &checked.rehearsal),
        _ => Ok(()),
    }
}

fn write_promises(out: &mut dyn Write, config: &Config, rehearsal: &Rehearsal) -> io::Result<()> {
    write_addresses(out, config, &rehearsal.in_use)?;
    if let Some(shortage) = &rehearsal.shortage {
        writeln!(out, "\ndescriptors of this machine\n  {shortage}")?;
    }
    write_clients(out, config)?;
    write_memory(out, config)?;
    write_store(out, config)?;
    writeln!(out, "\nroutes (the first that matches)")?;
    let rows = config.policy.routes.iter().map(|route| route_row(config, route));
    table(out, &["route", "matches", "limits", "origin"], rows.collect())?;
    writeln!(out, "\nlimits")?;
    for limit in &config.policy.limits {
        write_limit(out, config, limit)?;
    }
    writeln!(out)
}

/// What is listened on, and which of it a program has now.
fn write_addresses(out: &mut dyn Write, config: &Config, in_use: &[SocketAddr]) -> io::Result<()> {
    writeln!(out, "\naddresses")?;
    let used = |address: &SocketAddr| match in_use.contains(address) {
        true => "in use now: by tollgate itself, or `run` cannot start",
        false => "",
    };
    let kind = |listener: &Listener| match (listener.certificates.len(), &listener.client_ca) {
        (0, _) => "http",
        (_, None) => "https",
        (_, Some(_)) => "https, asks clients for certificates",
    };
    let mut rows: Vec<Vec<String>> = Vec::new();
    for listener in &config.listeners {
        let name = listener.name.as_deref().unwrap_or("");
        let cells = [&listener.address.to_string(), name, kind(listener), used(&listener.address)];
        rows.push(cells.map(str::to_owned).to_vec());
    }
    if let Some(Admin { address, .. }) = &config.admin {
        rows.push([&address.to_string(), "", "admin", used(address)].map(str::to_owned).to_vec());
    }
    table(out, &["address", "name", "kind", ""], rows)
}

fn write_limit(out: &mut dyn Write, config: &Config, limit: &Limit) -> io::Result<()> {
    let shadow = if limit.mode == Mode::Shadow { ", shadow: refuses nothing" } else { "" };
    writeln!(out, "  {} ({}{shadow})", limit.name, limit.count.tier().name())?;
    for LimitFact { label, name, text } in limit_facts(config, limit).0 {
        let label = name.map_or_else(|| label.to_owned(), |name| format!("  {name}"));
        writeln!(out, "    {label:<12} {text}")?;
    }
    Ok(())
}

fn route_row(config: &Config, route: &Route) -> Vec<String> {
    let policy = &config.policy;
    let limits = route.limits.iter().map(|route_limit| {
        let limit = policy.limit(route_limit.limit);
        let shadow = if limit.mode == Mode::Shadow { " (shadow)" } else { "" };
        let cost = match &route_limit.cost {
            Cost::Fixed(1) => String::new(),
            Cost::Fixed(cost) => format!(" x{cost}"),
            Cost::Request { header, .. } => format!(" x {header}"),
            Cost::Response { source, .. } => format!(" x {source} of the response"),
        };
        format!("{}{cost}{shadow}", limit.name)
    });
    let limits: Vec<String> = limits.collect();
    vec![
        route.name.to_string(),
        matches(&route.matches),
        if limits.is_empty() { "none".to_owned() } else { limits.join(", ") },
        config.origins.get(route.origin).map_or("", |origin| &origin.name).to_owned(),
    ]
}

/// The conditions of a route in words.
pub(super) fn matches(matches: &RequestMatch) -> String {
    let mut conditions: Vec<String> = Vec::new();
    conditions.extend(matches.methods.iter().map(str::to_owned));
    conditions.extend(matches.hosts.iter().map(|host| match host {
        HostPattern::Exact(host) => host.to_string(),
        HostPattern::Below(domain) => format!("*.{domain}"),
    }));
    conditions.extend(matches.paths.iter().map(PathPattern::meaning));
    conditions.extend(matches.values.iter().map(ToString::to_string));
    conditions.extend(matches.clients.iter().map(|net| format!("from {net}")));
    conditions.extend(matches.listeners.iter().map(|name| format!("on {name}")));
    conditions.extend(matches.classes.iter().map(|class| format!("class {}", class.name)));
    conditions.extend(
        matches.none_of.iter().map(|excluded| format!("not ({})", self::matches(excluded))),
    );
    if conditions.is_empty() { "everything".to_owned() } else { conditions.join(" ") }
}

/// How the address of a client is determined, and which doubtful fields are forwarded.
fn write_clients(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    let networks: Vec<String> =
        config.clients.trusted_proxies.iter().map(ToString::to_string).collect();
    let rule = match (&config.clients.address_header, &*networks) {
        (_, []) => return write_fields(out, config),
        (None, _) => "that of the peer, whatever fields it sends".to_owned(),
        (Some(header), networks) => format!("{header} of {}, else the peer", networks.join(", ")),
    };
    writeln!(out, "\nclients\n  address: {rule}")?;
    write_fields(out, config)
}

fn write_fields(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    if config.bounds.underscores == Underscores::Pass {
        writeln!(out, "\nfields with _ are forwarded: an origin may take X_Api_Key for X-Api-Key")?;
    }
    if config.bounds.method_override == MethodOverride::Pass {
        writeln!(
            out,
            "\nfields that name another method are forwarded, and limits do not see that method"
        )?;
    }
    Ok(())
}

/// Where exact limits keep their counters, and which limits share a hash slot there.
fn write_store(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    let StoreConfig::Redis(redis) = &config.store else {
        return Ok(());
    };
    let (kind, servers) = match &redis.servers {
        RedisServers::Single(_) => ("one server", 1),
        RedisServers::Cluster(urls) => ("a Cluster, discovered from", urls.len()),
        RedisServers::Sentinel { urls, .. } => ("the master that sentinels monitor", urls.len()),
    };
    writeln!(
        out,
        "\nstore\n  redis: {kind} ({servers}), at most {:?} for a decision",
        redis.timeout
    )?;
    if matches!(redis.servers, RedisServers::Cluster(_)) {
        for family in config.policy.families() {
            let members = family.members.iter().map(|index| &*config.policy.limit(*index).name);
            let members: Vec<&str> = members.collect();
            let key = config.policy.limit(family.members[0]).key.sources();
            let sources: Vec<String> =
                key[..family.common_sources].iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "  family {}: one slot for each {}",
                members.join(", "),
                sources.join(", ")
            )?;
        }
    }
    Ok(())
}

/// Writes a table. A column is as wide as its widest cell.
fn table(out: &mut dyn Write, head: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(out, "  {}", line.trim_end())?;
    }
    Ok(())
}
