//! The shared store for policy cases: the real client and the real script, on a clock that is set by hand.
//!
//! The script runs in this process, behind a socket that speaks the protocol of Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::cli::test::TestStore;
use tollgate::clock::{ManualClock, Nanos};
use tollgate::engine::{Decision, Engine, Generation, PendingSettlement};
use tollgate::policy::{Facts, KeySecret};
use tollgate::store::redis::{Address, Login, ServerDiscovery, SharedStore, StoreSettings};

use crate::lua::Server;
use crate::{servers, stand_in};

/// The script behind a server, and the runtime of the client that calls it.
pub struct Scripted {
    runtime: tokio::runtime::Runtime,
    server: Arc<Mutex<Server>>,
    clock: Arc<Mutex<Arc<ManualClock>>>,
    port: u16,
}

impl Scripted {
    /// Starts a server and gives it to `run`, with the YAML section that names it.
    pub fn with<T>(run: impl FnOnce(&Self, &str) -> T) -> T {
        let server = Arc::new(Mutex::new(Server::new()));
        let clock = Arc::new(Mutex::new(Arc::new(ManualClock::new(Nanos::SECOND))));
        let port = stand_in::start(stand_in::script(Arc::clone(&server), Arc::clone(&clock)));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        // The engine posts the charges that depend on an answer from the thread that brings the answer.
        let inside = runtime.handle().clone();
        let _inside = inside.enter();
        let yaml = format!("store: {{ redis: {{ url: \"redis://127.0.0.1:{port}\" }} }}\n");
        run(&Self { runtime, server, clock, port }, &yaml)
    }
}

impl TestStore for Scripted {
    fn engine(&self, clock: Arc<ManualClock>, secret: KeySecret) -> Engine {
        self.server.lock().unwrap().empty();
        *self.clock.lock().unwrap() = Arc::clone(&clock);
        let settings = StoreSettings {
            servers: ServerDiscovery::Single(Address::Tcp("127.0.0.1".to_owned(), self.port)),
            login: Login::default(),
            tls: None,
            timeout: Duration::from_secs(5),
            prefix: "tollgate".to_owned(),
        };
        let remote = self.runtime.block_on(async {
            let remote = SharedStore::start(settings, Arc::clone(&clock) as _);
            assert!(remote.wait_until_up(Duration::from_secs(10)).await);
            remote
        });
        Engine::with_store(clock, secret, remote)
    }

    fn decide(
        &self,
        engine: &Engine,
        generation: &Generation,
        facts: &Facts<'_>,
    ) -> (Decision, PendingSettlement) {
        let (decision, pending) = self.runtime.block_on(engine.decide(generation, facts));
        assert!(!decision.is_degraded(), "{decision:?}");
        (decision, pending)
    }

    fn wait_until_settled(&self, engine: &Engine) {
        // Changes are posted from within the runtime's tasks.
        let began = servers::now();
        while !engine.is_quiet() {
            assert!(began.elapsed() < Duration::from_secs(30), "never quiet");
            std::thread::yield_now();
        }
    }
}
