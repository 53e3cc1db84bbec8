//! What goes wrong in a schedule, from one step to another.

use fastrand::Rng;

use super::schedule::Schedule;
use super::world::Event;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Slow,
    Jitter,
    LoseRequests,
    LoseReplies,
    Silence,
    Cut,
    Garble,
    Confuse,
    RestartKeeping,
    RestartEmpty,
    OutOfMemory,
    ReadOnly,
    Spoil,
    ServerClock,
    WallForwards,
    WallBack,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Slow,
        Self::Jitter,
        Self::LoseRequests,
        Self::LoseReplies,
        Self::Silence,
        Self::Cut,
        Self::Garble,
        Self::Confuse,
        Self::RestartKeeping,
        Self::RestartEmpty,
        Self::OutOfMemory,
        Self::ReadOnly,
        Self::Spoil,
        Self::ServerClock,
        Self::WallForwards,
        Self::WallBack,
    ];

    /// Its word in the table of what was met.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Slow => "fault: slow",
            Self::Jitter => "fault: out of order",
            Self::LoseRequests => "fault: requests lost",
            Self::LoseReplies => "fault: replies lost",
            Self::Silence => "fault: silence",
            Self::Cut => "fault: cut",
            Self::Garble => "fault: garbage replies",
            Self::Confuse => "fault: replies of another call",
            Self::RestartKeeping => "fault: restart that keeps",
            Self::RestartEmpty => "fault: restart that forgets",
            Self::OutOfMemory => "fault: out of memory",
            Self::ReadOnly => "fault: read only",
            Self::Spoil => "fault: a cell overwritten",
            Self::ServerClock => "fault: server clock steps",
            Self::WallForwards => "fault: wall clock forwards",
            Self::WallBack => "fault: wall clock back",
        }
    }

    const fn needs_store(self) -> bool {
        !matches!(self, Self::WallForwards | Self::WallBack)
    }
}

/// From which step to which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) from: usize,
    pub(crate) to: usize,
    node: usize,
    server: usize,
    /// Of the whole link, or of one direction of chance; in its own unit.
    size: u64,
}

impl Fault {
    pub(crate) fn random(
        random: &mut Rng,
        store: bool,
        steps: usize,
        shape: (usize, usize),
    ) -> Self {
        let kinds: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| store || !kind.needs_store()).collect();
        let kind = *random.choice(&kinds).unwrap();
        let from = random.usize(0..steps);
        Self {
            kind,
            from,
            to: from + random.usize(1..12),
            node: random.usize(0..shape.0),
            server: random.usize(0..shape.1.max(1)),
            size: random.u64(..),
        }
    }
}

/// How far a server's clock may step, in microseconds.
pub(crate) const CLOCK_STEP: i64 = 20_000;

impl Schedule {
    pub(crate) fn begin(&self, fault: &Fault) {
        let Fault { kind, node, server, size, .. } = *fault;
        let world = &self.world;
        let mut state = world.state();
        world
            .note(&mut state, format_args!("{} begins: node {node}, server {server}", kind.name()));
        let timeout = self.timeout.as_micros() as u64;
        if kind.needs_store() && state.links[node].is_empty() {
            return;
        }
        match kind {
            Kind::Slow => {
                state.links[node][server].delay = (timeout / 4, timeout / 4 + size % timeout)
            }
            Kind::Jitter => state.links[node][server].delay = (0, timeout / 2),
            Kind::LoseRequests => state.links[node][server].loses_requests = 20 + (size % 60) as u8,
            Kind::LoseReplies => state.links[node][server].loses_replies = 20 + (size % 60) as u8,
            Kind::Garble => state.links[node][server].garbles = 30,
            Kind::Confuse => state.links[node][server].confuses = 30,
            Kind::Silence => state.links[node][server].silent = true,
            Kind::Cut => {
                state.links[node][server].cut = true;
                drop(state);
                self.break_link(node, server);
            }
            Kind::RestartKeeping | Kind::RestartEmpty => {
                state.servers[server].up = false;
                if kind == Kind::RestartEmpty {
                    state.servers[server].empty();
                    world.oracle().forgot(world.now());
                }
                drop(state);
                (0..self.nodes.len()).for_each(|node| self.break_link(node, server));
            }
            Kind::OutOfMemory => {
                state.servers[server].refuses =
                    Some("OOM command not allowed when used memory > 'maxmemory'.");
            }
            Kind::ReadOnly => {
                state.servers[server].refuses =
                    Some("READONLY You can't write against a read only replica.");
            }
            Kind::Spoil => {
                if state.servers[server].spoil(size as usize % 64).is_some() {
                    world.oracle().forgot(world.now());
                }
            }
            Kind::ServerClock => {
                let by = (size % (2 * CLOCK_STEP as u64)) as i64 - CLOCK_STEP;
                state.servers[server].off = by;
            }
            Kind::WallForwards | Kind::WallBack => {
                let span =
                    *[1u64, 700, 15_000, 3_600_000, 90_000_000].get(size as usize % 5).unwrap();
                let span = span * 1_000_000;
                drop(state);
                if kind == Kind::WallForwards {
                    self.nodes[node].clock.step(span as i64);
                } else {
                    self.nodes[node].clock.step(-(span as i64));
                    world.oracle().stepped_back(node, span);
                }
            }
        }
    }

    pub(crate) fn end(&self, fault: &Fault) {
        let Fault { kind, node, server, .. } = *fault;
        let world = &self.world;
        let mut state = world.state();
        world.note(&mut state, format_args!("{} ends: node {node}, server {server}", kind.name()));
        if kind.needs_store() && state.links[node].is_empty() {
            return;
        }
        match kind {
            Kind::Slow | Kind::Jitter => state.links[node][server].delay = (0, 300),
            Kind::LoseRequests => state.links[node][server].loses_requests = 0,
            Kind::LoseReplies => state.links[node][server].loses_replies = 0,
            Kind::Garble => state.links[node][server].garbles = 0,
            Kind::Confuse => state.links[node][server].confuses = 0,
            Kind::Silence => state.links[node][server].silent = false,
            Kind::Cut => state.links[node][server].cut = false,
            Kind::RestartKeeping | Kind::RestartEmpty => state.servers[server].up = true,
            Kind::OutOfMemory | Kind::ReadOnly => state.servers[server].refuses = None,
            Kind::Spoil => {
                state.servers[server].mend();
                world.oracle().forgot(world.now());
            }
            Kind::ServerClock => {}
            Kind::WallForwards | Kind::WallBack => {}
        }
    }

    /// A connection breaks: of the calls that are under way some do not arrive.
    fn break_link(&self, node: usize, server: usize) {
        let mut state = self.world.state();
        let flying: Vec<(u64, u64)> = state
            .events
            .iter()
            .filter(|(_, event)| match event {
                Event::Arrive(id) => state.flights[id].is_between(node, server),
                _ => false,
            })
            .map(|(at, _)| *at)
            .collect();
        for at in flying {
            if state.random.bool() {
                state.events.remove(&at);
            }
        }
        drop(state);
        self.world.lose(node, server, true);
        self.tell(node);
    }
}
