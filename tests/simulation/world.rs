//! Virtual time, what is to happen when, and everything that all nodes share: servers, links, the
//! oracle and the trace. One thread; the locks are there for the compiler.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate::clock::{Clock, Nanos, Now};

use super::draw::SECOND;
use super::link::{Flight, Link};
use super::oracle::Oracle;
use super::server::Server;

/// What a node's monotonic clock says at the beginning, so that nothing depends on a young process.
pub(crate) const MONO: u64 = 3_600 * SECOND;

/// The resolution of the runtime's timers.
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// Turns that other tasks are given before time goes on: more than any chain of wake-ups is long.
const TURNS: usize = 32;

/// What is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A call comes to its server.
    Arrive(u64),
    /// A reply comes to its node.
    Reply(u64),
    /// A call takes too long.
    Expire(u64),
    /// A node looks after a server that it lost.
    Probe { node: usize, server: usize },
    /// The next step of the clients.
    Step,
    /// A client leaves.
    Leave(u64),
    /// A request ends, with an answer or without.
    End(u64),
}

/// See the module's text.
pub(crate) struct World {
    origin: Instant,
    woken: Notify,
    state: Mutex<State>,
    oracle: Mutex<Oracle>,
}

/// What changes.
pub(crate) struct State {
    pub(crate) random: Rng,
    pub(crate) events: BTreeMap<(u64, u64), Event>,
    next: u64,
    pub(crate) trace: Vec<String>,
    pub(crate) failure: Option<String>,
    pub(crate) flights: BTreeMap<u64, Flight>,
    pub(crate) servers: Vec<Server>,
    /// By node, then by server.
    pub(crate) links: Vec<Vec<Link>>,
}

impl World {
    pub(crate) fn new(
        random: Rng,
        servers: Vec<Server>,
        nodes: usize,
        oracle: Oracle,
    ) -> Arc<Self> {
        let links = (0..nodes).map(|_| servers.iter().map(|_| Link::default()).collect()).collect();
        let state = State {
            random,
            events: BTreeMap::new(),
            next: 0,
            trace: Vec::new(),
            failure: None,
            flights: BTreeMap::new(),
            servers,
            links,
        };
        Arc::new(Self {
            origin: Instant::now(),
            woken: Notify::new(),
            state: Mutex::new(state),
            oracle: Mutex::new(oracle),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap()
    }

    /// Nanoseconds since the beginning.
    pub(crate) fn now(&self) -> u64 {
        (Instant::now() - self.origin).as_nanos() as u64
    }

    /// Lets something happen after a while.
    pub(crate) fn after(&self, state: &mut State, span: u64, event: Event) {
        state.next += 1;
        state.events.insert((self.now() + span, state.next), event);
        self.woken.notify_one();
    }

    /// A number that nothing else has.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }

    pub(crate) fn note(&self, state: &mut State, what: std::fmt::Arguments<'_>) {
        let now = self.now();
        let mut line = format!("{:>6}.{:06} s  ", now / SECOND, now % SECOND / 1_000);
        line.write_fmt(what).unwrap();
        state.trace.push(line);
    }

    /// A promise is broken; the first one counts.
    pub(crate) fn fail(&self, why: String) {
        let mut state = self.state();
        self.note(&mut state, format_args!("BROKEN {why}"));
        state.failure.get_or_insert(why);
    }

    /// Goes to the next event, if it is due before `end`; else to `end`. Other tasks run meanwhile,
    /// and may let something happen earlier.
    pub(crate) async fn next(&self, end: u64) -> Option<Event> {
        loop {
            let first = self.state().events.first_key_value().map(|((at, _), _)| *at);
            let at = first.unwrap_or(u64::MAX).min(end);
            if at <= self.now() {
                let mut state = self.state();
                return match first {
                    Some(due) if due <= at => state.events.pop_first().map(|(_, event)| event),
                    _ => None,
                };
            }
            // The runtime's own time goes on in whole milliseconds from where it is.
            let part = self.now() % MILLISECOND;
            let whole = at.saturating_sub(part) / MILLISECOND;
            let whole = self.origin + Duration::from_millis(whole);
            tokio::select! {
                biased;
                () = self.woken.notified() => {}
                () = tokio::time::sleep_until(whole) => {
                    let left = at.saturating_sub(self.now());
                    let first = self.state().events.first_key_value().map(|((at, _), _)| *at);
                    if left > 0 && first.is_none_or(|first| first >= at) {
                        tokio::time::advance(Duration::from_nanos(left)).await;
                    }
                }
            }
        }
    }

    /// Lets everybody do what can be done now.
    pub(crate) async fn settle(&self) {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
    }
}

/// The clocks of one node.
pub(crate) struct NodeClock {
    origin: Instant,
    base: u64,
    /// How far its wall clock is off.
    off: AtomicI64,
}

impl NodeClock {
    pub(crate) fn new(world: &World, base: u64) -> Arc<Self> {
        Arc::new(Self { origin: world.origin, base, off: AtomicI64::new(0) })
    }

    pub(crate) fn step(&self, by: i64) {
        self.off.fetch_add(by, Ordering::SeqCst);
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Now {
        let now = (Instant::now() - self.origin).as_nanos() as u64;
        let wall = (self.base + now).saturating_add_signed(self.off.load(Ordering::SeqCst));
        Now { mono: Nanos::new(MONO + now), wall: Nanos::new(wall) }
    }

    fn date(&self, at: Now) -> Nanos {
        at.wall
    }
}
