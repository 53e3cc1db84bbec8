//! The nodes of a case: an engine for each, on one clock, and what nodes with one shared store tell each other.
//!
//! ```text
//!   shared at once           cells of exact limits
//!   when time passes         bans
//!   every `fleet.every`      counts of limits with `scope: fleet`
//!   never                    requests in flight, counts of other estimate limits
//! ```
//!
//! Without a shared store nothing is shared. Each time line of a case is the same for all nodes.

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::TestStore;
use super::channel::CaseChannel;
use crate::clock::{Clock, ManualClock, Nanos, Now};
use crate::config::StoreConfig;
use crate::engine::{Engine, FleetExchange, FleetLimits, Generation};
use crate::policy::{KeySecret, Policy};
use crate::store::Bans;

/// Interval of the periodic work of the engines while time passes.
const TICK: Nanos = Nanos::SECOND;

/// The last part of a pause, during which the periodic work runs. Before it only the clock advances,
/// because idle state does not change except by age.
const TICKED_PAUSE: Nanos = Nanos::from_secs(600);

/// After so many rounds without anything new, every node knows all that the others publish: in the first, each reads the
/// rest; in the second, none answers what it read.
const QUIET_ROUNDS: u32 = 2;

/// The most rounds in one pause until nothing new is expected. They publish more counts than a case has.
const MAX_ROUNDS: u32 = 256;

/// The nodes of a case.
pub(super) struct CaseNodes {
    clock: Arc<ManualClock>,
    nodes: Vec<CaseNode>,
    /// `None`: nothing is shared.
    fleet: Option<CaseFleet>,
}

/// One node.
pub(super) struct CaseNode {
    pub(super) engine: Engine,
    pub(super) generation: Generation,
    exchange: FleetExchange,
}

/// What the nodes share besides the cells of exact limits.
struct CaseFleet {
    channel: CaseChannel,
    /// The bans as the shared store has them.
    bans: Bans,
    every: Nanos,
    /// When the nodes exchange counts next.
    next: Nanos,
    /// Rounds of exchanges in this pause, and how many of the latest brought nothing new.
    rounds: u32,
    quiet_rounds: u32,
}

impl CaseNodes {
    /// Starts `count` nodes, at least one. They know each other from the beginning.
    pub(super) fn start(
        policy: Policy,
        count: usize,
        configured: &StoreConfig,
        store: &dyn TestStore,
        clock: Arc<ManualClock>,
    ) -> Self {
        let secret = || KeySecret::new([3; 16]);
        let is_fleet = count > 1 && !configured.is_embedded();
        let fleet = is_fleet.then(|| CaseFleet {
            channel: CaseChannel::new(Arc::clone(&clock), u32::try_from(count).unwrap_or(u32::MAX)),
            bans: Bans::default(),
            every: policy.fleet.every,
            next: clock.now().wall,
            rounds: 0,
            quiet_rounds: 0,
        });
        let first = CaseNode::start(store.engine(Arc::clone(&clock), secret()), policy.clone());
        let mut nodes = Vec::with_capacity(count);
        for _ in 1..count {
            let engine = match is_fleet {
                true => first.engine.with_same_cells(secret()),
                false => store.engine(Arc::clone(&clock), secret()),
            };
            nodes.push(CaseNode::start(engine, policy.clone()));
        }
        nodes.insert(0, first);
        let mut nodes = Self { clock, nodes, fleet };
        nodes.nodes.iter().for_each(|node| node.engine.set_heard_changes(0));
        nodes.share_bans();
        nodes.exchange();
        nodes
    }

    pub(super) fn get(&self, index: usize) -> &CaseNode {
        // A case has the nodes that its steps name.
        &self.nodes[index.min(self.nodes.len() - 1)]
    }

    /// Lets time pass until `wanted`, with the periodic work and the exchanges that are scheduled until then.
    pub(super) fn pass_time(&mut self, wanted: Nanos) {
        let mut left = wanted.saturating_sub(self.clock.now().wall);
        if left > Nanos::ZERO {
            self.share_bans();
        }
        if let Some(fleet) = &mut self.fleet {
            (fleet.rounds, fleet.quiet_rounds) = (0, 0);
        }
        if left > TICKED_PAUSE {
            self.advance_through(wanted.saturating_sub(TICKED_PAUSE), wanted);
            left = TICKED_PAUSE;
        }
        while left > Nanos::ZERO {
            let step = left.min(TICK);
            left = left.saturating_sub(step);
            self.advance_through(wanted.saturating_sub(left), wanted);
            self.nodes.iter().for_each(|node| node.engine.tick(&node.generation));
        }
    }

    /// Advances the clock to `to`, through the exchanges that are scheduled until then. `end`: when the pause ends.
    fn advance_through(&mut self, to: Nanos, end: Nanos) {
        while let Some(next) = self.fleet.as_mut().and_then(|fleet| fleet.next_round(to, end)) {
            self.advance_to(next);
            self.exchange();
        }
        self.advance_to(to);
    }

    fn advance_to(&self, to: Nanos) {
        self.clock.advance(to.saturating_sub(self.clock.now().wall));
    }

    /// Each node makes one exchange, in the order in which the case names the nodes.
    fn exchange(&mut self) {
        let Some(fleet) = &mut self.fleet else {
            return;
        };
        let before = fleet.channel.writes();
        for CaseNode { engine, generation, exchange } in &mut self.nodes {
            // The channel answers at once, so the future is ready.
            let limits = FleetLimits::of(generation);
            let _pause = exchange.step_over(Some(&fleet.channel), engine, &limits).now_or_never();
        }
        fleet.next = fleet.next.saturating_add(fleet.every);
        fleet.rounds += 1;
        fleet.quiet_rounds =
            if fleet.channel.writes() == before { fleet.quiet_rounds + 1 } else { 0 };
    }

    /// Tells all nodes of the bans that they made since the last call.
    fn share_bans(&self) {
        let Some(fleet) = &self.fleet else {
            return;
        };
        let Now { mono: now, wall } = self.clock.now();
        // Any number that grows will do.
        let reported_at = wall.get();
        let made =
            self.nodes.iter().flat_map(|node| node.engine.bans().take_unshared(usize::MAX, now));
        for ban in made {
            let left = fleet.bans.record_reported(&ban, now);
            let until = now.saturating_add(left);
            for node in &self.nodes {
                node.engine.bans().record_shared(ban.key, until, reported_at, now);
            }
        }
        self.nodes.iter().for_each(|node| node.engine.bans().set_heard(reported_at));
    }
}

impl CaseNode {
    fn start(engine: Engine, policy: Policy) -> Self {
        let (generation, _) = engine.generation(policy, None);
        Self { engine, generation, exchange: FleetExchange::default() }
    }
}

impl CaseFleet {
    /// When the nodes exchange counts next, if that is until `to`. While there is nothing to tell, exchanges are skipped
    /// except for the last ones before `end`: a pause of a day has hundreds of thousands.
    fn next_round(&mut self, to: Nanos, end: Nanos) -> Option<Nanos> {
        let is_quiet = self.quiet_rounds >= QUIET_ROUNDS || self.rounds >= MAX_ROUNDS;
        let needed_from = end.saturating_sub(self.every.saturating_mul(QUIET_ROUNDS.into()));
        if is_quiet && self.next < needed_from {
            let skipped = needed_from.saturating_sub(self.next).get();
            let skipped = skipped.div_ceil(self.every.get().max(1));
            self.next = self.next.saturating_add(self.every.saturating_mul(skipped));
        }
        (self.next <= to).then_some(self.next)
    }
}
