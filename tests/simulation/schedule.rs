//! One seed, one schedule: a fleet, its clients, and what goes wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::oneshot;

use super::client::{Open, Results};
use super::coverage::Coverage;
use super::draw::{Algorithm, Cost, Limit, Policy, SECOND, Scope};
use super::fault::{CLOCK_STEP, Fault};
use super::node::Node;
use super::oracle::Oracle;
use super::request::Asked;
use super::server::Server;
use super::world::{Event, World};

/// Whether the variants of a limit differ in their windows.
const WINDOWS_DIFFER: bool = true;

/// Most steps of a schedule.
pub(crate) const MAX_STEPS: usize = 70;

/// A day's begin.
const EPOCH: u64 = 1_800_057_600 * SECOND;

/// What came of a schedule.
pub(crate) struct Report {
    pub(crate) failure: Option<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) seen: Coverage,
}

/// A schedule that runs.
pub(crate) struct Schedule {
    pub(crate) world: Arc<World>,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) timeout: Duration,
    pub(crate) random: Mutex<Rng>,
    pub(crate) leaving: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    pub(crate) open: Arc<Mutex<BTreeMap<u64, Open>>>,
    pub(crate) results: Results,
    pub(crate) store: bool,
}

/// What is drawn before anything runs.
struct Plan {
    scope: Scope,
    nodes: usize,
    servers: usize,
    steps: usize,
    faults: Vec<Fault>,
    /// At which step which node reloads which policy.
    reloads: Vec<(usize, usize, Arc<Policy>)>,
    policy: Arc<Policy>,
    /// Whose request comes more often than others.
    hot: Option<Asked>,
    /// Most requests at once.
    crowd: usize,
    base: u64,
}

impl Plan {
    fn random(random: &mut Rng, limit: usize) -> Self {
        let store = random.u8(0..6) > 0;
        let scope = Scope {
            store,
            timeout: *random.choice(&[10, 20, 50, 100]).unwrap(),
            crowded: !store && random.bool(),
            windows: WINDOWS_DIFFER && random.bool(),
        };
        let nodes = if store { random.usize(1..5) } else { 1 };
        let servers = match store {
            false => 0,
            true if random.u8(0..4) == 0 => 3,
            true => 1,
        };
        let steps = random.usize(20..MAX_STEPS);
        let policy = Arc::new(Policy::random(random, scope));
        let faults = if random.u8(0..3) == 0 { 0 } else { random.usize(1..5) };
        let faults =
            (0..faults).map(|_| Fault::random(random, store, steps, (nodes, servers))).collect();
        let mut reloads = Vec::new();
        let mut last = Arc::clone(&policy);
        for _ in 0..if random.bool() { random.usize(1..4) } else { 0 } {
            let next = Arc::new(last.changed(random));
            let at = random.usize(0..steps);
            // Some nodes come later, or not at all.
            for node in 0..nodes {
                if random.u8(0..6) > 0 {
                    reloads.push((at + random.usize(0..3), node, Arc::clone(&next)));
                }
            }
            last = next;
        }
        Self {
            scope,
            nodes,
            servers,
            steps: steps.min(limit),
            faults,
            reloads,
            policy,
            hot: random.bool().then(|| Asked::random(random)),
            crowd: *random.choice(&[1, 4, 24]).unwrap(),
            base: EPOCH + random.u64(0..7_200_000_000) * 1_000,
        }
    }
}

/// Runs the schedule of a seed, its first `limit` steps.
pub(crate) fn run(seed: u64, limit: usize) -> Report {
    fastrand::seed(seed);
    let mut random = Rng::with_seed(seed);
    let plan = Plan::random(&mut random, limit);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let schedule = Schedule::start(&plan, random);
        schedule.live(&plan).await;
        let mut state = schedule.world.state();
        let kept: Vec<String> = state.servers.iter().flat_map(Server::kept).collect();
        if state.failure.is_some() {
            state.trace.extend(kept);
            state.trace.push(plan.policy.yaml());
        }
        let mut seen = schedule.world.oracle().seen.clone();
        plan.tell(&mut seen);
        let (failure, trace) = (state.failure.take(), std::mem::take(&mut state.trace));
        Report { failure, trace, seen }
    })
}

impl Schedule {
    fn start(plan: &Plan, mut random: Rng) -> Self {
        let store = plan.scope.store;
        let timeout = Duration::from_millis(plan.scope.timeout);
        let steps = |fault: &Fault| fault.kind == super::fault::Kind::ServerClock;
        let slack = if plan.faults.iter().any(steps) { CLOCK_STEP as u64 * 1_000 } else { 0 };
        let oracle = Oracle {
            store,
            cluster: plan.servers > 1,
            crowded: plan.scope.crowded,
            base: plan.base,
            slack,
            timeout: if store { timeout.as_nanos() as u64 } else { 0 },
            tick: if store { 1_000 } else { 1 },
            cells: BTreeMap::new(),
            requests: BTreeMap::new(),
            changes: Vec::new(),
            disturbed: vec![None; plan.nodes],
            windows: plan.policy.limits.iter().map(Limit::windows).collect(),
            mixed: vec![false; plan.policy.limits.len()],
            back: vec![0; plan.nodes],
            forgot: None,
            denials: Vec::new(),
            held: BTreeMap::new(),
            penalties: plan.policy.limits.iter().map(|limit| limit.penalty).collect(),
            samples: BTreeMap::new(),
            seen: Coverage::default(),
        };
        let servers = (0..plan.servers).map(|_| Server::new()).collect();
        let own = Rng::with_seed(random.u64(..));
        let world = World::new(own, servers, plan.nodes, oracle);
        let wait = store.then_some(timeout);
        let nodes = (0..plan.nodes)
            .map(|index| Node::start(index, &world, plan.base, &plan.policy, wait))
            .collect();
        Self {
            world,
            nodes,
            timeout,
            random: Mutex::new(random),
            leaving: Mutex::default(),
            open: Arc::default(),
            results: Arc::default(),
            store,
        }
    }

