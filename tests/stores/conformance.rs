//! Every case of `policies/` on the remote store: the engine, the client and the script, on a
//! clock that is turned by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::cli::test::TestStore;
use tollgate::clock::ManualClock;
use tollgate::engine::{Decision, Engine, Generation, PendingSettlement};
use tollgate::policy::{Facts, KeySecret};
use tollgate::store::redis::{Address, Login, ServerDiscovery, SharedStore, StoreSettings};

use crate::stand_in;
use support::lua::Server;
use support::policies::run_all;

struct Scripted {
    runtime: tokio::runtime::Runtime,
    server: Arc<Mutex<Server>>,
    clock: Arc<Mutex<Arc<ManualClock>>>,
    port: u16,
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

    fn settled(&self, engine: &Engine) {
        // Changes are posted from within the runtime's tasks.
        let began = support::servers::now();
        while !engine.is_quiet() {
            assert!(began.elapsed() < Duration::from_secs(30), "never quiet");
            std::thread::yield_now();
        }
    }
}

/// Runs with the script in this process.
fn with_script(run: impl FnOnce(&Scripted, &str)) {
    let _alone = crate::ALONE.blocking_lock();
    let server = Arc::new(Mutex::new(Server::new()));
    let clock = Arc::new(Mutex::new(Arc::new(ManualClock::new(tollgate::clock::Nanos::SECOND))));
    let port = stand_in::start(stand_in::script(Arc::clone(&server), Arc::clone(&clock)));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // What an answer changes is posted from where the answer comes.
    let inside = runtime.handle().clone();
    let _inside = inside.enter();
    let yaml = format!("store: {{ redis: {{ url: \"redis://127.0.0.1:{port}\" }} }}\n");
    run(&Scripted { runtime, server, clock, port }, &yaml);
}

#[test]
fn every_policy_does_what_its_cases_say() {
    with_script(|store, yaml| {
        let cases = run_all(store, yaml);
        assert!(cases >= 200, "only {cases} cases");
    });
}

#[test]
fn every_interplay_is_what_the_model_says() {
    with_script(|store, yaml| {
        let run = |seed| support::model::run(seed, store, yaml, 1_000);
        let compared: usize = (0..300).map(run).sum();
        assert!(compared > 1_000, "only {compared} refusals with all that their limits say");
    });
}
