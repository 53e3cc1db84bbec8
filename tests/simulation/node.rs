//! A node: the real engine, under a policy that the real reader has read.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate::config;
use tollgate::engine::{Engine, Generation};
use tollgate::policy::KeySecret;
use tollgate::store::redis::SharedStore;

use super::draw::Policy;
use super::link::Wire;
use super::world::{NodeClock, World};

/// One node.
pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<NodeClock>,
    /// What tells its transport that something changed.
    pub(crate) changed: Arc<Notify>,
    present: Mutex<(Arc<Generation>, Arc<Policy>)>,
}

impl Node {
    pub(crate) fn start(
        index: usize,
        world: &Arc<World>,
        base: u64,
        policy: &Arc<Policy>,
        timeout: Option<Duration>,
    ) -> Arc<Self> {
        let clock = NodeClock::new(world, base);
        let changed = Arc::new(Notify::new());
        let secret = KeySecret::new([5; 16]);
        let engine = match timeout {
            None => Engine::new(Arc::clone(&clock) as _, secret),
            Some(timeout) => {
                let changed = Arc::clone(&changed);
                let wire = Arc::new(Wire { world: Arc::clone(world), node: index, changed });
                let clock = Arc::clone(&clock);
                let remote = SharedStore::with_transport(
                    wire,
                    "t".to_owned(),
                    timeout,
                    Arc::clone(&clock) as _,
                );
                Engine::with_store(clock, secret, remote)
            }
        };
        let generation = Arc::new(generation(&engine, policy, None));
        let present = Mutex::new((generation, Arc::clone(policy)));
        Arc::new(Self { index, engine, clock, changed, present })
    }

    /// What is in force.
    pub(crate) fn present(&self) -> (Arc<Generation>, Arc<Policy>) {
        self.present.lock().unwrap().clone()
    }

    pub(crate) fn reload(&self, policy: &Arc<Policy>) {
        let (old, _) = self.present();
        let next = Arc::new(generation(&self.engine, policy, Some(&old)));
        *self.present.lock().unwrap() = (next, Arc::clone(policy));
    }
}

fn generation(engine: &Engine, policy: &Policy, old: Option<&Generation>) -> Generation {
    let text = policy.yaml();
    let loaded = config::read_text(&text, "simulated.yaml", Path::new(""));
    let loaded = loaded.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    engine.generation(loaded.config.policy, old).0
}
