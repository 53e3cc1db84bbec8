//! What a limit promises, as `check` tells it.

use std::io::{self, Write};

use crate::clock::{Nanos, Now};
use crate::config::{Config, StoreConfig};
use crate::limit::{Quota, SketchSize, WindowLengths, log_bytes};
use crate::policy::{
    Cost, Count, Limit, LimitIndex, MissingKey, Mode, OnStoreFailure, OverrideAction,
    OverrideTarget, Policy, Rollout, WhenFull,
};
use crate::store::CELL_BYTES;

/// Lines of one limit, each with its name.
struct Told<'o>(&'o mut dyn Write);

impl Told<'_> {
    fn line(&mut self, name: &str, text: impl AsRef<str>) -> io::Result<()> {
        writeln!(self.0, "    {name:<12} {}", text.as_ref())
    }
}

pub(super) fn tell_limit(out: &mut dyn Write, config: &Config, limit: &Limit) -> io::Result<()> {
    let shadow = if limit.mode == Mode::Shadow { ", shadow: refuses nothing" } else { "" };
    writeln!(out, "  {} ({}{shadow})", limit.name, limit.count.tier().name())?;
    let mut told = Told(out);
    told.line("key", limit.key.to_string())?;
    if limit.missing_key != MissingKey::Impossible {
        told.line("missing key", missing(&config.policy, limit.missing_key))?;
    }
    match &limit.count {
        Count::Exact { quota, .. } => tell_exact(&mut told, config, limit, quota)?,
        Count::Estimate { .. } => tell_estimate(&mut told, limit)?,
        Count::InFlight { max } => {
            told.line("promise", format!("at most {max} at once of each key, on each node"))?;
            told.line("memory", "as many cells as keys have requests in flight")?;
        }
    }
    tell_costs(&mut told, config, limit)?;
    tell_terms(&mut told, limit)
}

/// Whether what the limit is charged may be given back.
fn may_return(policy: &Policy, limit: &Limit) -> bool {
    let late = policy.limits_with_response_cost();
    limit.status_rules.depends_on_status()
        || late.iter().any(|one| policy.limit(*one).name == limit.name)
}

fn tell_exact(
    told: &mut Told<'_>,
    config: &Config,
    limit: &Limit,
    quota: &Quota,
) -> io::Result<()> {
    let Count::Exact { when_full, max_keys, on_store_failure, .. } = &limit.count else {
        return Ok(());
    };
    told.line("promise", format!("{}: {quota}", quota.name()))?;
    let windows = WindowLengths::of(std::iter::once(quota).chain(&limit.terms.quotas));
    if windows.lengths().len() > 1 {
        let lengths: Vec<String> = windows.lengths().iter().map(|one| format!("{one:?}")).collect();
        told.line("windows", format!("{}: every charge counts in each", lengths.join(", ")))?;
    }
    let most = max_keys.unwrap_or(config.policy.max_keys).min(config.policy.max_keys);
    let full = match when_full {
        WhenFull::Estimate => "new keys are counted in the estimate tier",
        WhenFull::Deny => "new keys are refused",
        WhenFull::Allow => "new keys pass uncounted",
    };
    let mib = (most * CELL_BYTES).div_ceil(1 << 20);
    let own = match quota {
        Quota::SlidingLog(_) => {
            let longest = limit.terms.quotas.iter().map(Quota::limit).fold(quota.limit(), u32::max);
            let full = CELL_BYTES + log_bytes(longest as usize);
            let few = CELL_BYTES + log_bytes(1);
            format!(
                "about {few} bytes for each live key, {full} with a full log; {mib} MiB at most"
            )
        }
        _ => {
            // Of any instant: how much a cell takes depends on none.
            let now = Now { mono: Nanos::ZERO, wall: Nanos::ZERO };
            let returns = may_return(&config.policy, limit);
            let cell = quota.with_refunds(returns).empty_cell_for(&windows, now);
            let bytes = CELL_BYTES + cell.heap_bytes_after_charge(now);
            let more = match (windows.buckets() > 1, bytes > CELL_BYTES) {
                (false, false) => format!("{mib} MiB at {most}"),
                (true, _) => format!("more once it has met several rates; {mib} MiB at most"),
                (false, true) => format!("{mib} MiB at most"),
            };
            format!("about {bytes} bytes for each live key, {more}")
        }
    };
    if config.store == StoreConfig::Embedded {
        told.line("memory", own)?;
        return told.line("when full", format!("above {most} live keys {full}"));
    }
    told.line("memory", "about 180 bytes of the store for each live key")?;
    told.line("store away", away(*on_store_failure, quota.limit()))?;
    if *on_store_failure == OnStoreFailure::Local {
        told.line("meanwhile", format!("{own}; above that {full}"))?;
    }
    Ok(())
}

