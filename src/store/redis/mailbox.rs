//! Mailboxes: charges on one cell that arrive while a call on it is away go out together, as the
//! next call. (Group commit.)
//!
//! The first charge opens its cell's mailbox and goes out at once; when nothing waits, the mailbox
//! is gone. So a hot key costs one trip at a time however many requests ask, and a key that is not
//! hot never waits. A call belongs to no caller: it runs as a task of its own, and who stops
//! waiting for it takes nobody else's answer away. No lock is held while it is away.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Remote;
use super::call::{Answered, Call, Charge, Order};
use super::metrics::Failure;
use super::wagon::Wagon;
use crate::policy::KeyHash;

/// Locks among which the cells are spread.
const SHARDS: usize = 64;

/// The longest line of one cell, whatever its limit.
const MOST_WAITING: usize = 65_536;

/// What becomes of a charge.
pub(super) type Outcome = Result<Answered, Failure>;

/// A charge that waits, and who waits for it.
struct Ticket {
    charge: Charge,
    answer: oneshot::Sender<Outcome>,
}

/// A cell by its name: the key, and the family that it lies with. (While a reload changes the family,
/// a key has two cells, in two slots.)
type Name = (KeyHash, Option<KeyHash>);

/// Lines by their cell.
type Lines = HashMap<Name, Line>;

/// What waits for one cell's next call.
#[derive(Default)]
struct Line {
    tickets: VecDeque<Ticket>,
    /// Of them, those that ask: what is given back or owed takes nobody's place.
    asking: usize,
}

/// The mailboxes that are open: one for each cell on which a call is away.
pub(super) struct Mailboxes {
    shards: Box<[Mutex<Lines>]>,
}

impl Default for Mailboxes {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Mailboxes {
    fn shard(&self, (key, _): Name) -> &Mutex<Lines> {
        &self.shards[(key.high % SHARDS as u64) as usize]
    }

    /// Whether no call is away.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// Puts a charge into the mailbox of its outermost cell. `Err`: more wait there than its limit
    /// could admit at once.
    pub(super) fn post(
        remote: &Arc<Remote>,
        charge: Charge,
    ) -> Result<oneshot::Receiver<Outcome>, Failure> {
        let Some(outermost) = charge.spends.first() else {
            return Err(Failure::Invalid);
        };
        let key = (outermost.key, outermost.family);
        let most = outermost.quota.quota().limit() as usize;
        let (answer, waits) = oneshot::channel();
        let asks = charge.order == Order::Spend;
        let most = most.min(MOST_WAITING);
        let ticket = Ticket { charge, answer };
        let mut open = remote.mailboxes.shard(key).lock();
        match open.get_mut(&key) {
            Some(line) if asks && line.asking >= most => return Err(Failure::QueueFull),
            Some(line) if line.tickets.len() >= 2 * MOST_WAITING => return Err(Failure::QueueFull),
            Some(line) => {
                line.asking += usize::from(asks);
                line.tickets.push_back(ticket);
            }
            None => {
                open.insert(key, Line::default());
                drop(open);
                let clerk = Clerk { remote: Arc::clone(remote), key, done: false };
                tokio::spawn(clerk.settle_all(ticket));
            }
        }
        Ok(waits)
    }
}

/// Settles the charges of one mailbox, call after call. However it ends, the mailbox is closed and
/// whoever waits is told.
struct Clerk {
    remote: Arc<Remote>,
    key: Name,
    /// The mailbox is closed; another may have been opened since.
    done: bool,
}

impl Clerk {
    async fn settle_all(mut self, first: Ticket) {
        let (mut charges, mut waiters) = (vec![first.charge], vec![first.answer]);
        loop {
            let settled = Wagon::settle(&self.remote, &charges).await;
            charges.clear();
            let failed = settled.as_ref().err().copied();
            match settled {
                Ok(answers) => {
                    for (waiter, answered) in waiters.drain(..).zip(answers) {
                        // Who does not wait any more has left what it spent.
                        let _ = waiter.send(Ok(answered));
                    }
                }
                Err(failure) => tell(waiters.drain(..), failure),
            }
            let mut open = self.remote.mailboxes.shard(self.key).lock();
            if let Some(failure) = failed {
                // They did not go out: nothing of them was spent, and nobody waits twice.
                let waiting = open.remove(&self.key);
                self.done = true;
                drop(open);
                let waiting = waiting.unwrap_or_default().tickets.into_iter();
                tell(waiting.map(|ticket| ticket.answer), failure);
                return;
            }
            let line = open.get_mut(&self.key);
            let next = line.map(next).filter(|next| !next.is_empty());
            let Some(next) = next else {
                open.remove(&self.key);
                self.done = true;
                return;
            };
            for ticket in next {
                charges.push(ticket.charge);
                waiters.push(ticket.answer);
            }
        }
    }
}

/// As many tickets as one call takes.
fn next(line: &mut Line) -> Vec<Ticket> {
    let (mut call, mut tickets) = (Call::default(), Vec::new());
    while let Some(ticket) = line.tickets.pop_front() {
        if call.add(&ticket.charge).is_err() {
            line.tickets.push_front(ticket);
            break;
        }
        line.asking -= usize::from(ticket.charge.order == Order::Spend);
        tickets.push(ticket);
    }
    tickets
}

impl Drop for Clerk {
    fn drop(&mut self) {
        // Only after a panic, or at the end of the runtime.
        if !self.done {
            self.remote.mailboxes.shard(self.key).lock().remove(&self.key);
        }
    }
}

fn tell(waiters: impl Iterator<Item = oneshot::Sender<Outcome>>, failure: Failure) {
    for waiter in waiters {
        let _ = waiter.send(Err(failure));
    }
}
