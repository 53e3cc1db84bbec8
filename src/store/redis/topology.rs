//! Which servers a store has, and which of them holds a slot.
//!
//! A Cluster reports its slots, and sentinels name their master. Both are asked again when a server goes away or comes
//! back, when a server names another one, and at intervals. This module does not know calls. A request never waits for
//! an answer: it uses the last known owners, which are replaced as one value.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{ProtocolVersion, Value};
use tokio::time::timeout;

use super::address::{Address, Login, ServerDiscovery, open_client};
use super::server::{Server, ServerContext};
use super::slots::SLOTS;

/// Refresh interval while all servers are up; finds changes that no reply mentions.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// Refresh interval while a server is away.
const REFRESH_EVERY_WHILE_AWAY: Duration = Duration::from_millis(200);

/// How long a refresh waits after a notification, because many replies may mention the same change.
const NOTIFICATION_DELAY: Duration = Duration::from_millis(20);

/// How long a sentinel or a seed may take to answer.
const DISCOVERY_TIMEOUT: Duration = Duration::from_millis(500);

/// The servers of a store.
pub(super) struct Topology {
    discovery: ServerDiscovery,
    context: Arc<ServerContext>,
    owners: ArcSwap<SlotOwners>,
    /// Every server that holds a slot, and those that another server has named since the last refresh.
    known: Mutex<HashMap<Address, Arc<Server>>>,
}

/// The server of each slot, as last known.
struct SlotOwners {
    /// By slot; a single element where there are no slots.
    by_slot: Box<[Option<Arc<Server>>]>,
}

/// A range of slots and the master that holds it.
struct SlotRange {
    first: u16,
    last: u16,
    master: Address,
}

impl SlotOwners {
    fn single(server: Option<Arc<Server>>) -> Self {
        Self { by_slot: Box::new([server]) }
    }
}

impl Topology {
    /// Begins to connect, on the current runtime.
    pub(super) fn start(discovery: ServerDiscovery, context: Arc<ServerContext>) -> Arc<Self> {
        let topology = Arc::new(Self {
            discovery,
            context,
            owners: ArcSwap::from_pointee(SlotOwners::single(None)),
            known: Mutex::default(),
        });
        match &topology.discovery {
            ServerDiscovery::Single(address) => {
                let server = topology.find_or_add_server(address);
                topology.owners.store(Arc::new(SlotOwners::single(Some(server))));
            }
            ServerDiscovery::Cluster(_) | ServerDiscovery::Sentinel { .. } => {
                tokio::spawn(keep_fresh(Arc::downgrade(&topology)));
            }
        }
        topology
    }

    /// Whether cells lie in slots.
    pub(super) const fn has_slots(&self) -> bool {
        matches!(self.discovery, ServerDiscovery::Cluster(_))
    }

    /// The server that holds a slot, if it is known.
    pub(super) fn server_of_slot(&self, slot: u16) -> Option<Arc<Server>> {
        let owners = self.owners.load();
        let index = if owners.by_slot.len() == 1 { 0 } else { usize::from(slot) };
        owners.by_slot.get(index)?.clone()
    }

    /// The server at an address. A new one begins to connect.
    pub(super) fn find_or_add_server(&self, address: &Address) -> Arc<Server> {
        let mut known = self.known.lock();
        let start = || Server::start(address.clone(), Arc::clone(&self.context));
        Arc::clone(known.entry(address.clone()).or_insert_with(start))
    }

    /// Records that another server holds a slot, and returns that server.
    pub(super) fn record_move(&self, slot: u16, to: &Address) -> Arc<Server> {
        let server = self.find_or_add_server(to);
        self.owners.rcu(|owners| {
            let mut by_slot = owners.by_slot.clone();
            if let Some(owner) = by_slot.get_mut(usize::from(slot)) {
                *owner = Some(Arc::clone(&server));
            }
            SlotOwners { by_slot }
        });
        self.context.readiness_changed.notify_waiters();
        self.context.refresh_topology.notify_one();
        server
    }

    /// Whether every slot has a server and every such server answers.
    pub(super) fn is_up(&self) -> bool {
        let owners = self.owners.load();
        let mut last: Option<&Arc<Server>> = None;
        owners.by_slot.iter().all(|server| {
            let Some(server) = server else {
                return false;
            };
            // Neighbours mostly have the same server.
            let is_same = last.is_some_and(|last| Arc::ptr_eq(last, server));
            last = Some(server);
            is_same || server.is_up()
        })
    }

    /// Every known server.
    pub(super) fn servers(&self) -> Vec<Arc<Server>> {
        self.known.lock().values().cloned().collect()
    }

