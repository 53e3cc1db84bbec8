//! Clients: they ask, wait or leave, and their requests end with an answer or without.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use http::{HeaderMap, HeaderValue};
use tokio::sync::oneshot;
use tollgate::clock::Clock;
use tollgate::engine::{Decision, FinalResponse, Generation, Outcome, PendingSettlement};
use tollgate::policy::Facts;
use tollgate::policy::client::RequestClient;

use super::node::Node;
use super::oracle::Told;
use super::request::Asked;
use super::schedule::Schedule;
use super::settle::Answered;
use super::world::{Event, World};

/// A request that was let through, and has not ended.
pub(crate) struct Open {
    node: Arc<Node>,
    generation: Arc<Generation>,
    decision: Decision,
    pending: PendingSettlement,
}

/// What was decided, by request.
pub(crate) type Results = Arc<Mutex<BTreeMap<u64, (u64, Decision)>>>;

impl Schedule {
    /// A client asks a node. It may leave before it is told, and the request may end in many ways.
    pub(crate) fn ask(&self, node: &Arc<Node>, asked: Asked, random: &mut Rng) {
        let latency = match random.u8(0..5) {
            0 => None,
            1 => Some(0),
            2 => Some(random.u64(0..20_000) * 1_000),
            3 => Some(random.u64(0..2_000_000) * 1_000),
            _ => Some(random.u64(0..15_000_000) * 1_000),
        };
        let patience = (self.store && random.u8(0..12) == 0)
            .then(|| random.u64(0..=self.timeout.as_micros() as u64) * 1_000);
        self.send(node, asked, latency, patience);
    }

    /// The same, with what is drawn there. Says the request's number.
    pub(crate) fn send(
        &self,
        node: &Arc<Node>,
        asked: Asked,
        latency: Option<u64>,
        patience: Option<u64>,
    ) -> u64 {
        let id = self.world.number();
        let (leave, left) = oneshot::channel();
        if let Some(patience) = patience {
            let mut state = self.world.state();
            self.world.after(&mut state, patience, Event::Leave(id));
        }
        self.leaving.lock().unwrap().insert(id, leave);
        let (world, node) = (Arc::clone(&self.world), Arc::clone(node));
        let (open, results) = (Arc::clone(&self.open), Arc::clone(&self.results));
        tokio::spawn(async move {
            let Some((generation, decision, pending)) =
                decide(&world, &node, id, &asked, left).await
            else {
                return;
            };
            let now = world.now();
            results.lock().unwrap().insert(id, (now, decision.clone()));
            if decision.outcome != Outcome::Allowed {
                drop(pending);
                return;
            }
            open.lock().unwrap().insert(id, Open { node, generation, decision, pending });
            if let Some(latency) = latency {
                let mut state = world.state();
                world.after(&mut state, latency, Event::End(id));
            }
        });
        id
    }

    /// A request ends: its answer is there, or it never comes.
    pub(crate) fn end_request(&self, id: u64) {
        let Some(mut one) = self.open.lock().unwrap().remove(&id) else { return };
        let answered = {
            let mut state = self.world.state();
            let random = &mut state.random;
            let answered = Answered {
                status: *random.choice(&[200, 200, 401, 404, 500, 503]).unwrap(),
                used: random.bool().then(|| random.u32(0..9)),
                by_origin: random.u8(0..8) > 0,
            };
            let said = random.u8(0..8) > 0;
            self.world.note(
                &mut state,
                format_args!(
                    "node {}: request {id} ends: {:?}",
                    one.node.index,
                    said.then_some(answered)
                ),
            );
            said.then_some(answered)
        };
        let now = self.world.now();
        let Some(answered) = answered else {
            self.world.oracle().ended(id);
            return;
        };
        let mut headers = HeaderMap::new();
        if let Some(used) = answered.used {
            headers.insert("x-used", HeaderValue::from(used));
        }
        let walls: Vec<u64> = self.nodes.iter().map(|node| node.clock.now().wall.get()).collect();
        self.world.oracle().answered(id, answered, &walls, now);
        let said = FinalResponse {
            status: answered.status,
            headers: &headers,
            by_origin: answered.by_origin,
        };
        one.node.engine.finish(&one.generation, &mut one.decision, &mut one.pending, &said);
    }

    /// Every request ends now, without an answer.
    pub(crate) fn end_all(&self) {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        for (id, one) in open {
            self.world.oracle().ended(id);
            drop(one);
        }
    }
}

/// One decision, and what it told the oracle; `None`: the client left.
async fn decide(
    world: &Arc<World>,
    node: &Arc<Node>,
    id: u64,
    asked: &Asked,
    left: oneshot::Receiver<()>,
) -> Option<(Arc<Generation>, Decision, PendingSettlement)> {
    let (generation, policy) = node.present();
    let (headers, path) = (asked.headers(), asked.path());
    let began = world.now();
    world.oracle().asked(id, node.index, asked, &policy, began);
    let facts = Facts {
        connection: &tollgate::policy::ConnectionFacts::NONE,
        client: RequestClient {
            ip: IpAddr::from(asked.ip),
            ipv6_prefix: 64,
            peer_trusted: asked.trusted,
        },
        now: node.clock.now().wall,
        method: "POST",
        host: "h",
        path: &path,
        readings: &[],
        query: None,
        headers: &headers,
        conditions: None,
    };
    {
        let mut state = world.state();
        world.note(&mut state, format_args!("node {}: request {id}: {asked:?}", node.index));
    }
    let decided = tokio::select! {
        biased;
        Ok(()) = left => None,
        decided = node.engine.decide(&generation, &facts) => Some(decided),
    };
    let at = world.now();
    let Some((decision, pending)) = decided else {
        let mut state = world.state();
        world
            .note(&mut state, format_args!("node {}: request {id}: the client leaves", node.index));
        drop(state);
        world.oracle().left(id, at);
        return None;
    };
    let ambiguous = {
        let mut state = world.state();
        world.note(
            &mut state,
            format_args!("node {}: request {id}: {}", node.index, words(&decision)),
        );
        state.is_ambiguous(node.index, began)
    };
    let checked =
        world.oracle().decided(id, Told { at, now: node.engine.now(), ambiguous }, &decision);
    if let Err(why) = checked {
        world.fail(format!("request {id} at node {}: {why}", node.index));
    }
    Some((generation, decision, pending))
}

/// A decision in a line.
fn words(decision: &Decision) -> String {
    let answers = decision.verdicts.iter().map(|one| {
        let v = &one.verdict;
        let retry = match v.retry_after {
            Some(span) if !v.allowed => format!(", retry {span:?}"),
            _ => String::new(),
        };
        format!("l{} {:?} {} of {} left{retry}", one.limit.0, one.kind, v.remaining, v.limit)
    });
    let answers: Vec<String> = answers.collect();
    format!("{:?} under {}: {}", decision.outcome, decision.generation, answers.join("; "))
}
