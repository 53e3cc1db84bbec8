//! Which servers there are, and which of them keeps what.
//!
//! A Cluster tells its slots; sentinels tell their master. Both are asked again when a server
//! fails, when one names another, and every now and then. A request never waits for that.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{ProtocolVersion, Value};
use tokio::time::timeout;

use super::address::{Address, Login, ServerDiscovery, open_client};
use super::server::{Common, Server};
use super::slots::SLOTS;

/// Between two looks while all is well: a change that no answer tells of is found so.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between two looks while a server is away.
const HURRY: Duration = Duration::from_millis(200);

/// How long a sentinel or a seed may take.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// The servers of now. Replaced whole.
pub(super) struct Layout {
    /// By slot; one entry for all where there are no slots.
    by_slot: Box<[Option<Arc<Server>>]>,
}

/// Knows the servers.
pub(super) struct Topology {
    servers: ServerDiscovery,
    common: Arc<Common>,
    layout: ArcSwap<Layout>,
    /// Every server that was heard of, while it is in use.
    known: Mutex<HashMap<Address, Arc<Server>>>,
}

impl Topology {
    pub(super) fn start(servers: ServerDiscovery, common: Arc<Common>) -> Arc<Self> {
        let layout = Layout { by_slot: Box::new([None]) };
        let topology = Arc::new(Self {
            servers,
            common,
            layout: ArcSwap::from_pointee(layout),
            known: Mutex::default(),
        });
        match &topology.servers {
            ServerDiscovery::Single(address) => {
                let server = topology.server(address);
                topology.layout.store(Arc::new(Layout { by_slot: Box::new([Some(server)]) }));
            }
            ServerDiscovery::Cluster(_) | ServerDiscovery::Sentinel { .. } => {
                tokio::spawn(look_after(Arc::downgrade(&topology)));
            }
        }
        topology
    }

    /// Whether cells lie in slots.
    pub(super) const fn has_slots(&self) -> bool {
        matches!(self.servers, ServerDiscovery::Cluster(_))
    }

    /// Who keeps a slot.
    pub(super) fn of_slot(&self, slot: u16) -> Option<Arc<Server>> {
        let layout = self.layout.load();
        let index = if layout.by_slot.len() == 1 { 0 } else { usize::from(slot) };
        layout.by_slot.get(index)?.clone()
    }

    /// The server at an address, heard of or new.
    pub(super) fn server(&self, address: &Address) -> Arc<Server> {
        let mut known = self.known.lock();
        let start = || Server::start(address.clone(), Arc::clone(&self.common));
        Arc::clone(known.entry(address.clone()).or_insert_with(start))
    }

    /// A server says that a slot is elsewhere.
    pub(super) fn moved(&self, slot: u16, to: &Address) -> Arc<Server> {
        let server = self.server(to);
        self.layout.rcu(|layout| {
            let mut by_slot = layout.by_slot.clone();
            if let Some(keeper) = by_slot.get_mut(usize::from(slot)) {
                *keeper = Some(Arc::clone(&server));
            }
            Layout { by_slot }
        });
        self.common.changed.notify_waiters();
        self.common.look_again.notify_one();
        server
    }

    /// Whether every server that keeps something answers.
    pub(super) fn is_up(&self) -> bool {
        let layout = self.layout.load();
        let mut last: Option<&Arc<Server>> = None;
        layout.by_slot.iter().all(|server| {
            let Some(server) = server else {
                return false;
            };
            let seen = last.is_some_and(|last| Arc::ptr_eq(last, server));
            last = Some(server);
            seen || server.is_up()
        })
    }

    /// Every server that is in use.
    pub(super) fn servers(&self) -> Vec<Arc<Server>> {
        self.known.lock().values().cloned().collect()
    }

    async fn look(&self) {
        match &self.servers {
            ServerDiscovery::Single(_) => {}
            ServerDiscovery::Cluster(seeds) => self.look_at_slots(seeds).await,
            ServerDiscovery::Sentinel { addresses, master, login } => {
                self.look_for_master(addresses, master, login).await;
            }
        }
    }

    async fn look_at_slots(&self, seeds: &[Address]) {
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let known = self.servers();
        let up = known.iter().filter(|server| server.is_up());
        for server in up {
            if let Some(told) = server.ask(&ask).await
                && self.take_slots(&told, &server.address)
            {
                return;
            }
        }
        for seed in seeds {
            if let Some(told) = self.ask(seed, &self.common.login, &ask).await
                && self.take_slots(&told, seed)
            {
                return;
            }
        }
    }

    async fn look_for_master(&self, sentinels: &[Address], master: &str, login: &Login) {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(master);
        for sentinel in sentinels {
            let told = self.ask(sentinel, login, &ask).await;
            let told: Option<(String, u16)> =
                told.and_then(|told| redis::from_redis_value(told).ok());
            let Some((host, port)) = told else {
                continue;
            };
            let address = Address::Tcp(host, port);
            let same = self.of_slot(0).is_some_and(|server| server.address == address);
            if !same {
                log::info!("the sentinel at {sentinel} names {address} as master {master}");
                let server = self.server(&address);
                self.known.lock().retain(|known, _| *known == address);
                self.layout.store(Arc::new(Layout { by_slot: Box::new([Some(server)]) }));
                self.common.changed.notify_waiters();
            }
            return;
        }
    }

    /// Asks a server to which there is no connection.
    async fn ask(&self, address: &Address, login: &Login, cmd: &redis::Cmd) -> Option<Value> {
        let asking = async {
            let tls = self.common.tls.as_ref();
            let client = open_client(address, login, tls, ProtocolVersion::RESP2).ok()?;
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            connection.send_packed_command(cmd).await.ok()
        };
        timeout(ASK_TIMEOUT, asking).await.ok().flatten()
    }

    /// `CLUSTER SLOTS`: `[first, last, [host, port, ..], replica ..]` again and again. Says whether
    /// it told of any.
    fn take_slots(&self, told: &Value, teller: &Address) -> bool {
        let Value::Array(ranges) = told else {
            return false;
        };
        let mut by_slot: Box<[Option<Arc<Server>>]> = vec![None; SLOTS].into();
        let mut any = false;
        for range in ranges {
            let Some((first, last, address)) = range_of(range, teller) else {
                continue;
            };
            let server = self.server(&address);
            server.keeps(first);
            for keeper in by_slot.iter_mut().take(usize::from(last) + 1).skip(usize::from(first)) {
                *keeper = Some(Arc::clone(&server));
            }
            any = true;
        }
        if any {
            let kept = |address: &Address| {
                by_slot.iter().flatten().any(|server| server.address == *address)
            };
            self.known.lock().retain(|address, _| kept(address));
            self.layout.store(Arc::new(Layout { by_slot }));
            self.common.changed.notify_waiters();
        }
        any
    }
}

fn range_of(range: &Value, teller: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(parts) = range else {
        return None;
    };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else {
        return None;
    };
    let host: Option<String> = redis::from_redis_value(host.clone()).ok()?;
    let named = format!("{}:{port}", host.filter(|host| host != "?").unwrap_or_default());
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|n| usize::from(*n) < SLOTS);
    Some((slot(first)?, slot(last)?, Address::from_server(&named, teller)?))
}

/// Looks again and again, until nobody holds the topology any more.
async fn look_after(topology: Weak<Topology>) {
    loop {
        let Some(held) = topology.upgrade() else {
            return;
        };
        held.look().await;
        let wait = if held.is_up() { LOOK_EVERY } else { HURRY };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // Many may say the same at once.
            () = held.common.look_again.notified() => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}
