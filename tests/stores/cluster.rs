//! A Cluster in this process: the script in an interpreter behind a transport with slots, whose
//! servers fail as a test says. The clock is turned by hand.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tollgate::clock::{Clock, ManualClock, Nanos};
use tollgate::config;
use tollgate::engine::{Engine, Generation};
use tollgate::store::redis::{
    Argument, Arguments, Readiness, SharedStore, StoreFailure, StoreTransport,
};

use crate::engines::{Node, secret};
use support::lua::{Kept, Server};

/// The beginning of a window of every length used here.
const EPOCH: Nanos = Nanos::from_secs(1_800_057_600);

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// It is executed, and its reply is lost.
    Executed(StoreFailure),
    /// It is not executed.
    Failed(StoreFailure),
}

/// A call as the transport sees it: the slot, and the word of its first run.
pub type Seen = (u16, &'static str);

type Fates = dyn FnMut(Seen) -> Fate + Send;

/// Servers that share one interpreter: cells of different slots have different names.
pub struct Cluster {
    server: Mutex<Server>,
    clock: Arc<ManualClock>,
    fates: Mutex<Box<Fates>>,
    away: Mutex<Vec<u16>>,
    seen: Mutex<Vec<Seen>>,
    /// How long a call takes.
    latency: Mutex<Nanos>,
}

#[async_trait]
impl StoreTransport for Cluster {
    fn has_slots(&self) -> bool {
        true
    }

    fn readiness(&self, slot: u16) -> Readiness {
        match self.away.lock().unwrap().contains(&slot) {
            true => Readiness::Away,
            false => Readiness::Ready,
        }
    }

    async fn readiness_changed(&self) {
        // Where a test lets a server come back, nothing waits for it.
        std::future::pending().await
    }

    async fn call(
        &self,
        slot: u16,
        arguments: &Arguments,
        _timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure> {
        if self.readiness(slot) == Readiness::Away {
            return Err(StoreFailure::Unreachable);
        }
        let words = arguments.argv.iter().find_map(|one| match one {
            Argument::Word(word) => Some(*word),
            Argument::Number(_) => None,
        });
        let seen = (slot, words.unwrap());
        self.seen.lock().unwrap().push(seen);
        let fate = (self.fates.lock().unwrap())(seen);
        self.clock.advance(*self.latency.lock().unwrap());
        if let Fate::Failed(failure) = fate {
            return Err(failure);
        }
        let server = self.server.lock().unwrap();
        server.set_time(self.clock.now().wall.get() / 1_000);
        let reply = server.run(arguments).unwrap();
        match fate {
            Fate::Executed(failure) => Err(failure),
            Fate::Answered | Fate::Failed(_) => Ok(reply),
        }
    }

    fn record_invalid_reply(&self, _slot: u16) {
        panic!("the script contradicts the algorithms");
    }

    fn is_up(&self) -> bool {
        self.away.lock().unwrap().is_empty()
    }
}

impl Cluster {
    pub fn start() -> Arc<Self> {
        Arc::new(Self {
            server: Mutex::new(Server::new()),
            clock: Arc::new(ManualClock::new(EPOCH)),
            fates: Mutex::new(Box::new(|_| Fate::Answered)),
            away: Mutex::default(),
            seen: Mutex::default(),
            latency: Mutex::default(),
        })
    }

    pub const fn clock(&self) -> &Arc<ManualClock> {
        &self.clock
    }

    /// A node of a policy, with a timeout of 20 ms.
    pub fn node(self: &Arc<Self>, policy: &str) -> Node {
        let timeout = Duration::from_millis(20);
        let clock = Arc::clone(&self.clock);
        let transport = Arc::clone(self) as Arc<dyn StoreTransport>;
        let remote = SharedStore::with_transport(
            transport,
            "t".to_owned(),
            timeout,
            Arc::clone(&clock) as _,
        );
        let engine = Engine::with_store(clock, secret(), Arc::clone(&remote));
        let generation = generation(&engine, policy);
        Node { engine, generation, remote }
    }

    /// What becomes of calls from now on.
    pub fn set_fates(&self, fates: impl FnMut(Seen) -> Fate + Send + 'static) {
        *self.fates.lock().unwrap() = Box::new(fates);
    }

    /// Calls to one slot fail from now on; the others are answered.
    pub fn fail(&self, slot: u16, fate: Fate) {
        self.set_fates(move |(other, _)| if other == slot { fate } else { Fate::Answered });
    }

    pub fn set_latency(&self, latency: Nanos) {
        *self.latency.lock().unwrap() = latency;
    }

    /// The server of a slot goes away.
    pub fn take_away(&self, slot: u16) {
        self.away.lock().unwrap().push(slot);
    }

    /// Calls since the last time.
    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// What a fixed window holds.
    pub fn spent(&self, cell: &str) -> u64 {
        match self.server.lock().unwrap().get(cell) {
            Some((Kept::Text(text), _)) => text.split(' ').nth(2).unwrap().parse().unwrap(),
            // The stand-in keeps an empty list for what it was asked for.
            Some((Kept::List(list), _)) if list.is_empty() => 0,
            Some((kept, _)) => panic!("{kept:?} is no fixed window"),
            None => 0,
        }
    }
}

/// A generation of a policy whose store is a Cluster.
pub fn generation(engine: &Engine, policy: &str) -> Generation {
    let text = format!(
        "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\n\
         origins: {{ site: {{ servers: [127.0.0.1:1] }} }}\n\
         store: {{ redis: {{ cluster: [redis://a] }} }}\n{policy}"
    );
    let loaded = config::read_text(&text, "node.yaml", Path::new(""));
    engine.generation(loaded.unwrap_or_else(|errors| panic!("{errors}")).config.policy, None).0
}

/// Waits until nothing is on its way to the store.
pub async fn quiet(node: &Node) {
    for _ in 0..10_000 {
        if node.engine.is_quiet() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never quiet");
}
