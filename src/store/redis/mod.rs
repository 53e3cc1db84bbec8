//! The exact tier in servers that speak the protocol of Redis: one number for every node.
//!
//! ```text
//!   settle -> home (denied of late?) -> mailbox (one call at a time per cell)
//!          -> wagon (those of many cells that wait share a call) -> call -> server
//!                                                                     |
//!              topology (which server keeps the slot) <- MOVED, ASK --+
//! ```
//!
//! A charge that may have been spent is never sent again: only answers that say "not executed"
//! (MOVED, ASK, TRYAGAIN, NOSCRIPT) are followed, within the deadline.

mod address;
mod bans;
mod books;
mod call;
mod home;
mod mailbox;
mod owed;
mod said;
mod server;
mod slots;
mod topology;
mod transport;
mod wagon;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::clock::{Clock, Nanos, Now};
use crate::limit::{Receipt, Verdict};
use crate::policy::KeyHash;

pub use address::{Address, Login, Servers, Settings, Tls};
pub use books::{CallOutcome, Failure, StoreBooks};
pub use call::{Answered, Argument, Arguments, Call, Charge, Order, Spend};
pub use transport::{Readiness, Transport};

use home::Home;
use mailbox::Mailboxes;
use owed::Owed;
use server::{Common, Server, Trouble};
use topology::Topology;
use wagon::Wagon;

/// The script that settles charges.
pub const SCRIPT: &str = include_str!("charge.lua");

/// How often one call follows an answer that says "not executed".
const MOST_HOPS: usize = 16;

/// Between two attempts where a server says that the moment is wrong.
const SOON: Duration = Duration::from_millis(2);

/// All nodes of a site find a store back at once: each waits up to this before it tells what it
/// owes.
const JITTER: Duration = Duration::from_millis(500);

/// A store of many nodes.
pub struct Remote {
    topology: Arc<Topology>,
    /// Carries calls in place of the topology.
    carrier: Option<Arc<dyn Transport>>,
    common: Arc<Common>,
    mailboxes: Mailboxes,
    wagon: Wagon,
    home: Home,
    owed: Owed,
    timeout: Duration,
    sha: String,
    /// Whether bans are shared yet.
    shares_bans: OnceLock<()>,
    calls: AtomicU32,
}

impl Remote {
    /// Begins to connect, on the runtime that this is called in. Ready or not, charges can be
    /// settled: while no server answers they fail at once.
    pub fn start(settings: Settings, clock: Arc<dyn Clock>) -> Arc<Self> {
        let common = Arc::new(Common {
            login: settings.login,
            tls: settings.tls,
            prefix: settings.prefix,
            clock,
            books: StoreBooks::default(),
            look_again: Notify::new(),
            back: Notify::new(),
        });
        let topology = Topology::start(settings.servers, Arc::clone(&common));
        Self::made(topology, None, common, settings.timeout)
    }

    /// A store behind any transport: for tests, which put a simulated one there.
    pub fn over(
        transport: Arc<dyn Transport>,
        prefix: String,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let common = Arc::new(Common {
            login: Login::default(),
            tls: None,
            prefix,
            clock,
            books: StoreBooks::default(),
            look_again: Notify::new(),
            back: Notify::new(),
        });
        let topology = Topology::nothing(Arc::clone(&common));
        let remote = Self::made(topology, Some(Arc::clone(&transport)), common, timeout);
        let common = Arc::clone(&remote.common);
        tokio::spawn(async move {
            loop {
                transport.changed().await;
                if transport.is_up() {
                    common.back.notify_one();
                }
            }
        });
        remote
    }

    fn made(
        topology: Arc<Topology>,
        carrier: Option<Arc<dyn Transport>>,
        common: Arc<Common>,
        timeout: Duration,
    ) -> Arc<Self> {
        let remote = Arc::new(Self {
            topology,
            carrier,
            common,
            mailboxes: Mailboxes::default(),
            wagon: Wagon::default(),
            home: Home::default(),
            owed: Owed::default(),
            timeout,
            sha: redis::Script::new(SCRIPT).get_hash().to_owned(),
            shares_bans: OnceLock::new(),
            // Not from the same number each time: a late answer to another process is not ours.
            calls: AtomicU32::new(fastrand::u32(..)),
        });
        tokio::spawn(pay(Arc::downgrade(&remote)));
        remote
    }

    /// Waits until the store answers, for `most` at most. Says whether it does.
    pub async fn ready(&self, most: Duration) -> bool {
        let up = async {
            while !self.is_up() {
                tokio::time::sleep(SOON).await;
            }
        };
        tokio::time::timeout(most, up).await.is_ok()
    }

