//! `tollgate check`: every mistake of a configuration, or what it promises.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::config::{self, Config, Loaded, RedisServers, Store};
use crate::limit::SketchSize;
use crate::policy::{
    Count, HostPattern, Limit, LimitIndex, Match, MissingKey, Mode, OnStoreFailure, Policy, Route,
    WhenFull,
};
use crate::store::CELL_BYTES;

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

fn tell(out: &mut dyn Write, file: &str, loaded: &Loaded) -> io::Result<()> {
    let config = &loaded.config;
    writeln!(out, "{file}: valid")?;
    for warning in &loaded.warnings {
        writeln!(out, "{warning}")?;
    }
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
        let cost = if one.cost == 1 { String::new() } else { format!(" x{}", one.cost) };
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

fn matches(matches: &Match) -> String {
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

fn tell_limit(out: &mut dyn Write, config: &Config, limit: &Limit) -> io::Result<()> {
    let shadow = if limit.mode == Mode::Shadow { ", shadow: refuses nothing" } else { "" };
    writeln!(out, "  {} ({}{shadow})", limit.name, limit.count.tier().name())?;
    let mut line = |name: &str, text: String| writeln!(out, "    {name:<12} {text}");
    line("key", limit.key.to_string())?;
    if limit.missing_key != MissingKey::Impossible {
        line("missing key", missing(&config.policy, limit.missing_key))?;
    }
    match &limit.count {
        Count::Exact { quota, when_full, max_keys, on_store_failure } => {
            line("promise", format!("{}: {quota}", quota.name()))?;
            let most = max_keys.unwrap_or(config.policy.max_keys).min(config.policy.max_keys);
            let full = match when_full {
                WhenFull::Estimate => "new keys are counted in the estimate tier",
                WhenFull::Deny => "new keys are refused",
                WhenFull::Allow => "new keys pass uncounted",
            };
            let mib = (most * CELL_BYTES).div_ceil(1 << 20);
            let own = format!("about {CELL_BYTES} bytes for each live key, {mib} MiB at {most}");
            if config.store == Store::Embedded {
                line("memory", own)?;
                line("when full", format!("above {most} live keys {full}"))?;
            } else {
                line("memory", "about 180 bytes of the store for each live key".to_owned())?;
                line("store away", away(*on_store_failure, quota.limit()))?;
                if *on_store_failure == OnStoreFailure::Local {
                    line("meanwhile", format!("{own}; above that {full}"))?;
                }
            }
        }
        Count::Estimate { rate, expect_per_second } => {
            let size = SketchSize::new(*rate, *expect_per_second);
            line(
                "promise",
                format!("about {} in any {:?}, on this node", rate.count(), rate.period()),
            )?;
            line(
                "memory",
                format!(
                    "{} KiB for {expect_per_second} requests/s, whatever the number of keys",
                    size.bytes() / 1024
                ),
            )?;
            line(
                "error",
                format!(
                    "a key that sent nothing reads about {} of {}; no key is denied for another",
                    size.expected_overcount(),
                    rate.count()
                ),
            )?;
        }
    }
    Ok(())
}

fn away(judge: OnStoreFailure, limit: u32) -> String {
    match judge {
        OnStoreFailure::Local => {
            format!("each node admits up to {limit} by itself: at most (nodes + 1) x {limit}")
        }
        OnStoreFailure::Allow => "requests pass uncounted".to_owned(),
        OnStoreFailure::Deny => "requests are answered 503".to_owned(),
    }
}

/// Where the exact tier counts, and which limits share a slot there.
fn tell_store(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    let Store::Redis(redis) = &config.store else {
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
            let parts: Vec<String> = key[..family.parts].iter().map(ToString::to_string).collect();
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

fn missing(policy: &Policy, missing: MissingKey) -> String {
    match missing {
        MissingKey::Impossible => "cannot be".to_owned(),
        MissingKey::Skip => "the limit does not apply".to_owned(),
        MissingKey::Deny(status) => format!("answered {status}"),
        MissingKey::ClientIp => "the client's address stands for it".to_owned(),
        MissingKey::Limit(LimitIndex(place)) => {
            let name = policy.limits.get(place).map_or("", |limit| &limit.name);
            format!("limit {name} applies instead")
        }
    }
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
