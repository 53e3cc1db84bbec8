//! Between a node and the servers: messages that are late, lost, out of order, or wrong.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};
use tollgate::store::redis::{Arguments, Readiness, StoreFailure, StoreTransport};

use super::world::{Event, State, World};

/// Slots of a Cluster.
const SLOTS: usize = 16_384;

/// Failures in a row after which a node leaves a server alone.
const MOST_FAILURES: u32 = 3;

/// Between two looks at a server that is away.
const PROBE: u64 = 50_000_000;

/// As long as a connection that broke is opened again.
const RECONNECT: u64 = 5_000_000;

/// What a link does to messages. Shares in percent, times in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) delay: (u64, u64),
    pub(crate) loses_requests: u8,
    pub(crate) loses_replies: u8,
    /// Replies that mean nothing.
    pub(crate) garbles: u8,
    /// Replies that belong to the call before.
    pub(crate) confuses: u8,
    /// Nothing passes, and nobody says so.
    pub(crate) silent: bool,
    /// Connections are refused.
    pub(crate) cut: bool,
    readiness: Readiness,
    failures: u32,
    /// The reply to the call before, and to the script before.
    last: (Vec<u64>, Vec<String>),
}

/// What a node sends to a server.
#[derive(Clone)]
pub(crate) enum Request {
    /// Charges.
    Call(Arguments),
    /// A script that charges nothing.
    Script { text: String, keys: Vec<String>, words: Vec<String> },
}

/// What a server answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Numbers(Vec<u64>),
    Texts(Vec<String>),
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: (0, 300),
            loses_requests: 0,
            loses_replies: 0,
            garbles: 0,
            confuses: 0,
            silent: false,
            cut: false,
            readiness: Readiness::Ready,
            failures: 0,
            last: (Vec::new(), Vec::new()),
        }
    }
}

impl Link {
    /// Messages pass as they should from now on, and at once.
    pub(crate) fn heal(&mut self) {
        let (readiness, failures) = (self.readiness, self.failures);
        *self = Self { delay: (0, 0), readiness, failures, ..Self::default() };
    }
}

/// A call that was sent.
pub(crate) struct Flight {
    pub(crate) node: usize,
    server: usize,
    request: Request,
    reply: Result<Reply, StoreFailure>,
    tell: Option<oneshot::Sender<Result<Reply, StoreFailure>>>,
    pub(crate) ended: Option<u64>,
    /// Whether it may have charged and the node does not know.
    pub(crate) ambiguous: bool,
}

impl Flight {
    pub(crate) const fn is_between(&self, node: usize, server: usize) -> bool {
        self.node == node && self.server == server
    }

    /// Whether it charges. Nothing that is counted depends on what other scripts do.
    const fn charges(&self) -> bool {
        matches!(self.request, Request::Call(_))
    }
}

/// The transport of one node.
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) node: usize,
    pub(crate) changed: Arc<Notify>,
}

impl State {
    fn server_of(&self, slot: u16) -> usize {
        usize::from(slot) * self.servers.len() / SLOTS
    }

    /// Numbers that mean nothing.
    fn garbage(&mut self) -> impl Iterator<Item = u64> {
        let count = self.random.usize(0..8);
        (0..count).map(|_| self.random.u64(0..1_000))
    }

    /// Whether a call of a node was away at some time since `since`, and nobody knows what it did.
    pub(crate) fn is_ambiguous(&self, node: usize, since: u64) -> bool {
        let own = self.flights.values().filter(|flight| flight.node == node && flight.charges());
        own.clone().any(|flight| match flight.ended {
            None => true,
            Some(ended) => ended >= since && flight.ambiguous,
        })
    }

    /// Whether calls of a node are away.
    pub(crate) fn is_away(&self, node: usize) -> bool {
        let mut open = self.flights.values().filter(|flight| flight.ended.is_none());
        open.any(|flight| flight.node == node && flight.charges())
    }
}

#[async_trait]
impl StoreTransport for Wire {
    fn has_slots(&self) -> bool {
        self.world.state().servers.len() > 1
    }

    fn readiness(&self, slot: u16) -> Readiness {
        let readiness = {
            let state = self.world.state();
            state.links[self.node][state.server_of(slot)].readiness
        };
        if readiness != Readiness::Ready {
            self.disturbed();
        }
        readiness
    }

