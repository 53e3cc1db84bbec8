//! One policy with its engine, on the time of a log.
//!
//! It is the engine of the proxy, with the same routes, keys, plans, costs and both tiers; only the clock is the log's, and the
//! values that a log has are asked for where the proxy would read a request. What must always hold: answers and ends are settled
//! in the order of their times before a later request is judged, as the proxy does.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, Version};

use super::clock::{LogClock, TimeLine};
use super::entry::{Lateness, LogEntry, Unjudged};
use super::open_requests::{Event, OpenRequest, OpenRequests, Settling, is_open};
use super::secrets::KeySecrets;
use crate::clock::{Nanos, Now};
use crate::config::Config;
use crate::engine::{Decision, Engine, Generation, SWEEPS_OF_ALL};
use crate::http::{Head, HeadBounds, RejectReason, validate};
use crate::policy::client::{ClientRules, RequestClient};
use crate::policy::{
    ConditionResults, ConnectionFacts, Coverage, Facts, Literals, LogValues, MissingValue, Policy,
    RecordedValues, literals,
};

/// The least time between two runs of the engine's periodic tasks, as in the proxy.
const TICK: Nanos = Nanos::from_millis(100);

/// The least number of requests between two sweeps while there is room for new keys.
const REQUESTS_PER_SWEEP: u32 = 4_096;

/// A policy that judges the requests of a log.
pub struct ReplayedPolicy {
    clock: Arc<LogClock>,
    engine: Engine,
    generation: Generation,
    clients: ClientRules,
    literals: Arc<Literals>,
    open: OpenRequests,
    line: TimeLine,
    ticked: Nanos,
    /// Requests since cells were swept.
    unswept: u32,
    /// The time of the last request.
    latest: Now,
}

/// What came of one request.
pub struct Judgment {
    /// The decision. Its verdicts are those of the limits that could be judged.
    pub decision: Decision,
    /// What was asked and is not in the log.
    pub missing: Vec<MissingValue>,
}

/// A request that no policy judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotJudged {
    /// The log does not have what is needed.
    Unjudged(Unjudged),
    /// tollgate would reject it before it asks a limit.
    Rejected(RejectReason),
}

impl ReplayedPolicy {
    /// The policy of a configuration, for logs with hashes under this secret.
    pub fn new(config: Config, KeySecrets { secret, is_known }: KeySecrets) -> Self {
        let clock = Arc::new(LogClock::default());
        let Config { mut policy, clients, .. } = config;
        policy.writes_traces = false;
        let literals = Arc::new(literals(&policy, Some(&secret).filter(|_| is_known)));
        let shared: Arc<dyn crate::clock::Clock> = Arc::clone(&clock) as _;
        let engine = Engine::new(shared, secret);
        let (generation, _) = engine.generation(policy, None);
        Self {
            clock,
            engine,
            generation,
            clients,
            literals,
            open: OpenRequests::default(),
            line: TimeLine::default(),
            ticked: Nanos::ZERO,
            unswept: 0,
            latest: Now { mono: Nanos::ZERO, wall: Nanos::ZERO },
        }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        self.generation.policy()
    }

    /// The engine's generation of the policy.
    pub const fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Processes that wrote tollgate's own log.
    pub fn processes(&self) -> usize {
        self.line.processes()
    }

    /// Requests that were ended early because more were open than are kept.
    pub const fn ended_early(&self) -> u64 {
        self.open.ended_early()
    }

