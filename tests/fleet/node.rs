//! A node: the real engine, the real policy and the real exchange.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use tollgate::clock::{Clock, Now};
use tollgate::config;
use tollgate::engine::{Decision, Engine, FleetExchange, FleetLimits, Generation};
use tollgate::estimator::EstimateLimit;
use tollgate::limit::Verdict;
use tollgate::policy::client::RequestClient;
use tollgate::policy::{ConnectionFacts, Facts, KeyHash, KeySecret, LimitIndex};
use tollgate::store::redis::SharedStore;

use super::store::{Link, Store};
use super::time::NodeClock;

/// What a node is started with.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) yaml: String,
    pub(crate) secret: u8,
}

/// One node.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) generation: Generation,
    limit: LimitIndex,
    /// The policy that its exchange follows after a reload.
    reloaded: Mutex<Option<Generation>>,
}

impl Node {
    /// A node that has heard of the changes and bans before it began: there were none.
    pub(crate) fn start(
        index: usize,
        setup: &Setup,
        store: &Arc<Store>,
        clock: Arc<NodeClock>,
    ) -> Arc<Self> {
        let node = Self::begin(index, setup, store, clock);
        node.hear_of_nothing();
        node
    }

    /// It hears that there were no changes and no bans.
    pub(crate) fn hear_of_nothing(&self) {
        self.engine.set_heard_changes(0);
        self.engine.bans().set_heard(1);
    }

    /// A node that has not heard of anything.
    pub(crate) fn begin(
        index: usize,
        setup: &Setup,
        store: &Arc<Store>,
        clock: Arc<NodeClock>,
    ) -> Arc<Self> {
        let link = Arc::new(Link { store: Arc::clone(store), node: index });
        let clock: Arc<dyn Clock> = clock;
        let timeout = Duration::from_millis(100);
        let remote = SharedStore::with_transport(link, "t".to_owned(), timeout, Arc::clone(&clock));
        let engine = Engine::with_store(clock, KeySecret::new([setup.secret; 16]), remote);
        let loaded = config::read_text(&setup.yaml, "fleet.yaml", Path::new(""));
        let loaded = loaded.unwrap_or_else(|errors| panic!("{}\n{errors}", setup.yaml));
        let (generation, _) = engine.generation(loaded.config.policy, None);
        let (limit, _) = generation.policy().indexed_limits().next().unwrap();
        Arc::new(Self { engine, generation, limit, reloaded: Mutex::default() })
    }

    /// Exchanges counts until the task is ended.
    pub(crate) async fn exchange(self: Arc<Self>) {
        let mut exchange = FleetExchange::default();
        loop {
            let limits = match &*self.reloaded.lock().unwrap() {
                Some(reloaded) => FleetLimits::of(reloaded),
                None => FleetLimits::of(&self.generation),
            };
            let pause = exchange.step(&self.engine, &limits).await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Its exchange goes on under another policy.
    pub(crate) fn reload(&self, yaml: &str) {
        let loaded = config::read_text(yaml, "fleet.yaml", Path::new("")).unwrap();
        let (next, _) = self.engine.generation(loaded.config.policy, Some(&self.generation));
        *self.reloaded.lock().unwrap() = Some(next);
    }

    pub(crate) fn estimate(&self) -> &EstimateLimit {
        self.generation.estimate(self.limit).unwrap()
    }

    pub(crate) fn estimate_named(&self, name: &str) -> &EstimateLimit {
        let mut limits = self.generation.policy().indexed_limits();
        let (limit, _) = limits.find(|(_, limit)| &*limit.name == name).unwrap();
        self.generation.estimate(limit).unwrap()
    }

    /// Forgets what a key has spent, as an operator does. `change`: the number of this change.
    pub(crate) fn forget(&self, key: KeyHash, change: u64) {
        self.engine.forget_key(&self.generation, self.limit, key, change);
        self.engine.set_heard_changes(change);
    }

    /// Lifts the ban of a key, as an operator does.
    pub(crate) fn lift_ban(&self, key: KeyHash, change: u64) {
        self.engine.lift_ban(&self.generation, key, None);
        self.engine.forget_denials_of_others(&self.generation, self.limit, key, change);
        self.engine.set_heard_changes(change);
    }

    /// Hears of the latest ban, which lasts for another `left`, as the store tells it. `reported_at`: its number.
    pub(crate) fn hear_ban(&self, key: KeyHash, left: Duration, reported_at: u64) {
        let now = self.engine.now().mono;
        let until = now.saturating_add(left.into());
        self.engine.bans().record_shared(key, until, reported_at, now);
        self.engine.bans().set_heard(reported_at);
    }

    /// Judges one request of a key.
    pub(crate) fn request(&self, key: KeyHash, now: Now) -> Verdict {
        self.estimate().charge(self.engine.confirm_table(), key, 1, now).0
    }

    /// Judges a request of an address by all limits of the route.
    pub(crate) fn decide(&self, address: [u8; 4]) -> Decision {
        let headers = HeaderMap::new();
        let facts = Facts {
            connection: &ConnectionFacts::NONE,
            client: RequestClient { ip: address.into(), ipv6_prefix: 64, peer_trusted: false },
            now: self.engine.date(self.engine.now()),
            method: "GET",
            host: "a",
            path: "/",
            readings: &[],
            query: None,
            headers: &headers,
            conditions: None,
        };
        self.engine.decide_now(&self.generation, &facts).0
    }

    /// How far the nodes may exceed the limit, as this node shows it, in units.
    pub(crate) fn shown_error(&self) -> f64 {
        self.error_of(self.estimate())
    }

    /// The same of another limit.
    pub(crate) fn shown_error_of(&self, name: &str) -> f64 {
        self.error_of(self.estimate_named(name))
    }

    fn error_of(&self, estimate: &EstimateLimit) -> f64 {
        let tag = estimate.fleet().unwrap().tag();
        self.engine.fleet_progress().error(tag) * f64::from(estimate.rate().count())
    }
}