    async fn readiness_changed(&self) {
        self.changed.notified().await;
    }

    async fn call(
        &self,
        slot: u16,
        arguments: &Arguments,
        timeout: Duration,
    ) -> Result<Vec<u64>, StoreFailure> {
        match self.ask(slot, Request::Call(arguments.clone()), timeout).await? {
            Reply::Numbers(numbers) => Ok(numbers),
            Reply::Texts(_) => panic!("texts answer a call"),
        }
    }

    async fn evaluate(
        &self,
        slot: u16,
        script: &str,
        keys: &[String],
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Vec<String>, StoreFailure> {
        let (text, keys, words) = (script.to_owned(), keys.to_vec(), arguments.to_vec());
        match self.ask(slot, Request::Script { text, keys, words }, timeout).await? {
            Reply::Texts(texts) => Ok(texts),
            Reply::Numbers(_) => panic!("numbers answer a script"),
        }
    }

    fn record_invalid_reply(&self, slot: u16) {
        let mut state = self.world.state();
        let server = state.server_of(slot);
        self.world.note(&mut state, format_args!("node {} distrusts server {server}", self.node));
        // The node does not know what a reply that it cannot read would have told.
        let now = self.world.now();
        for flight in state.flights.values_mut() {
            flight.ambiguous |= flight.node == self.node && flight.ended == Some(now);
        }
        drop(state);
        self.disturbed();
        self.world.lose(self.node, server, true);
    }

    fn is_up(&self) -> bool {
        self.world.state().links[self.node].iter().all(|link| link.readiness == Readiness::Ready)
    }
}

impl Wire {
    fn disturbed(&self) {
        let now = self.world.now();
        self.world.oracle().disturbed[self.node] = Some(now);
    }

    async fn ask(
        &self,
        slot: u16,
        request: Request,
        timeout: Duration,
    ) -> Result<Reply, StoreFailure> {
        let answer = self.send(slot, request, timeout)?;
        let settled = answer.await.unwrap_or(Err(StoreFailure::Lost));
        if settled.is_err() {
            self.disturbed();
        }
        settled
    }

    fn send(
        &self,
        slot: u16,
        request: Request,
        timeout: Duration,
    ) -> Result<oneshot::Receiver<Result<Reply, StoreFailure>>, StoreFailure> {
        let id = self.world.number();
        let mut state = self.world.state();
        let server = state.server_of(slot);
        let link = state.links[self.node][server].clone();
        if link.readiness != Readiness::Ready {
            drop(state);
            self.disturbed();
            return Err(StoreFailure::Unreachable);
        }
        let (tell, answer) = oneshot::channel();
        let flight = Flight {
            node: self.node,
            server,
            request: request.clone(),
            reply: Err(StoreFailure::Lost),
            tell: Some(tell),
            ended: None,
            ambiguous: false,
        };
        state.flights.insert(id, flight);
        let lost = state.random.u8(0..100) < link.loses_requests || link.silent;
        let (from, to) = link.delay;
        let delay = state.random.u64(from..=to) * 1_000;
        let (what, keys, words) = match &request {
            Request::Call(arguments) => ("cells", arguments.keys.len(), arguments.argv.len()),
            Request::Script { keys, words, .. } => ("keys of a script", keys.len(), words.len()),
        };
        self.world.note(
            &mut state,
            format_args!(
                "node {} -> server {server}: call {id} on {keys} {what}, {words} words{}",
                self.node,
                if lost { ", lost" } else { "" }
            ),
        );
        if !lost {
            self.world.after(&mut state, delay, Event::Arrive(id));
        }
        self.world.after(&mut state, timeout.as_nanos() as u64, Event::Expire(id));
        Ok(answer)
    }
}

impl World {
    /// A call comes to its server.
    pub(crate) fn arrive(&self, id: u64, base: u64) {
        let mut state = self.state();
        let now = self.now();
        let Some(flight) = state.flights.get(&id) else { return };
        let (node, server) = (flight.node, flight.server);
        if !state.servers[server].up {
            return;
        }
        let reply = state.servers[server].answer(&state.flights[&id].request, base + now);
        self.note(&mut state, format_args!("server {server}: call {id} runs: {reply:?}"));
        let link = state.links[node][server].clone();
        let dice = state.random.u8(0..100);
        let garbles = dice < link.garbles;
        let confuses = !garbles && dice < link.garbles + link.confuses;
        let told = match &reply {
            Ok(Reply::Numbers(_)) if garbles => Ok(Reply::Numbers(state.garbage().collect())),
            Ok(Reply::Texts(_)) if garbles => {
                Ok(Reply::Texts(state.garbage().map(|number| number.to_string()).collect()))
            }
            Ok(Reply::Numbers(_)) if confuses => Ok(Reply::Numbers(link.last.0.clone())),
            Ok(Reply::Texts(_)) if confuses => Ok(Reply::Texts(link.last.1.clone())),
            _ => reply.clone(),
        };
        let State { links, flights, .. } = &mut *state;
        let last = &mut links[node][server].last;
        match (reply, &flights[&id].request) {
            (Ok(Reply::Numbers(numbers)), _) => last.0 = numbers,
            (Ok(Reply::Texts(texts)), _) => last.1 = texts,
            (Err(_), Request::Call(_)) => last.0.clear(),
            (Err(_), Request::Script { .. }) => last.1.clear(),
        }
        if let Some(flight) = state.flights.get_mut(&id) {
            flight.reply = told;
        }
        let lost = state.random.u8(0..100) < link.loses_replies || link.silent || link.cut;
        let (from, to) = link.delay;
        let delay = state.random.u64(from..=to) * 1_000;
        if lost {
            self.note(&mut state, format_args!("the reply to call {id} is lost"));
        } else {
            self.after(&mut state, delay, Event::Reply(id));
        }
    }