    async fn refresh(&self) {
        match &self.discovery {
            ServerDiscovery::Single(_) => {}
            ServerDiscovery::Cluster(seeds) => self.refresh_slots(seeds).await,
            ServerDiscovery::Sentinel { addresses, master, login } => {
                self.refresh_master(addresses, master, login).await;
            }
        }
    }

    /// Asks the known servers for the slots, and the seeds if none of them answers.
    async fn refresh_slots(&self, seeds: &[Address]) {
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        for server in self.servers().iter().filter(|server| server.is_up()) {
            if let Some(answer) = server.ask(&question).await
                && self.apply_slots(&answer, &server.address)
            {
                return;
            }
        }
        for seed in seeds {
            if let Some(answer) = self.ask(seed, &self.context.login, &question).await
                && self.apply_slots(&answer, seed)
            {
                return;
            }
        }
    }

    /// Asks the sentinels for the master, until one answers.
    async fn refresh_master(&self, sentinels: &[Address], master: &str, login: &Login) {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(master);
        for sentinel in sentinels {
            let answer = self.ask(sentinel, login, &question).await;
            let answer: Option<(String, u16)> =
                answer.and_then(|answer| redis::from_redis_value(answer).ok());
            let Some(address) = answer.and_then(|(host, port)| Address::named(&host, port)) else {
                continue;
            };
            let is_same = self.server_of_slot(0).is_some_and(|server| server.address == address);
            if !is_same {
                log::info!("the sentinel at {sentinel} names {address} as master {master}");
                let server = self.find_or_add_server(&address);
                self.known.lock().retain(|known, _| *known == address);
                self.owners.store(Arc::new(SlotOwners::single(Some(server))));
                self.context.readiness_changed.notify_waiters();
            }
            return;
        }
    }

    /// Asks a server to which there is no connection.
    async fn ask(&self, address: &Address, login: &Login, question: &redis::Cmd) -> Option<Value> {
        let asking = async {
            let tls = self.context.tls.as_ref();
            let client = open_client(address, login, tls, ProtocolVersion::RESP2).ok()?;
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            connection.send_packed_command(question).await.ok()
        };
        timeout(DISCOVERY_TIMEOUT, asking).await.ok().flatten()
    }

    /// Applies an answer to `CLUSTER SLOTS`. Returns whether it names any slot; otherwise nothing changes.
    fn apply_slots(&self, answer: &Value, sender: &Address) -> bool {
        let Value::Array(ranges) = answer else {
            return false;
        };
        let mut by_slot: Box<[Option<Arc<Server>>]> = vec![None; SLOTS].into();
        let mut has_ranges = false;
        for range in ranges.iter().filter_map(|range| SlotRange::parse(range, sender)) {
            let server = self.find_or_add_server(&range.master);
            server.set_probe_slot(range.first);
            let (first, last) = (usize::from(range.first), usize::from(range.last));
            for owner in by_slot.iter_mut().take(last + 1).skip(first) {
                *owner = Some(Arc::clone(&server));
            }
            has_ranges = true;
        }
        if has_ranges {
            let is_owner = |address: &Address| {
                by_slot.iter().flatten().any(|server| server.address == *address)
            };
            self.known.lock().retain(|address, _| is_owner(address));
            self.owners.store(Arc::new(SlotOwners { by_slot }));
            self.context.readiness_changed.notify_waiters();
        }
        has_ranges
    }
}

impl SlotRange {
    /// An element of the answer to `CLUSTER SLOTS`: `[first, last, [host, port, ..], replica ..]`. A server may leave
    /// out its own host (the `sender`), as an empty text, nil or `?`.
    fn parse(range: &Value, sender: &Address) -> Option<Self> {
        let Value::Array(elements) = range else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = elements.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = master.as_slice() else {
            return None;
        };
        let host: Option<String> = redis::from_redis_value(host.clone()).ok()?;
        let named = format!("{}:{port}", host.filter(|host| host != "?").unwrap_or_default());
        let slot = |number: &i64| u16::try_from(*number).ok().filter(|n| usize::from(*n) < SLOTS);
        let master = Address::from_server(&named, sender)?;
        Some(Self { first: slot(first)?, last: slot(last)?, master })
    }
}

/// Refreshes the topology until it is dropped.
async fn keep_fresh(topology: Weak<Topology>) {
    loop {
        let Some(held) = topology.upgrade() else {
            return;
        };
        held.refresh().await;
        let wait = if held.is_up() { REFRESH_EVERY } else { REFRESH_EVERY_WHILE_AWAY };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = held.context.refresh_topology.notified() => {
                tokio::time::sleep(NOTIFICATION_DELAY).await;
            }
        }
    }
}
