//! The exact tier over servers that speak the protocol of Redis: stand-ins that lie or turn a
//! clock, and real ones that these tests start, stop and break.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]
#![expect(unreachable_pub, reason = "a test binary exports nothing")]

mod ban_script;
mod batching;
mod charging;
mod cluster;
mod conformance;
mod console;
mod engines;
mod faults;
mod fleet;
mod fleet_exchange;
mod fleet_restarts;
mod lies;
mod links;
mod load;
mod logs;
mod look_up;
mod mixtures;
mod nodes;
mod operators;
mod outage_costs;
mod partition;
mod redis_servers;
mod rule_script;
mod script;
mod settling;
mod slots;
mod tokens;
mod upgrades;
mod virtual_store;
mod windows;

use support::servers;

/// What a proxy is started with: one limit by API key, in a store.
fn policy(origin: &servers::Origin, store: &str, limit: &str) -> String {
    format!(
        "{}store: {{ redis: {{ {store} }} }}
limits:
  one: {{ tier: exact, key: header:x-api-key, missing_key: deny, {limit} }}
routes: [{{ name: r, limits: [one] }}]
access_log: {{ to: none }}
check: {{ silence: [fixed-key-secret, spoofable-key] }}
",
        servers::origin_yaml(origin.address)
    )
}

/// Held by each test with servers: a machine of two cores has no room for two at once, and some
/// measure how long things take.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    ALONE.lock().await
}
