//! Whether the servers of a store can be used, asked once for `tollgate check --connect`.
//!
//! Each server gets a connection as a running process opens it: login, TLS, the script, a write. It charges nothing. What
//! must always hold: every question has a deadline, so that a store that does not answer delays a check by seconds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{ProtocolVersion, Value};
use tokio::time::timeout;

use super::address::{Address, Login, ServerDiscovery, StoreSettings, open_client};
use super::connection::ServerConnection;
use super::server::{Server, ServerContext};
use super::shared_store::SharedStore;
use crate::clock::Clock;

/// How long a sentinel may take to answer.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a Cluster may take until all of its slots have a server that answers.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(2);

/// The servers that cannot be used, by address, with the reason. Runs on the current Tokio runtime.
pub async fn unreachable_servers(
    settings: StoreSettings,
    clock: Arc<dyn Clock>,
) -> Vec<(String, String)> {
    let context = Arc::new(ServerContext::new(settings.clone(), Arc::clone(&clock)));
    match &settings.servers.clone() {
        ServerDiscovery::Single(address) => reason(address, &context).await.into_iter().collect(),
        ServerDiscovery::Cluster(seeds) => {
            let reasons = join_all(seeds.iter().map(|seed| reason(seed, &context))).await;
            let reasons: Vec<_> = reasons.into_iter().flatten().collect();
            if reasons.is_empty() { cluster_reason(seeds, settings, clock).await } else { reasons }
        }
        ServerDiscovery::Sentinel { addresses, master, login } => {
            let asked = addresses.iter().map(|sentinel| {
                let context = &context;
                async move { (sentinel, ask_sentinel(sentinel, master, login, context).await) }
            });
            let (mut reasons, mut masters) = (Vec::new(), Vec::new());
            for (sentinel, answer) in join_all(asked).await {
                match answer {
                    Ok(master) if masters.contains(&master) => {}
                    Ok(master) => masters.push(master),
                    Err(why) => reasons.push((sentinel.to_string(), why)),
                }
            }
            let unusable = join_all(masters.iter().map(|master| reason(master, &context))).await;
            reasons.extend(unusable.into_iter().flatten());
            reasons
        }
    }
}

/// Why a server that keeps cells cannot be used.
async fn reason(address: &Address, context: &Arc<ServerContext>) -> Option<(String, String)> {
    let server = Arc::new(Server::new(address.clone(), Arc::clone(context)));
    let opened = ServerConnection::open(&server).await;
    opened.err().map(|error| (address.to_string(), error.why))
}

/// Why a Cluster cannot be used although the servers that were asked can.
async fn cluster_reason(
    seeds: &[Address],
    settings: StoreSettings,
    clock: Arc<dyn Clock>,
) -> Vec<(String, String)> {
    let store = SharedStore::start(settings, clock);
    if store.wait_until_up(CLUSTER_TIMEOUT).await {
        return Vec::new();
    }
    let why = "it is no Cluster, or a slot has no server that answers (CLUSTER SLOTS)";
    seeds.first().map(|seed| (seed.to_string(), why.to_owned())).into_iter().collect()
}

/// The master that a sentinel names, or why it names none.
async fn ask_sentinel(
    sentinel: &Address,
    master: &str,
    login: &Login,
    context: &ServerContext,
) -> Result<Address, String> {
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(master);
    let asking = async {
        let client = open_client(sentinel, login, context.tls.as_ref(), ProtocolVersion::RESP2)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        question.query_async::<Value>(&mut connection).await
    };
    let answer = timeout(SENTINEL_TIMEOUT, asking).await;
    let answer = answer.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
    let named: Option<(String, u16)> =
        redis::from_redis_value(answer).map_err(|error| format!("it is no sentinel: {error}"))?;
    let (host, port) = named.ok_or_else(|| format!("it knows no master {master:?}"))?;
    Ok(Address::Tcp(host, port))
}