    /// A reply comes to its node.
    pub(crate) fn reply(&self, id: u64) {
        let reply = match self.state().flights.get(&id) {
            Some(flight) => flight.reply.clone(),
            None => return,
        };
        self.end(id, reply);
    }

    /// A call takes too long.
    pub(crate) fn expire(&self, id: u64) {
        self.end(id, Err(StoreFailure::Timeout));
    }

    fn end(&self, id: u64, settled: Result<Reply, StoreFailure>) {
        let mut state = self.state();
        let now = self.now();
        let Some(flight) = state.flights.get_mut(&id) else { return };
        let Some(tell) = flight.tell.take() else { return };
        flight.ended = Some(now);
        let (node, server) = (flight.node, flight.server);
        let failure = settled.as_ref().err().copied();
        let left = tell.send(settled).is_err();
        flight.ambiguous = left || failure.is_some_and(StoreFailure::may_have_charged);
        let Some(failure) = failure else {
            state.links[node][server].failures = 0;
            return;
        };
        self.note(&mut state, format_args!("node {node}: call {id} fails: {failure:?}"));
        if failure == StoreFailure::Unreadable {
            return;
        }
        let link = &mut state.links[node][server];
        link.failures += 1;
        if link.failures >= MOST_FAILURES && link.readiness == Readiness::Ready {
            drop(state);
            self.lose(node, server, false);
        }
    }

    /// A node has no connection to a server any more, or does not trust it; what is away is lost.
    pub(crate) fn lose(&self, node: usize, server: usize, soon: bool) {
        let mut state = self.state();
        let away = state.flights.iter().filter(|(_, flight)| {
            flight.node == node && flight.server == server && flight.ended.is_none()
        });
        let away: Vec<u64> = away.map(|(id, _)| *id).collect();
        let link = &mut state.links[node][server];
        let was = link.readiness;
        link.readiness = if soon { Readiness::Reconnecting } else { Readiness::Away };
        link.failures = 0;
        if was == Readiness::Ready {
            let span = if soon { RECONNECT } else { PROBE };
            self.after(&mut state, span, Event::Probe { node, server });
        }
        self.note(&mut state, format_args!("node {node} has lost server {server}"));
        drop(state);
        for id in away {
            self.end(id, Err(StoreFailure::Lost));
        }
    }

    /// A node looks after a server that it lost. Says whether it has it again.
    pub(crate) fn probe(&self, node: usize, server: usize) -> bool {
        let mut state = self.state();
        let healthy = state.servers[server].up && state.servers[server].refuses.is_none();
        let link = &mut state.links[node][server];
        if healthy && !link.cut && !link.silent {
            link.readiness = Readiness::Ready;
            link.failures = 0;
            self.note(&mut state, format_args!("node {node} has server {server} again"));
            return true;
        }
        link.readiness = Readiness::Away;
        self.after(&mut state, PROBE, Event::Probe { node, server });
        false
    }
}
