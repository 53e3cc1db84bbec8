//! `tollgate check`: every mistake of a configuration, or what it promises.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::config::{
    self, Config, LoadedConfig, MethodOverride, RedisServers, StoreConfig, Underscores,
};
use crate::policy::{Cost, HostPattern, Mode, Route, RouteMatch};

mod limit;
mod memory;

use limit::tell_limit;
use memory::tell_memory;

/// Checks every file; says whether all are valid. What cannot be written is nobody's to read.
pub fn check(files: &[PathBuf], out: &mut dyn Write) -> bool {
    let mut all_valid = true;
    for file in files {
        let told = match config::load(file) {
            Ok(loaded) => tell(out, &file.display().to_string(), &loaded),
            Err(errors) => {
                all_valid = false;
                errors.lines().iter().try_for_each(|line| writeln!(out, "{line}"))
            }
        };
        if told.is_err() {
            return all_valid;
        }
    }
    all_valid
}

fn tell(out: &mut dyn Write, file: &str, loaded: &LoadedConfig) -> io::Result<()> {
    let config = &loaded.config;
    writeln!(out, "{file}: valid")?;
    for warning in &loaded.warnings {
        writeln!(out, "{warning}")?;
    }
    tell_clients(out, config)?;
    tell_memory(out, config)?;
    tell_store(out, config)?;
    writeln!(out, "\nroutes (the first that matches)")?;
    let rows = config.policy.routes.iter().map(|route| route_row(config, route));
    table(out, &["route", "matches", "limits", "origin"], rows.collect())?;
    writeln!(out, "\nlimits")?;
    for limit in &config.policy.limits {
        tell_limit(out, config, limit)?;
    }
    writeln!(out)
}

fn route_row(config: &Config, route: &Route) -> Vec<String> {
    let policy = &config.policy;
    let limits = route.limits.iter().map(|one| {
        let limit = policy.limit(one.limit);
        let shadow = if limit.mode == Mode::Shadow { " (shadow)" } else { "" };
        let cost = match &one.cost {
            Cost::Fixed(1) => String::new(),
            Cost::Fixed(cost) => format!(" x{cost}"),
            Cost::Request { header, .. } => format!(" x {header}"),
            Cost::Response { header, .. } => format!(" x {header} of the answer"),
        };
        format!("{}{cost}{shadow}", limit.name)
    });
    let limits: Vec<String> = limits.collect();
    vec![
        route.name.to_string(),
        matches(&route.matches),
        if limits.is_empty() { "none: never waits".to_owned() } else { limits.join(", ") },
        config.origins.get(route.origin).map_or("", |origin| &origin.name).to_owned(),
    ]
}

fn matches(matches: &RouteMatch) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(matches.methods.iter().map(str::to_owned));
    parts.extend(matches.hosts.iter().map(|host| match host {
        HostPattern::Exact(host) => host.to_string(),
        HostPattern::Below(domain) => format!("*.{domain}"),
    }));
    parts.extend(matches.paths.iter().map(ToString::to_string));
    parts.extend(
        matches
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))),
    );
    parts.extend(matches.clients.iter().map(|net| format!("from {net}")));
    if parts.is_empty() { "everything".to_owned() } else { parts.join(" ") }
}

/// Who the clients are, and which fields of theirs are forwarded that others refuse.
fn tell_clients(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    let networks: Vec<String> =
        config.clients.trusted_proxies.iter().map(ToString::to_string).collect();
    let told = match (&config.clients.address_header, &*networks) {
        (_, []) => return tell_fields(out, config),
        (None, _) => "the peer, whatever it says".to_owned(),
        (Some(header), networks) => format!("{header} of {}, else the peer", networks.join(", ")),
    };
    writeln!(out, "\nclients\n  address: {told}")?;
    tell_fields(out, config)
}

fn tell_fields(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    if config.bounds.underscores == Underscores::Pass {
        writeln!(out, "\nfields with _ are forwarded: an origin may take X_Api_Key for X-Api-Key")?;
    }
    if config.bounds.method_override == MethodOverride::Pass {
        writeln!(out, "\nfields that name another method are forwarded, which no limit sees")?;
    }
    Ok(())
}

/// Where the exact tier counts, and which limits share a slot there.
fn tell_store(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    let StoreConfig::Redis(redis) = &config.store else {
        return Ok(());
    };
    let (kind, many) = match &redis.servers {
        RedisServers::One(_) => ("one server", 1),
        RedisServers::Cluster(urls) => ("a Cluster, found by", urls.len()),
        RedisServers::Sentinel { urls, .. } => {
            ("the master that sentinels name, asked of", urls.len())
        }
    };
    writeln!(out, "\nstore\n  redis: {kind} ({many}), {:?} for a decision", redis.timeout)?;
    if matches!(redis.servers, RedisServers::Cluster(_)) {
        for family in config.policy.families() {
            let members = family.members.iter().map(|n| &*config.policy.limits[*n].name);
            let members: Vec<&str> = members.collect();
            let key = config.policy.limits[family.members[0]].key.sources();
            let parts: Vec<String> =
                key[..family.common_sources].iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "  family {}: one slot for each {}",
                members.join(", "),
                parts.join(", ")
            )?;
        }
    }
    Ok(())
}

/// Columns as wide as their widest cell.
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
