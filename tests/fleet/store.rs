//! The store and the links to it: the real script in an interpreter, behind delays and faults, on turned time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use support::lua::{Kept, Server};
use tollgate::store::redis::{Arguments, Readiness, StoreFailure, StoreTransport};

use super::time::{World, nanos};

/// What the exchange keeps.
const KEYS: [&str; 5] =
    ["t:{fleet}:nodes", "t:{fleet}:order", "t:{fleet}:texts", "t:{fleet}:ends", "t:{fleet}:state"];

/// What goes wrong now. The default is nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// The store answers nobody.
    pub(crate) is_down: bool,
    /// Nodes whose links are cut, one bit for each.
    pub(crate) cut: u64,
    /// How long a message takes at most in each direction.
    pub(crate) slow: Duration,
    /// Calls that the store executes and whose replies are lost, in percent.
    pub(crate) lost: u64,
    /// The store lies.
    pub(crate) lies: bool,
    /// How far the store's clock is off, in microseconds.
    pub(crate) off: i64,
}

/// The store.
pub(crate) struct Store {
    world: Arc<World>,
    server: Mutex<Server>,
    faults: Mutex<Faults>,
    /// An earlier reply, for lies.
    earlier: Mutex<Option<Vec<String>>>,
    saved: Mutex<Vec<(&'static str, Kept)>>,
    draws: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    /// The most bytes of one call, in either direction.
    pub(crate) largest: AtomicU64,
}

/// The transport of one node.
pub(crate) struct Link {
    pub(crate) store: Arc<Store>,
    pub(crate) node: usize,
}

impl Store {
    pub(crate) fn new(world: &Arc<World>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            server: Mutex::new(Server::new()),
            faults: Mutex::default(),
            earlier: Mutex::default(),
            saved: Mutex::default(),
            draws: AtomicU64::new(seed),
            calls: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            largest: AtomicU64::new(0),
        })
    }

    pub(crate) fn faults(&self) -> Faults {
        self.faults.lock().unwrap().clone()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
    }

    /// It restarts with nothing on disk.
    pub(crate) fn empty(&self) {
        self.server.lock().unwrap().empty();
    }

    /// Keeps a copy of everything.
    pub(crate) fn save(&self) {
        let server = self.server.lock().unwrap();
        let kept = KEYS.iter().filter_map(|key| Some((*key, server.get(key)?.0)));
        *self.saved.lock().unwrap() = kept.collect();
    }

    /// It comes back with the copy.
    pub(crate) fn restore(&self) {
        let server = self.server.lock().unwrap();
        server.empty();
        self.saved.lock().unwrap().drain(..).for_each(|(key, kept)| server.put(key, kept));
    }

    fn draw(&self, below: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(self.draws.fetch_add(1, Ordering::SeqCst));
        random.u64(..below.max(1))
    }

    fn reaches(&self, node: usize) -> bool {
        let faults = self.faults();
        !faults.is_down && faults.cut >> node & 1 == 0
    }

    fn run(&self, script: &str, keys: &[String], words: &[String]) -> Vec<String> {
        let faults = self.faults();
        let server = self.server.lock().unwrap();
        let now = self.world.wall().get() / 1_000;
        server.set_time(now.saturating_add_signed(faults.off));
        let reply = server.evaluate(script, keys, words).unwrap_or_else(|error| panic!("{error}"));
        drop(server);
        let size = |texts: &[String]| texts.iter().map(|text| text.len() as u64).sum::<u64>();
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.bytes_in.fetch_add(size(words), Ordering::SeqCst);
        self.bytes_out.fetch_add(size(&reply), Ordering::SeqCst);
        self.largest.fetch_max(size(words).max(size(&reply)), Ordering::SeqCst);
        if faults.lies { self.lie(reply) } else { reply }
    }

    /// Something else than the truth: another time, an earlier reply, another author, a changed text, other nodes.
    fn lie(&self, mut reply: Vec<String>) -> Vec<String> {
        let told = reply.clone();
        match self.draw(7) {
            0 => reply[0] = (self.world.wall().get() / 1_000 + self.draw(90_000_000)).to_string(),
            1 => reply[0] = (self.world.wall().get() / 1_000 - self.draw(90_000_000)).to_string(),
            2 => reply = self.earlier.lock().unwrap().clone().unwrap_or(reply),
            3 => {
                if let Some(member) = reply.get_mut(5) {
                    *member = format!("{:016x}:{}", self.draw(u64::MAX), self.draw(64));
                }
            }
            4 => {
                if let Some(text) = reply.get_mut(6) {
                    let at = self.draw(text.len() as u64) as usize;
                    let last = if text.as_bytes().get(at) == Some(&b'A') { "B" } else { "A" };
                    text.replace_range(at..(at + 1).min(text.len()), last);
                }
            }
            5 => reply[4] = self.draw(100_000).to_string(),
            _ => reply.truncate(self.draw(reply.len() as u64) as usize),
        }
        *self.earlier.lock().unwrap() = Some(told);
        reply
    }
}

#[async_trait]
impl StoreTransport for Link {
    fn has_slots(&self) -> bool {
        false
    }

    fn readiness(&self, _slot: u16) -> Readiness {
        if self.is_up() { Readiness::Ready } else { Readiness::Away }
    }

    async fn readiness_changed(&self) {
        std::future::pending().await
    }

    async fn call(
        &self,
        _slot: u16,
        _arguments: &Arguments,
        _timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure> {
        Err(StoreFailure::Unreachable)
    }

    async fn evaluate(
        &self,
        _slot: u16,
        script: &str,
        keys: &[String],
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Vec<String>, StoreFailure> {
        let store = &self.store;
        let way = || {
            let most = nanos(store.faults().slow).get();
            tokio::time::sleep(Duration::from_nanos(store.draw(most + 1)))
        };
        let talk = async {
            way().await;
            if !store.reaches(self.node) {
                return Err(StoreFailure::Lost);
            }
            let reply = store.run(script, keys, arguments);
            way().await;
            let is_lost = store.draw(100) < store.faults().lost || !store.reaches(self.node);
            if is_lost { Err(StoreFailure::Timeout) } else { Ok(reply) }
        };
        tokio::time::timeout(timeout, talk).await.unwrap_or(Err(StoreFailure::Timeout))
    }

    fn record_invalid_reply(&self, _slot: u16) {}

    fn is_up(&self) -> bool {
        self.store.reaches(self.node)
    }
}
