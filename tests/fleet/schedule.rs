//! One schedule: some nodes, some traffic, and what goes wrong. A seed is a schedule.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use tollgate::clock::{Clock, Nanos};
use tollgate::limit::{FleetBound, PROPAGATION_EXCHANGES, Rate, SlidingWindow};
use tollgate::policy::KeyHash;

use super::node::{Node, Setup};
use super::oracle::{Oracle, Reading};
use super::store::Store;
use super::time::{NodeClock, World, nanos};

/// How requests are spread over nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Balance {
    Even,
    /// Four of five go to one node.
    Skewed,
    /// A key goes to one node, and now and then to another.
    Sticky,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Nothing,
    Silent,
    Cut,
    Down,
    Emptied,
    Slow,
    Lost,
    Lies,
    /// The store's clock is set, by microseconds.
    Set(i64),
    Restarts,
    /// One node has another key secret, and one another limit.
    Foreign,
}

/// How nodes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// They exchange counts.
    Fleet,
    /// Each by itself, up to the limit.
    Node,
    /// Each by itself, up to its share of the limit.
    Split,
}

/// What a schedule has.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) limit: u32,
    pub(crate) period: Duration,
    pub(crate) every: Duration,
    /// In percent.
    pub(crate) error: u32,
    pub(crate) keys: u64,
    pub(crate) is_flat: bool,
    pub(crate) balance: Balance,
    pub(crate) requests: usize,
    /// Steps of a window: requests come in bursts that are this far apart.
    pub(crate) steps: u32,
    /// What an abuser tries to send in a window, as a multiple of the limit.
    pub(crate) pressure: u32,
    pub(crate) latency: Duration,
    /// How far clocks are off at most.
    pub(crate) skew: Duration,
    pub(crate) trouble: Trouble,
    pub(crate) counting: Counting,
}

/// What a schedule came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Refused requests of keys that may not be refused.
    pub(crate) wrong: Vec<String>,
    /// Admitted units above the bound.
    pub(crate) above: Vec<String>,
    pub(crate) refused: u64,
    /// Refused requests of honest keys.
    pub(crate) refused_honest: u64,
    /// The most units of an abuser in a window.
    pub(crate) most: u64,
    pub(crate) largest_call: u64,
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

/// Abusers of a schedule.
const ABUSERS: u64 = 3;

/// Keys that send no more than the limit in all.
const HONEST: u64 = 200;

/// About the most exchanges of a schedule, over all nodes.
const EXCHANGES: u64 = 1_000;

/// Windows of a schedule.
const WINDOWS: u32 = 4;

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let nodes = *random.choice(&[2, 2, 3, 3, 5, 5, 8, 20, 50]).unwrap();
        let period = *random.choice(&[2u64, 5, 10, 60]).unwrap();
        let every = *random.choice(&[100u64, 200, 500, 1_000]).unwrap();
        // A schedule has a bounded number of exchanges.
        let every = every.max(period * 1_000 * u64::from(WINDOWS) * nodes as u64 / EXCHANGES);
        let set = random.i64(-4_000_000..4_000_000);
        let troubles = [
            Trouble::Silent,
            Trouble::Cut,
            Trouble::Down,
            Trouble::Emptied,
            Trouble::Slow,
            Trouble::Lost,
            Trouble::Lies,
            Trouble::Set(set),
            Trouble::Restarts,
            Trouble::Foreign,
        ];
        let trouble =
            if random.bool() { Trouble::Nothing } else { *random.choice(&troubles).unwrap() };
        Self {
            seed,
            nodes,
            limit: *random.choice(&[3, 10, 60, 100, 600]).unwrap(),
            period: Duration::from_secs(period),
            every: Duration::from_millis(every),
            error: *random.choice(&[1, 5, 10, 25, 100]).unwrap(),
            keys: *random.choice(&[100, 10_000, 1_000_000, 1_000_000]).unwrap(),
            is_flat: random.bool(),
            balance: *random.choice(&[Balance::Even, Balance::Skewed, Balance::Sticky]).unwrap(),
            requests: random.usize(5_000..30_000),
            pressure: random.u32(2..30),
            latency: Duration::from_micros(random.u64(100..20_000)),
            skew: Duration::from_millis(*random.choice(&[0, 50, 3_000]).unwrap()),
            trouble,
            counting: Counting::Fleet,
            steps: *random.choice(&[60, 60, 240]).unwrap(),
        }
    }

    fn setup(&self) -> Setup {
        let scope = if self.counting == Counting::Fleet { "fleet" } else { "node" };
        let limit = match self.counting {
            Counting::Split => (self.limit / self.nodes as u32).max(1),
            Counting::Fleet | Counting::Node => self.limit,
        };
        let yaml = format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:1 }}]
