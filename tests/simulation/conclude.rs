//! The end of a schedule: everything heals, all is told, and every cell is looked at. Then a client
//! that is refused waits exactly as long as it was told.

use std::sync::Arc;

use tollgate::clock::Nanos;
use tollgate::engine::{Decision, Outcome};

use super::draw::SECOND;
use super::node::Node;
use super::request::Asked;
use super::schedule::Schedule;
use super::world::Event;

/// As long as it takes until everything that was admitted alone is told to the store.
const HEALED: u64 = 5 * SECOND;

/// Most requests that it takes to spend a key's limit.
const MOST_TO_SPEND: usize = 60;

/// The longest that most patient clients wait; one in eight waits for an hour's window too.
const PATIENCE: u64 = 120 * SECOND;

impl Schedule {
    pub(crate) async fn finish(&self, base: u64) {
        {
            let mut state = self.world.state();
            self.world.note(&mut state, format_args!("everything heals"));
            for server in &mut state.servers {
                (server.up, server.refuses) = (true, None);
                server.mend();
            }
            state.links.iter_mut().flatten().for_each(super::link::Link::heal);
            state.events.retain(|_, event| !matches!(event, Event::End(_) | Event::Step));
        }
        self.end_all();
        self.pass(HEALED, base).await;
        self.end_all();
        self.check_quiet();
        self.look_at_all(base).await;
        if !self.is_broken() {
            self.wait_as_told(base).await;
        }
    }

    fn check_quiet(&self) {
        if let Some(id) = self.world.oracle().requests.keys().next() {
            self.world.fail(format!("request {id} is never decided"));
        }
        for node in &self.nodes {
            if !node.engine.is_quiet() {
                self.world.fail(format!("node {} never comes to rest", node.index));
            }
        }
    }

    /// Every cell that was charged, by a request of one unit to it alone.
    async fn look_at_all(&self, base: u64) {
        let samples: Vec<Asked> = self.world.oracle().samples.values().cloned().collect();
        for (n, asked) in samples.into_iter().enumerate() {
            let node = Arc::clone(&self.nodes[n % self.nodes.len()]);
            self.ask_and_wait(&node, asked, base).await;
            self.end_all();
            if self.is_broken() {
                return;
            }
        }
    }

    async fn ask_and_wait(
        &self,
        node: &Arc<Node>,
        asked: Asked,
        base: u64,
    ) -> Option<(u64, Decision)> {
        let id = self.send(node, asked, None, None);
        self.rest(base).await;
        let end = self.world.now() + self.timeout.as_nanos() as u64 + SECOND / 500;
        while !self.results.lock().unwrap().contains_key(&id) {
            let Some(event) = self.world.next(end).await else { break };
            self.handle(event, base);
            self.rest(base).await;
        }
        self.results.lock().unwrap().remove(&id)
    }

    /// A key is spent; its client comes back exactly when it was told to, and a moment before.
    async fn wait_as_told(&self, base: u64) {
        let (samples, route) = {
            let oracle = self.world.oracle();
            let samples: Vec<Asked> = oracle.samples.values().cloned().collect();
            (samples, self.random.lock().unwrap().usize(..))
        };
        let Some(sample) = samples.get(route % samples.len().max(1)).cloned() else { return };
        let asked =
            Asked { route: if route % 2 == 0 { sample.route } else { (route / 2) % 2 }, ..sample };
        let node = Arc::clone(&self.nodes[route % self.nodes.len()]);
        let policy = node.present().1;
        let Ok(dues) = asked.dues(&policy, self.world.oracle().tick) else { return };
        let apart = dues.iter().any(|due| {
            policy.limits[due.limit].penalty.is_some()
                || due.refused
                || due.variant.algorithm == super::draw::Algorithm::InFlight
        });
        if apart {
            return;
        }
        for _ in 0..MOST_TO_SPEND {
            let Some((at, decision)) = self.ask_and_wait(&node, asked.clone(), base).await else {
                return;
            };
            self.end_all();
            if self.is_broken() || decision.is_degraded() {
                return;
            }
            if decision.outcome == Outcome::Limited {
                return self.come_back(&node, asked, at, &decision, base).await;
            }
        }
    }

    async fn come_back(&self, node: &Arc<Node>, asked: Asked, at: u64, told: &Decision, base: u64) {
        let full = |kind| {
            use tollgate::engine::VerdictKind::{OverflowAllowed, OverflowDenied};
            matches!(kind, OverflowAllowed | OverflowDenied)
        };
        if told.verdicts.iter().any(|one| full(one.kind)) {
            return;
        }
        let Some(wait) = told.retry_after().map(Nanos::get) else { return };
        let patience =
            if self.random.lock().unwrap().u8(0..8) == 0 { 60 * PATIENCE } else { PATIENCE };
        if wait > patience {
            return;
        }
        // The clock of a store counts microseconds.
        let tick = self.world.oracle().tick;
        let wait = wait.next_multiple_of(tick);
        // A denial that is remembered names its own limit; the others were not asked.
        let dues = asked.dues(&node.present().1, tick).unwrap_or_default();
        let all = dues.iter().all(|due| told.verdicts.iter().any(|one| one.limit.0 == due.limit));
        self.world.oracle().seen.count("retry told", 1);
        if wait > tick {
            self.pass((at + wait - tick).saturating_sub(self.world.now()), base).await;
            let Some((_, early)) = self.ask_and_wait(node, asked.clone(), base).await else {
                return;
            };
            self.end_all();
            if early.outcome == Outcome::Allowed {
                self.world
                    .fail(format!("told to come back in {wait} ns, and passes {tick} ns earlier"));
                return;
            }
        }
        self.pass((at + wait).saturating_sub(self.world.now()), base).await;
        let Some((_, again)) = self.ask_and_wait(node, asked, base).await else { return };
        self.end_all();
        if again.outcome != Outcome::Allowed && all {
            self.world.fail(format!("told to come back in {wait} ns, and is refused again"));
        }
    }
}