    /// Judges the next request of the log, and calls `observe` with what was found. `coverage`: which values the lines of its log
    /// have.
    ///
    /// # Errors
    /// Why it is not judged.
    pub fn judge<R>(
        &mut self,
        entry: &LogEntry,
        coverage: &Arc<Coverage>,
        observe: impl FnOnce(&Judgment, &Facts<'_>, &Self) -> R,
    ) -> Result<R, NotJudged> {
        if entry.lateness == Lateness::OutOfOrder {
            return Err(NotJudged::Unjudged(Unjudged::Late));
        }
        self.advance(entry);
        let headers = &entry.headers;
        let client = self.client(entry, headers)?;
        let method = entry.method.as_ref().ok_or(NotJudged::Rejected(RejectReason::Method))?;
        let head = Head {
            method,
            target: entry.target.as_bytes(),
            authority: None,
            version: if entry.host.is_empty() { Version::HTTP_10 } else { Version::HTTP_11 },
            headers,
        };
        let valid = validate(head, BOUNDS).map_err(NotJudged::Rejected)?;
        let connection = connection(entry);
        let values =
            LogValues::new(Arc::clone(coverage), recorded(entry), Arc::clone(&self.literals))
                .with_user(entry.user.clone());
        let conditions = ConditionResults::of_log(values);
        let date = entry.at.wall;
        let facts = valid.facts(client, &connection, date, method, headers, &conditions);
        let (decision, pending) = self.engine.decide_now(&self.generation, &facts);
        let missing = conditions.log().map(LogValues::missing).unwrap_or_default();
        let mut judgment = Judgment { decision, missing };
        if entry.duration.is_none() && entry.trace.is_none() {
            self.leave_out_in_flight(&mut judgment.decision);
        }
        let observed = observe(&judgment, &facts, self);
        if is_open(&judgment.decision, &pending) {
            self.open.keep(OpenRequest::new(judgment.decision, pending, entry));
            self.settle_surplus();
        }
        Ok(observed)
    }

    /// Settles everything that is open: the log has ended.
    pub fn finish(&mut self) {
        while let Some(settling) = self.open.next_left() {
            self.settle(settling);
        }
    }

    /// Lets time pass until a request begins, with the answers and ends that come before it.
    fn advance(&mut self, entry: &LogEntry) {
        let trace = entry.trace.as_deref();
        while let Some(settling) = self.open.next_before(entry.at.wall, trace) {
            self.settle(settling);
        }
        let at = self.on_time_line(entry);
        self.clock.go_to(at);
        self.tick(at.wall);
    }

    /// The time of the engine. A long request whose line came too late is judged at the time of the last one.
    fn on_time_line(&mut self, entry: &LogEntry) -> Now {
        let at = match &entry.trace {
            None => {
                let wall = entry.at.wall.max(self.latest.wall);
                Now { mono: self.line.position_of_wall(wall), wall }
            }
            Some(trace) => {
                let mono = self.line.position(&trace.run, trace.at);
                Now { mono, wall: entry.at.wall }
            }
        };
        if entry.lateness != Lateness::InTime {
            return Now {
                mono: at.mono.max(self.latest.mono),
                wall: at.wall.max(self.latest.wall),
            };
        }
        self.latest = at;
        at
    }

    /// Runs the engine's periodic tasks, unless they ran a moment ago. Without requests nothing changes except by age. As long as
    /// there is room for new keys, cells that are idle change no verdict, and are swept now and then; without it they are swept
    /// as often as the process would have done.
    fn tick(&mut self, wall: Nanos) {
        self.unswept += 1;
        if wall.saturating_sub(self.ticked) < TICK {
            return;
        }
        let passed = wall.saturating_sub(self.ticked).get() / TICK.get();
        self.ticked = wall;
        self.engine.rotate_sketches(&self.generation);
        let sweeps = if self.engine.may_lack_room(&self.generation) {
            passed.min(SWEEPS_OF_ALL)
        } else {
            u64::from(self.unswept >= REQUESTS_PER_SWEEP)
        };
        if sweeps > 0 {
            self.unswept = 0;
        }
        (0..sweeps).for_each(|_| self.engine.sweep());
    }

    fn settle_surplus(&mut self) {
        while let Some(settling) = self.open.surplus() {
            self.settle(settling);
        }
    }

    /// Settles one event of an open request.
    fn settle(&mut self, settling: Settling) {
        let (engine, generation) = (&self.engine, &self.generation);
        let Some(open) = self.open.request(settling.request) else {
            return;
        };
        self.clock.go_to(settling.at);
        match settling.event {
            Event::DelayEnds => open.pending.end_delay(),
            Event::Answered => open.settle_answer(engine, generation),
            Event::RestEnds => open.settle_rest(engine, generation),
            Event::Ends => {
                open.settle_answer(engine, generation);
                open.settle_rest(engine, generation);
                self.open.end(settling.request);
            }
        }
    }

    /// Takes the verdicts of limits by requests in flight out of a decision on a request of unknown length.
    fn leave_out_in_flight(&self, decision: &mut Decision) {
        let policy = self.generation.policy();
        decision.verdicts.retain(|verdict| {
            !matches!(policy.limit(verdict.limit).count, crate::policy::Count::InFlight { .. })
        });
    }

    fn client(&self, entry: &LogEntry, headers: &HeaderMap) -> Result<RequestClient, NotJudged> {
        let ipv6_prefix = self.clients.ipv6_prefix;
        let unjudged = |why| Err(NotJudged::Unjudged(why));
        match (entry.client, &entry.trace) {
            (Some(ip), Some(trace)) => {
                Ok(RequestClient { ip, ipv6_prefix, peer_trusted: trace.values.trusted })
            }
            (Some(ip), None) => {
                let client = self.clients.client(ip, headers);
                let is_hidden = client.peer_trusted
                    && self.clients.trusts(client.ip)
                    && self.clients.address_header.is_some();
                if is_hidden { unjudged(Unjudged::HiddenClient) } else { Ok(client) }
            }
            (None, _) if self.needs_no_client() => {
                let ip = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                Ok(RequestClient { ip, ipv6_prefix, peer_trusted: false })
            }
            (None, _) => unjudged(Unjudged::NoClient),
        }
    }

    /// Whether neither a limit nor a route asks for the client's address.
    fn needs_no_client(&self) -> bool {
        let policy = self.generation.policy();
        let by_address = policy.limits.iter().any(|limit| {
            limit.key.sources().contains(&crate::policy::Source::ClientIp)
                || limit.missing_key == crate::policy::MissingKey::ClientIp
        });
        let matched = policy
            .routes
            .iter()
            .any(|route| route.matches.nested().iter().any(|matches| !matches.clients.is_empty()));
        !by_address && !matched
    }
}

/// A log has no larger heads than its lines are.
const BOUNDS: HeadBounds =
    HeadBounds { header_size: 1 << 20, header_fields: 1_000, body_size: None };

fn connection(entry: &LogEntry) -> ConnectionFacts {
    let listener = entry.trace.as_ref().and_then(|trace| trace.values.listener.as_deref());
    let facts = if entry.is_tls { ConnectionFacts::tls(None) } else { ConnectionFacts::NONE };
    facts.with_listener(listener.map(Arc::from))
}

fn recorded(entry: &LogEntry) -> Option<Box<RecordedValues>> {
    entry.trace.as_ref().map(|trace| Box::new(trace.values.clone()))
}