origins: {{ site: {{ servers: [127.0.0.1:2] }} }}
store: {{ redis: {{ url: \"redis://127.0.0.1:3\" }} }}
fleet: {{ error: {}%, every: {}ms }}
limits:
  pages: {{ tier: estimate, rate: {}/{}s, key: client_ip, scope: {scope}, expect: {{ requests: 20000/s }} }}
routes: [{{ name: site, origin: site, limits: [pages] }}]
",
            self.error,
            self.every.as_millis(),
            limit,
            self.period.as_secs(),
        );
        Setup { yaml, secret: 5 }
    }

    fn quota(&self) -> SlidingWindow {
        SlidingWindow::new(Rate::new(self.limit, nanos(self.period)).unwrap())
    }

    /// The longest time until what a node admitted is known to all, if nothing goes wrong.
    fn horizon(&self) -> Duration {
        (self.every + 2 * self.latency) * PROPAGATION_EXCHANGES + 2 * self.latency
    }

    fn setup_of(&self, index: usize) -> Setup {
        let mut setup = self.setup();
        match (self.trouble, index) {
            (Trouble::Foreign, 0) => setup.secret = 9,
            (Trouble::Foreign, 1) => {
                let rate = format!("rate: {}/{}s", self.limit, self.period.as_secs());
                let other = format!("rate: {}/{}s", self.limit * 3, self.period.as_secs());
                setup.yaml = setup.yaml.replace(&rate, &other);
            }
            _ => {}
        }
        setup
    }
}

/// A fleet under way.
struct Fleet {
    plan: Plan,
    random: Rng,
    world: Arc<World>,
    store: Arc<Store>,
    nodes: Vec<Arc<Node>>,
    clocks: Vec<Arc<NodeClock>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    oracle: Oracle,
    report: Report,
    /// The largest error that a node has shown, in units.
    shown: f64,
    /// What honest keys have still to send.
    left: Vec<u32>,
    /// Engines that count, restarted ones included.
    engines: u64,
}

fn key(n: u64) -> KeyHash {
    let mut random = Rng::with_seed(n);
    KeyHash { high: random.u64(..), low: random.u64(..) }
}

const fn abuser(n: u64) -> u64 {
    u64::MAX - n
}

const fn honest(n: u64) -> u64 {
    u64::MAX - 1_000 - n
}

impl Fleet {
    fn start(plan: &Plan) -> Self {
        let mut random = Rng::with_seed(plan.seed ^ 0x5eed);
        let world = World::new(random.u64(..120_000_000_000));
        let store = Store::new(&world, random.u64(..));
        store.set(|faults| faults.slow = plan.latency);
        let skew = nanos(plan.skew).get() as i64;
        let clocks: Vec<_> = (0..plan.nodes)
            .map(|_| {
                let off = random.i64(-skew..=skew);
                let mono = random.u64(1_000_000_000..9_000_000_000_000_000);
                NodeClock::new(&world, off, random.i64(-150..150), mono)
            })
            .collect();
        let (off, tolerance) = match plan.trouble {
            Trouble::Set(off) => (off, plan.horizon()),
            Trouble::Lies => (0, plan.horizon()),
            _ => (0, Duration::ZERO),
        };
        let oracle =
            Oracle::new(plan.quota(), plan.nodes, off, nanos(tolerance), nanos(plan.horizon()));
        let mut fleet = Self {
            plan: plan.clone(),
            random,
            world,
            store,
            nodes: Vec::new(),
            clocks,
            tasks: Vec::new(),
            oracle,
            report: Report::default(),
            shown: 0.0,
            left: vec![plan.limit; HONEST as usize],
            engines: 0,
        };
        for index in 0..plan.nodes {
            let node = fleet.begin(index);
            fleet.nodes.push(node);
        }
        fleet
    }

    fn begin(&mut self, index: usize) -> Arc<Node> {
        let setup = self.plan.setup_of(index);
        let node = Node::start(index, &setup, &self.store, Arc::clone(&self.clocks[index]));
        let task = tokio::spawn(Arc::clone(&node).exchange());
        match self.tasks.get_mut(index) {
            Some(before) => std::mem::replace(before, task).abort(),
            None => self.tasks.push(task),
        }
        self.engines += 1;
        node
    }

    fn node_for(&mut self, n: u64) -> usize {
        let nodes = self.plan.nodes;
        match self.plan.balance {
            Balance::Even => self.random.usize(..nodes),
            Balance::Skewed if self.random.u8(..5) > 0 => 0,
            Balance::Skewed => self.random.usize(..nodes),
            Balance::Sticky if self.random.u8(..10) > 0 => (n % nodes as u64) as usize,
            Balance::Sticky => self.random.usize(..nodes),
        }
    }

    fn readings(&self) -> Vec<Reading> {
        let reading = |(node, clock): (&Arc<Node>, &Arc<NodeClock>)| {
            let at = node.engine.confirm_table().clock().read(clock.now());
            Reading { earliest: at.earliest, latest: at.latest }
        };
        self.nodes.iter().zip(&self.clocks).map(reading).collect()
    }

    fn request(&mut self, n: u64, node: usize, readings: &[Reading]) {
        let (at, now) = (self.world.wall(), self.clocks[node].now());
        let name = key(n);
        if self.nodes[node].request(name, now).allowed {
            let above = self.oracle.admitted(name, node, at, readings);
            self.check_bound(n, at, above);
            return;
        }
        self.report.refused += 1;
        let other_limit = self.plan.trouble == Trouble::Foreign && node == 1;
        if !other_limit && !self.oracle.may_refuse(name, node, at, readings[node]) {
            let spent = self.oracle.spent(name, at);
            self.report.wrong.push(format!("node {node} refuses key {n} with {spent} units"));
        }
    }

    /// Above the limit there are at most: what nodes do not publish, what they admitted lately, and what the confirm tables did
    /// not count. (A node with clocks that are not exact reads a window a moment later than it is.)
    fn check_bound(&mut self, n: u64, at: Nanos, above: u64) {
        let is_faulty =
            self.plan.trouble != Trouble::Nothing || self.plan.counting != Counting::Fleet;
        if above == 0 || is_faulty {
            let spent = self.oracle.spent(key(n), at);
            // One node has three times the limit.
            let more = if self.plan.trouble == Trouble::Foreign { 2 } else { 0 };
            let most = u64::from(self.plan.limit) * (self.engines + more) * 2;
            if spent > most {
                self.report.above.push(format!("key {n}: {spent} of at most {most}"));
            }
            return;
        }
        let limit = self.plan.limit;
        let bound = FleetBound::of(limit, self.plan.error * 10_000, self.plan.nodes as u32);
        let uncounted: u64 = self
            .nodes
            .iter()
            .map(|node| node.estimate().confirm_error(node.engine.confirm_table()))
            .sum();
        let late = nanos(4 * self.plan.latency).get() as f64 / nanos(self.plan.period).get() as f64;
        let clocks = (late * f64::from(limit)).ceil() as u64 + 1;
        let hidden = ((bound.hidden + uncounted) as f64).max(self.shown).ceil() as u64;
        if above > hidden + clocks {
            let shown = self.shown;
            self.report.above.push(format!(
                "key {n}: {above} above the limit and the latest units; hidden {hidden} (shown {shown:.1}), of these uncounted {uncounted}, clocks {clocks}"
            ));
        }
    }

    async fn wait(&mut self, span: Duration) {
        tokio::time::sleep(span).await;
        for node in &self.nodes {
            node.engine.tick(&node.generation);
            if self.plan.counting == Counting::Fleet {
                self.shown = self.shown.max(node.shown_error());
            }
        }
    }

    async fn step(&mut self) {
        let plan = self.plan.clone();
        self.wait(plan.period / plan.steps).await;
        let readings = self.readings();
        for _ in 0..plan.requests / (WINDOWS * plan.steps) as usize {
            let n = if plan.is_flat {
                self.random.u64(..plan.keys)
            } else {
                // The share of a key is about that of its rank: Zipf's law with exponent 1.
                (plan.keys as f64).powf(self.random.f64()) as u64
            };
            let node = self.node_for(n);
            self.request(n, node, &readings);
        }
        let tries = (u64::from(plan.limit) * u64::from(plan.pressure)).div_ceil(plan.steps.into());
        for n in 0..ABUSERS {
            for _ in 0..tries.min(400) {
                let node = self.node_for(n);
                self.request(abuser(n), node, &readings);
            }
            let spent = self.oracle.spent(key(abuser(n)), self.world.wall());
            self.report.most = self.report.most.max(spent);
        }
        for n in 0..HONEST {
            let left = self.left[n as usize];
            if left == 0 || self.random.u32(..plan.steps / 15) > 0 {
                continue;
            }
            let sent = self.random.u32(..=left.min(plan.limit.div_ceil(3)));
            self.left[n as usize] -= sent;
            for _ in 0..sent {
                // A client comes to one node mostly.
                let node = match self.random.u8(..5) {
                    0 => self.random.usize(..plan.nodes),
                    _ => n as usize % plan.nodes,
                };
                let refused = self.report.refused;
                self.request(honest(n), node, &readings);
                self.report.refused_honest += self.report.refused - refused;
                if self.report.refused > refused && plan.trouble != Trouble::Foreign {
                    self.report.wrong.push(format!("honest key {n} is refused on node {node}"));
                }
            }
        }
    }

    fn begin_trouble(&mut self) {
        let nodes = self.plan.nodes;
        let some = self.random.u64(1..1 << nodes.min(63));
        match self.plan.trouble {
            Trouble::Nothing | Trouble::Foreign => {}
            Trouble::Silent => {
                let node = self.random.usize(..nodes);
                self.store.set(|faults| faults.cut = 1 << node);
            }
            Trouble::Cut => self.store.set(|faults| faults.cut = some),
            Trouble::Down => self.store.set(|faults| faults.is_down = true),
            Trouble::Emptied => self.store.empty(),
            Trouble::Slow => self.store.set(|faults| faults.slow = Duration::from_secs(2)),
            Trouble::Lost => self.store.set(|faults| faults.lost = 40),
            Trouble::Lies => self.store.set(|faults| faults.lies = true),
            Trouble::Set(off) => self.store.set(|faults| faults.off = off),
            Trouble::Restarts => {
                for index in 0..nodes {
                    if some >> index & 1 == 1 {
                        self.nodes[index] = self.begin(index);
                        self.oracle.restarted(index);
                    }
                }
            }
        }
    }

    fn end_trouble(&mut self) {
        let (latency, plan) = (self.plan.latency, self.plan.trouble);
        self.store.set(|faults| {
            let off = if matches!(plan, Trouble::Set(_)) { faults.off } else { 0 };
            *faults = super::store::Faults { slow: latency, off, ..Default::default() };
        });
    }
}

/// Runs a schedule.
pub(crate) fn run(plan: &Plan) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut fleet = Fleet::start(plan);
        fleet.wait(3 * plan.every + 6 * plan.latency).await;
        let steps = WINDOWS * plan.steps;
        let (begin, end) = (steps / 3, steps * 2 / 3);
        for step in 0..steps {
            if step == begin {
                fleet.begin_trouble();
            }
            if step == end {
                fleet.end_trouble();
            }
            fleet.step().await;
        }
        fleet.tasks.iter().for_each(|task| task.abort());
        let store = &fleet.store;
        fleet.report.largest_call = store.largest.load(Ordering::SeqCst);
        fleet.report.calls = store.calls.load(Ordering::SeqCst);
        fleet.report.bytes =
            store.bytes_in.load(Ordering::SeqCst) + store.bytes_out.load(Ordering::SeqCst);
        fleet.report
    })
}