    /// Whether every server that keeps something answers.
    pub fn is_up(&self) -> bool {
        if let Some(carrier) = &self.carrier {
            return carrier.is_up();
        }
        self.topology.is_up()
    }

    /// Bytes that the servers hold, as they say.
    pub fn bytes(&self) -> u64 {
        self.topology.servers().iter().map(|one| one.said.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Whether a server may drop cells that have not refilled.
    pub fn may_evict(&self) -> bool {
        self.topology.servers().iter().any(|one| one.said.may_evict.load(Ordering::Relaxed))
    }

    /// Whether a server keeps nothing on disk.
    pub fn keeps_nothing(&self) -> bool {
        self.topology.servers().iter().any(|one| one.said.keeps_nothing.load(Ordering::Relaxed))
    }

    /// How long a decision waits.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What is counted of calls.
    pub fn books(&self) -> &StoreBooks {
        &self.common.books
    }

    /// Whether cells lie in slots, those of a family together.
    pub fn has_slots(&self) -> bool {
        if let Some(carrier) = &self.carrier {
            return carrier.has_slots();
        }
        self.topology.has_slots()
    }

    /// Charges that can be settled together have the same place.
    pub fn place(&self, spend: &Spend) -> u16 {
        self.place_of(spend.key, spend.family)
    }

    fn place_of(&self, key: KeyHash, family: Option<KeyHash>) -> u16 {
        if self.has_slots() { slots::slot_of(&self.common.prefix, key, family) } else { 0 }
    }

    /// What a charge is answered without asking, if it was denied a moment ago.
    pub fn denied_at_home(&self, spend: &Spend, generation: u64, now: Now) -> Option<Verdict> {
        if spend.returns { None } else { self.home.denied(spend.charged(), generation, now.mono) }
    }

    /// Charges all parts or none; they have the same [`Remote::place`]. `now`: any instant before.
    pub async fn settle(
        self: &Arc<Self>,
        spends: SmallVec<[Spend; 4]>,
        generation: u64,
        now: Now,
    ) -> Result<Answered, Failure> {
        let charges: SmallVec<[_; 4]> =
            spends.iter().map(|spend| (spend.charged(), spend.returns)).collect();
        let waits = Mailboxes::post(self, Charge { order: Order::Spend, spends })?;
        let answered = waits.await.unwrap_or(Err(Failure::Unreachable))?;
        for ((charged, returns), verdict) in charges.iter().zip(&answered.settlement.verdicts) {
            if !verdict.allowed && !returns {
                self.home.note(*charged, generation, now.mono, *verdict);
            }
        }
        Ok(answered)
    }

    /// Gives back what was spent by a charge; nobody waits for it.
    pub fn give_back(self: &Arc<Self>, mut spends: SmallVec<[Spend; 4]>, answered: &Answered) {
        for (spend, before) in spends.iter_mut().zip(&answered.before) {
            spend.before = *before;
        }
        self.post(Order::GiveBack(answered.at), spends);
    }

    /// Gives back some units of a charge that was spent at an instant of the store's clock; its
    /// `before` is what the store told then. Nobody waits for it.
    pub fn give_back_some(self: &Arc<Self>, spend: Spend, units: u32, at: u64) {
        self.post(Order::GiveBack(at), SmallVec::from_iter([spend.part(units)]));
    }

    /// Charges without asking; nobody waits for it.
    pub fn debit(self: &Arc<Self>, spend: Spend) {
        self.post(Order::Debit, SmallVec::from_iter([spend]));
    }

    fn post(self: &Arc<Self>, order: Order, spends: SmallVec<[Spend; 4]>) {
        // What cannot be told leaves what was spent as it is.
        let _ = Mailboxes::post(self, Charge { order, spends });
    }

    /// Whether no charge waits or is away.
    pub fn is_quiet(&self) -> bool {
        self.mailboxes.is_empty()
    }

    /// Notes what was admitted at home while the store was away.
    pub fn owe(&self, spend: &Spend, now: Now) {
        self.owed.add(spend, now);
    }

    /// What was admitted at home is given back at home.
    pub fn owe_less(&self, key: KeyHash, units: u32, receipt: Receipt, now: Now) {
        self.owed.take_back(key, units, receipt, now);
    }

    /// One call, and what it says of each charge.
    async fn call(&self, call: &Call) -> Result<Vec<Answered>, Failure> {
        let place = call.outermost().map_or(0, |(key, family)| self.place_of(key, family));
        if let Some(carrier) = &self.carrier {
            if carrier.readiness(place) != Readiness::Ready {
                return Err(Failure::Unreachable);
            }
            let number = self.calls.fetch_add(1, Ordering::Relaxed);
            let arguments = call.arguments(number, &self.common.prefix, self.has_slots());
            let reply = carrier.call(place, &arguments, self.timeout).await?;
            return call.answers(number, &reply).ok_or_else(|| {
                carrier.distrust(place);
                Failure::Invalid
            });
        }
        let server = self.topology.of_slot(place).filter(|server| server.is_up());
        let Some(server) = server else {
            return Err(Failure::Unreachable);
        };
        let books = &self.common.books;
        books.batches.count(call.len() as u64);
        let began = self.common.clock.now().mono;
        let settled = self.follow(call, server, began).await;
        books.durations.observe(self.common.clock.now().mono.saturating_sub(began));
        books
            .called(settled.as_ref().map_or_else(|failure| failure.outcome(), |_| CallOutcome::Ok));
        settled
    }

    /// Sends a call to where its cells lie.
    async fn follow(
        &self,
        call: &Call,
        mut server: Arc<Server>,
        began: Nanos,
    ) -> Result<Vec<Answered>, Failure> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let cmd = self.command(call, number);
        let deadline = began.saturating_add(Nanos::from(self.timeout));
        let mut asking = false;
        for _ in 0..MOST_HOPS {
            let left = Duration::from(deadline.saturating_sub(self.common.clock.now().mono));
            match server.send(&cmd, asking, left).await {
                Ok(value) => {
                    let answers = numbers(&value).and_then(|reply| call.answers(number, &reply));
                    return answers.ok_or_else(|| {
                        server.failed(Failure::Invalid, "an answer that means nothing");
                        Failure::Invalid
                    });
                }
                Err(Trouble::Failed(failure, why)) => {
                    server.failed(failure, &why);
                    return Err(failure);
                }
                Err(Trouble::Moved { slot, to }) => {
                    (server, asking) = (self.topology.moved(slot, &to), false);
                    self.until_up(&server, deadline).await;
                }
                Err(Trouble::Ask { to }) => {
                    (server, asking) = (self.topology.server(&to), true);
                    self.until_up(&server, deadline).await;
                }
                Err(Trouble::TryAgain) => tokio::time::sleep(SOON).await,
                Err(Trouble::NoScript) => {
                    if let Err(Trouble::Failed(failure, why)) = server.load(left).await {
                        server.failed(failure, &why);
                        return Err(failure);
                    }
                }
            }
        }
        Err(Failure::Refused)
    }

    /// A server that was never heard of is being connected to.
    async fn until_up(&self, server: &Server, deadline: Nanos) {
        while !server.is_up() && self.common.clock.now().mono < deadline {
            tokio::time::sleep(SOON).await;
        }
    }

    fn command(&self, call: &Call, number: u32) -> Cmd {
        let arguments = call.arguments(number, &self.common.prefix, self.topology.has_slots());
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(arguments.keys.len());
        for key in &arguments.keys {
            cmd.arg(key.as_bytes());
        }
        for argument in &arguments.rest {
            match argument {
                Argument::Word(word) => cmd.arg(word.as_bytes()),
                Argument::Number(number) => cmd.arg(*number),
            };
        }
        cmd
    }

    /// Tells the store what was admitted without it. Best effort: what fails is not told again.
    async fn pay(&self) {
        tokio::time::sleep(JITTER.mul_f64(fastrand::f64())).await;
        let mut owed = self.owed.take(self.common.clock.now());
        owed.sort_by_key(|charge| {
            charge.spends.first().map(|one| (self.place(one), one.key.high, one.key.low))
        });
        let mut rest = owed.as_slice();
        while let Some(first) = rest.first().and_then(|charge| charge.spends.first()) {
            let place = self.place(first);
            let (mut call, mut many) = (Call::default(), 0);
            for charge in rest {
                let there = charge.spends.first().map(|spend| self.place(spend)) == Some(place);
                if !there || !call.add(charge) {
                    break;
                }
                many += 1;
            }
            if many == 0 || self.call(&call).await.is_err() {
                return;
            }
            rest = &rest[many..];
        }
    }
}

/// The numbers of a reply.
fn numbers(value: &Value) -> Option<Vec<u64>> {
    let Value::Array(values) = value else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    values.iter().map(number).collect()
}

/// Pays whenever a server is back, until nobody holds the store any more.
async fn pay(remote: std::sync::Weak<Remote>) {
    loop {
        let Some(held) = remote.upgrade() else {
            return;
        };
        let common = Arc::clone(&held.common);
        drop(held);
        common.back.notified().await;
        let Some(held) = remote.upgrade() else {
            return;
        };
        held.pay().await;
    }
}