fn tell_estimate(told: &mut Told<'_>, limit: &Limit) -> io::Result<()> {
    let Count::Estimate { rate, expect_per_second } = &limit.count else {
        return Ok(());
    };
    let size = SketchSize::new(*rate, *expect_per_second);
    let (count, period) = (rate.count(), rate.period());
    told.line("promise", format!("about {count} in any {period:?}, on this node"))?;
    let kib = size.bytes() / 1024;
    told.line(
        "memory",
        format!("{kib} KiB for {expect_per_second} requests/s, whatever the number of keys"),
    )?;
    let over = size.expected_overcount();
    told.line(
        "error",
        format!(
            "a key that sent nothing reads about {over} of {count}; no key is denied for another"
        ),
    )
}

/// What a request costs, what of it comes back, and what becomes of who is denied too often.
fn tell_costs(told: &mut Told<'_>, config: &Config, limit: &Limit) -> io::Result<()> {
    if limit.cost != Cost::Fixed(1) {
        told.line("cost", limit.cost.to_string())?;
    }
    let place = config.policy.limits.iter().position(|one| one.name == limit.name);
    let uses = config.policy.routes.iter().flat_map(|route| &route.limits);
    let over = uses.filter(|one| Some(one.limit.0) == place).map(|one| match &one.cost {
        Cost::Response { reserve, max, .. } => max - reserve,
        Cost::Fixed(_) | Cost::Request { .. } => 0,
    });
    match over.max() {
        Some(0) if limit.cost.depends_on_response() => {
            told.line("overspend", "none: reserve is max")?
        }
        Some(over) if over > 0 => {
            told.line("overspend", format!("at most {over} for each request in flight"))?;
        }
        _ => {}
    }
    if let Some(only) = &limit.status_rules.only {
        let counts = format!("only answers {only}; reserved at the door, no answer is spent");
        told.line("counts", counts)?;
    }
    if let Some(refund) = &limit.status_rules.refund {
        told.line("refunds", format!("answers {refund}"))?;
    }
    limit.penalty.map_or(Ok(()), |rule| told.line("penalty", rule.to_string()))
}

/// For whom the limit is another one.
fn tell_terms(told: &mut Told<'_>, limit: &Limit) -> io::Result<()> {
    let terms = &limit.terms;
    if let Some(plans) = &terms.plans {
        told.line("plans by", plans.by.to_string())?;
        for (name, rate) in &plans.rates {
            if let Some(quota) = limit.quota(*rate) {
                told.line(&format!("  {name}"), quota.to_string())?;
            }
        }
    }
    for one in &terms.overrides {
        let who = match &one.target {
            OverrideTarget::Keys(keys) if keys.len() == 1 => "1 key".to_owned(),
            OverrideTarget::Keys(keys) => format!("{} keys", keys.len()),
            OverrideTarget::Network(network) => network.to_string(),
        };
        let what = match one.action {
            OverrideAction::Allow => "the limit does not apply".to_owned(),
            OverrideAction::Deny => "refused".to_owned(),
            OverrideAction::Rate(rate) => {
                limit.quota(rate).map(ToString::to_string).unwrap_or_default()
            }
        };
        told.line("override", format!("{who}: {what}"))?;
    }
    if terms.rollout != Rollout::default() {
        let share = f64::from(terms.rollout.ppm) / 10_000.0;
        let from = match terms.rollout.from {
            Nanos::ZERO => String::new(),
            from => {
                let from = std::time::UNIX_EPOCH + std::time::Duration::from(from);
                format!(" from {}", humantime::format_rfc3339_seconds(from))
            }
        };
        told.line("rollout", format!("refuses {share} % of the keys{from}, watches the others"))?;
    }
    if let Some(candidate) = &terms.candidate {
        told.line("candidate", format!("{candidate}; judged beside, refuses nothing"))?;
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
