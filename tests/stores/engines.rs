//! Engines over a store, without a proxy before them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::virtual_store::VirtualStore;
use http::{HeaderMap, HeaderValue};
use tollgate::clock::SystemClock;
use tollgate::config;
use tollgate::engine::{Decision, Engine, Generation, Outcome, PendingSettlement};
use tollgate::limit::{FixedWindow, Quota, Rate, WindowLengths};
use tollgate::policy::client::RequestClient;
use tollgate::policy::{Facts, KeyHash, KeySecret, Route};
use tollgate::store::redis::{
    Address, CallOutcome, CellCharge, Login, ServerDiscovery, SharedStore, StoreSettings,
};
use tollgate::store::{CellBudget, EmbeddedStore, QuotaSpec};

/// One node.
pub struct Node {
    pub engine: Engine,
    pub generation: Generation,
    pub remote: Arc<SharedStore>,
}

pub fn one(port: u16) -> ServerDiscovery {
    ServerDiscovery::Single(Address::Tcp("127.0.0.1".to_owned(), port))
}

impl Node {
    /// `limits` and `routes` of a configuration.
    pub async fn start(servers: ServerDiscovery, timeout: Duration, policy: &str) -> Self {
        let settings = StoreSettings {
            servers,
            login: Login::default(),
            tls: None,
            timeout,
            prefix: "t".to_owned(),
        };
        let clock = Arc::new(SystemClock::new());
        let remote = SharedStore::start(settings, Arc::clone(&clock) as _);
        assert!(remote.wait_until_up(Duration::from_secs(10)).await, "the store does not answer");
        let engine = Engine::with_store(clock, secret(), Arc::clone(&remote));
        let generation = generation(&engine, policy);
        Self { engine, generation, remote }
    }

    /// Over a store that stands in for one.
    pub fn over(store: &VirtualStore, remote: Arc<SharedStore>, policy: &str) -> Self {
        let clock = Arc::clone(&store.clock);
        let engine = Engine::with_store(clock, secret(), Arc::clone(&remote));
        let generation = generation(&engine, policy);
        Self { engine, generation, remote }
    }

    pub async fn decide(&self, path: &str, keys: &[(&'static str, &str)]) -> Decision {
        self.open(path, keys).await.0
    }

    /// A decision, and what it leaves open.
    pub async fn open(
        &self,
        path: &str,
        keys: &[(&'static str, &str)],
    ) -> (Decision, PendingSettlement) {
        let headers = headers(keys);
        self.engine.decide(&self.generation, &facts(path, &headers)).await
    }

    pub async fn allows(&self, path: &str, keys: &[(&'static str, &str)]) -> bool {
        self.decide(path, keys).await.outcome == Outcome::Allowed
    }

    pub fn calls(&self, outcome: CallOutcome) -> u64 {
        self.remote.metrics().calls(outcome)
    }

    /// The name of the cell of a request under a limit.
    pub fn cell(&self, limit: &str, keys: &[(&'static str, &str)]) -> String {
        format!("t:{}", self.key(limit, keys))
    }

    /// The slot of that cell.
    pub fn slot(&self, limit: &str, keys: &[(&'static str, &str)]) -> u16 {
        let quota = Quota::FixedWindow(FixedWindow::new(Rate::PER_SECOND));
        let windows = WindowLengths::of([&quota]);
        let claim = QuotaSpec {
            quota,
            windows,
            budget: Arc::<CellBudget>::default(),
            denies_after_crash: false,
        };
        let quota = EmbeddedStore::default().issue(claim, None);
        self.remote.slot(&CellCharge::new(self.key(limit, keys), None, quota, 1))
    }

    fn key(&self, limit: &str, keys: &[(&'static str, &str)]) -> KeyHash {
        let headers = headers(keys);
        let policy = self.generation.policy();
        let limit = policy.limits.iter().find(|one| &*one.name == limit).unwrap();
        let route: &Route = &policy.routes[0];
        limit.key.hash(&secret().hasher(limit), &facts("/", &headers), route).unwrap()
    }
}

/// The generation of `limits` and `routes` of a configuration.
fn generation(engine: &Engine, policy: &str) -> Generation {
    let text = format!(
        "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\n\
         origins: {{ site: {{ servers: [127.0.0.1:1] }} }}\n\
         store: {{ redis: {{ url: redis://a }} }}\n{policy}"
    );
    let loaded = config::read_text(&text, "node.yaml", Path::new(""));
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
    engine.generation(loaded.config.policy, None).0
}

pub fn secret() -> KeySecret {
    KeySecret::new([5; 16])
}

pub fn headers(keys: &[(&'static str, &str)]) -> HeaderMap {
    let value = |text: &str| HeaderValue::try_from(text).unwrap();
    keys.iter().map(|(name, text)| (http::HeaderName::from_static(name), value(text))).collect()
}

pub fn facts<'f>(path: &'f str, headers: &'f HeaderMap) -> Facts<'f> {
    Facts {
        connection: &tollgate::policy::ConnectionFacts::NONE,
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: true },
        now: tollgate::clock::Nanos::ZERO,
        method: "POST",
        host: "h",
        path,
        readings: &[],
        query: None,
        headers,
        conditions: None,
    }
}