    async fn live(&self, plan: &Plan) {
        let mut step = 0;
        {
            let mut state = self.world.state();
            self.world.after(&mut state, 1_000, Event::Step);
        }
        while !self.is_broken() && step < plan.steps {
            let Some(event) = self.world.next(u64::MAX).await else { break };
            if event == Event::Step {
                self.step(plan, step);
                step += 1;
            } else {
                self.handle(event, plan.base);
            }
            self.rest(plan.base).await;
        }
        if !self.is_broken() {
            self.finish(plan.base).await;
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.world.state().failure.is_some()
    }

    /// Lets everybody finish what can be done now.
    pub(crate) async fn rest(&self, _base: u64) {
        self.world.settle().await;
        for node in &self.nodes {
            let away = self.world.state().is_away(node.index);
            if !away && node.engine.is_quiet() {
                self.world.oracle().quiet(node.index, self.world.now());
            }
        }
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, span: u64, base: u64) {
        let end = self.world.now() + span;
        while let Some(event) = self.world.next(end).await {
            self.handle(event, base);
            self.rest(base).await;
        }
        self.rest(base).await;
    }

    pub(crate) fn handle(&self, event: Event, base: u64) {
        match event {
            Event::Arrive(id) => self.world.arrive(id, base),
            Event::Reply(id) => self.world.reply(id),
            Event::Expire(id) => self.world.expire(id),
            Event::Probe { node, server } => {
                self.world.probe(node, server);
                self.tell(node);
            }
            Event::Step => {}
            Event::Leave(id) => {
                if let Some(leave) = self.leaving.lock().unwrap().remove(&id) {
                    let _ = leave.send(());
                }
            }
            Event::End(id) => self.end_request(id),
        }
    }

    /// A node's transport says that something changed.
    pub(crate) fn tell(&self, node: usize) {
        self.nodes[node].changed.notify_waiters();
    }

    fn step(&self, plan: &Plan, step: usize) {
        for fault in &plan.faults {
            if fault.to == step {
                self.end(fault);
            }
            if fault.from == step {
                self.begin(fault);
            }
        }
        for (at, node, policy) in &plan.reloads {
            if *at == step {
                self.world.oracle().reloaded(policy);
                self.nodes[*node].reload(policy);
                let mut state = self.world.state();
                self.world
                    .note(&mut state, format_args!("node {node} reloads:\n{}", policy.yaml()));
            }
        }
        let mut random = self.random.lock().unwrap();
        for node in &self.nodes {
            if random.u8(0..3) == 0 {
                node.engine.tick(&node.present().0);
            }
        }
        for _ in 0..random.usize(1..=plan.crowd) {
            let node = &self.nodes[random.usize(0..self.nodes.len())];
            let asked = match &plan.hot {
                Some(hot) if random.u8(0..4) > 0 => hot.clone(),
                _ => Asked::random(&mut random),
            };
            self.ask(node, asked, &mut random);
        }
        let longest = *random.choice(&[0, 2_000, 2_000, 60_000, 1_500_000, 12_000_000]).unwrap();
        let gap = random.u64(0..=longest) * 1_000;
        let mut state = self.world.state();
        self.world.after(&mut state, gap, Event::Step);
    }
}

impl Plan {
    /// What the schedule has.
    fn tell(&self, seen: &mut Coverage) {
        seen.schedules = 1;
        self.faults
            .iter()
            .filter(|fault| fault.from < self.steps)
            .for_each(|fault| seen.has(fault.kind.name()));
        let scope = self.scope;
        let policies = self.reloads.iter().map(|(_, _, policy)| policy).chain([&self.policy]);
        for limit in policies.flat_map(|policy| &policy.limits) {
            let variants = [limit.gold, limit.tin].into_iter().flatten();
            let differ = variants.clone().any(|rate| rate.period != limit.rate.period);
            for (holds, what) in [
                (limit.algorithm == Algorithm::Fixed, "fixed_window"),
                (limit.algorithm == Algorithm::Sliding, "sliding_window"),
                (limit.algorithm == Algorithm::Log, "sliding_log"),
                (limit.algorithm == Algorithm::Bucket, "token_bucket"),
                (limit.algorithm == Algorithm::Leaky, "leaky_bucket"),
                (limit.algorithm == Algorithm::InFlight, "max_in_flight"),
                (limit.step.is_some(), "refill_every"),
                (limit.max_delay.is_some(), "max_delay"),
                (limit.gold.is_some(), "plans"),
                (differ, "plans of other windows"),
                (limit.exceptions.0.is_some() || limit.exceptions.1.is_some(), "overrides"),
                (limit.candidate.is_some(), "candidate"),
                (limit.rollout.is_some(), "rollout"),
                (limit.shadow, "shadow"),
                (limit.counts_401, "count"),
                (limit.refunds_5xx, "refund"),
                (matches!(limit.cost, Cost::Response { .. }), "cost of the answer"),
                (matches!(limit.cost, Cost::Request(_)), "cost of the request"),
                (limit.penalty.is_some(), "penalty"),
                (scope.crowded, "little room"),
                (matches!(limit.missing, super::draw::Missing::Limit(_)), "missing_key chains"),
                (!scope.store, "embedded"),
                (self.servers == 1, "one server"),
                (self.servers > 1, "cluster"),
                (self.nodes > 1, "several nodes"),
                (!self.reloads.is_empty(), "reload"),
            ] {
                if holds {
                    seen.has(what);
                }
            }
        }
    }
}
