//! Trips: charges of different mailboxes that wait at the same time go out as one call.
//!
//! As long as few calls are away every one goes out at once. Beyond that they wait and share the
//! next, so a busy server is asked in larger calls and not more often. (In a Cluster a call is of
//! one slot, and every mailbox's goes by itself.)

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Remote;
use super::call::{Answered, Call, Charge, MAX_CHARGES};
use super::metrics::Failure;

/// Calls that may be away at once before others wait: enough that nobody waits for a server that is
/// merely far, few enough that those who wait for a busy one share a trip.
const MOST_AWAY: usize = 16;

type Settled = Result<Vec<Answered>, Failure>;

/// Calls that are away, and what waits for the next.
#[derive(Default)]
pub(super) struct Wagon(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    away: usize,
    waiting: VecDeque<Load>,
}

/// The charges of one mailbox.
struct Load {
    charges: Vec<Charge>,
    tell: oneshot::Sender<Settled>,
}

/// One of the calls that are away; the next is sent however it ends.
struct Away {
    remote: Arc<Remote>,
    done: bool,
}

impl Wagon {
    /// Settles the charges of one mailbox.
    pub(super) async fn settle(remote: &Arc<Remote>, charges: &[Charge]) -> Settled {
        let waits = {
            let mut inner = remote.wagon.0.lock();
            if remote.has_slots() || inner.away < MOST_AWAY {
                inner.away += 1;
                None
            } else {
                let (tell, waits) = oneshot::channel();
                inner.waiting.push_back(Load { charges: charges.to_vec(), tell });
                Some(waits)
            }
        };
        if let Some(waits) = waits {
            return waits.await.unwrap_or(Err(Failure::Unreachable));
        }
        let away = Away { remote: Arc::clone(remote), done: false };
        let settled = remote.call(&call_of(charges), slot_of(remote, charges)).await;
        away.go_on();
        settled
    }
}

impl Away {
    /// Somebody may wait for this one to be back.
    fn go_on(mut self) {
        self.done = true;
        let mut inner = self.remote.wagon.0.lock();
        if inner.waiting.is_empty() {
            inner.away -= 1;
        } else {
            drop(inner);
            tokio::spawn(Self { remote: Arc::clone(&self.remote), done: false }.carry());
        }
    }

    /// Carries what waits, trip after trip, until nothing does.
    async fn carry(mut self) {
        loop {
            let loads = {
                let mut inner = self.remote.wagon.0.lock();
                let loads = next(&mut inner.waiting);
                if loads.is_empty() {
                    inner.away -= 1;
                    self.done = true;
                    return;
                }
                loads
            };
            let call = call_of(loads.iter().flat_map(|load| &load.charges));
            match self.remote.call(&call, 0).await {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    for load in loads {
                        let own = answers.by_ref().take(load.charges.len()).collect();
                        // Its mailbox waits as long as the runtime lives.
                        let _ = load.tell.send(Ok(own));
                    }
                }
                // One of them named a cell that cannot be read: the others go by themselves.
                Err(Failure::Unreadable) if loads.len() > 1 => {
                    for load in loads {
                        let settled = self.remote.call(&call_of(&load.charges), 0).await;
                        let _ = load.tell.send(settled);
                    }
                }
                Err(failure) => {
                    for load in loads {
                        let _ = load.tell.send(Err(failure));
                    }
                }
            }
        }
    }
}

fn slot_of(remote: &Remote, charges: &[Charge]) -> u16 {
    charges.first().and_then(|one| one.spends.first()).map_or(0, |spend| remote.slot(spend))
}

fn call_of<'c>(charges: impl IntoIterator<Item = &'c Charge>) -> Call {
    let mut call = Call::default();
    for charge in charges {
        let _ = call.add(charge);
    }
    call
}

impl Drop for Away {
    fn drop(&mut self) {
        // Only after a panic, or at the end of the runtime.
        if !self.done {
            self.remote.wagon.0.lock().away -= 1;
        }
    }
}

/// As many loads as one call takes; at least one, if there is any.
fn next(waiting: &mut VecDeque<Load>) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    let mut call = Room::default();
    while let Some(load) = waiting.front() {
        if !call.takes(&load.charges) {
            break;
        }
        loads.extend(waiting.pop_front());
    }
    loads
}

/// What a call has room for, counted as if no two charges named the same cell.
#[derive(Default)]
struct Room {
    charges: usize,
    cells: usize,
}

impl Room {
    fn takes(&mut self, charges: &[Charge]) -> bool {
        let cells: usize = charges.iter().map(|charge| charge.spends.len()).sum();
        let first = self.charges == 0;
        let fits = self.charges + charges.len() <= MAX_CHARGES && self.cells + cells <= 256;
        if first || fits {
            self.charges += charges.len();
            self.cells += cells;
        }
        first || fits
    }
}
