//! Which connections do not take their answers, and which of them are cut when memory runs short.
//!
//! A connection registers when it first has to wait for its client to read. While the budget is nearly used up,
//! the watch looks every [`TICK`] for connections that would need longer than [`PATIENCE`] to take what
//! waits for them, and cuts the largest ones of the client that uses most, until enough is free. So a client
//! with many small readers is cut before one with a single large one. Idle connections are closed, those of the
//! clients that hold most first, where that is not enough, and instead while one client's connections are thought to
//! hold more than what waits for any other. The watch knows nothing of HTTP: a connection that is told so ends
//! the answers that wait.

use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use super::connection_permits::ConnectionPermits;
use super::memory_budget::{MemoryBudget, MemoryKind};
use super::policy::{ConnectionPolicy, ShedReason};
use crate::clock::Clock;

/// Between two looks.
const TICK: Duration = Duration::from_millis(100);

/// A client that takes what waits for it within this is no slow reader.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers that wait on one connection use at most the budget divided by this, when half of it is used.
const CONNECTION_SHARE: usize = 8;

/// Connections are cut when less than the budget divided by this is free, so that slow readers are cut before
/// anybody's request is refused, until twice as much is free, so that the next request does not begin it again.
const HEADROOM: usize = 8;

/// Connections whose clients have kept us waiting.
#[derive(Debug, Default)]
pub(crate) struct SlowReaders {
    all: Mutex<HashMap<u64, Arc<Reader>>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Reader {
    client: IpAddr,
    /// Bytes of answers that wait for the client.
    waiting: AtomicUsize,
    /// Bytes written since the connection began.
    written: AtomicU64,
    is_cut: AtomicBool,
    waker: AtomicWaker,
}

/// A connection's own side of its registration; removed when dropped.
#[derive(Debug)]
pub(crate) struct SlowReader {
    readers: Arc<SlowReaders>,
    number: u64,
    reader: Arc<Reader>,
}

impl SlowReaders {
    /// Registers a connection of a client.
    pub(crate) fn register(self: &Arc<Self>, client: IpAddr) -> SlowReader {
        let reader = Arc::new(Reader {
            client,
            waiting: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().insert(number, Arc::clone(&reader));
        SlowReader { readers: Arc::clone(self), number, reader }
    }
}

impl SlowReader {
    /// Says how many bytes of answers wait, and how many were written since the connection began.
    pub(crate) fn update(&self, waiting: usize, written: u64) {
        self.reader.waiting.store(waiting, Ordering::Relaxed);
        self.reader.written.store(written, Ordering::Relaxed);
    }

    /// Whether the answers that wait are to be ended.
    pub(crate) fn is_cut(&self) -> bool {
        self.reader.is_cut.load(Ordering::Acquire)
    }

    /// They have been ended, and nothing of them is counted any more.
    pub(crate) fn was_cut(&self) {
        self.reader.is_cut.store(false, Ordering::Release);
    }

    /// Whom to wake when they are.
    pub(crate) fn wakes(&self, waker: &Waker) {
        self.reader.waker.register(waker);
    }
}

impl Drop for SlowReader {
    fn drop(&mut self) {
        self.readers.all.lock().remove(&self.number);
    }
}

/// Cuts slow readers when memory runs short.
pub(crate) struct MemoryWatch {
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) readers: Arc<SlowReaders>,
    pub(crate) policy: Arc<dyn ConnectionPolicy>,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl MemoryWatch {
    /// Goes on for as long as the process.
    pub(crate) async fn run(self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = HashMap::new();
        loop {
            ticks.tick().await;
            self.look(&mut before);
        }
    }

    /// Looks once; `before` is what the connections had written at the last look.
    fn look(&self, before: &mut HashMap<u64, u64>) {
        let (mut total, max) = (self.budget.total(), self.policy.rules().bounds.memory);
        if total <= max / CONNECTION_SHARE {
            before.clear();
            return;
        }
        let all: Vec<(u64, Arc<Reader>)> =
            self.readers.all.lock().iter().map(|(n, one)| (*n, Arc::clone(one))).collect();
        let seen: Vec<Seen> = all
            .iter()
            .map(|(number, reader)| {
                let written = reader.written.load(Ordering::Relaxed);
                Seen {
                    client: reader.client,
                    waiting: reader.waiting.load(Ordering::Relaxed),
                    written: before.get(number).map(|before| written.saturating_sub(*before)),
                    is_cut: reader.is_cut.load(Ordering::Relaxed),
                }
            })
            .collect();
        let is_short = |total: usize| total > max - max / HEADROOM;
        // Half of the headroom is for what idle connections take until they have closed.
        let may_wait = is_short(total) && total <= max - max / HEADROOM / 2;
        let idle_first = may_wait && self.largest_holder() > most_waiting(&seen);
        if idle_first && self.shed_idle() {
            total = max - max / HEADROOM;
        }
        let cut = chosen(&seen, total, max);
        let mut freed: usize = seen.iter().filter(|one| one.is_cut).map(|one| one.waiting).sum();
        for index in cut {
            let (_, reader) = &all[index];
            reader.is_cut.store(true, Ordering::Release);
            reader.waker.wake();
            self.policy.record_shed(ShedReason::SlowReader);
            freed += seen[index].waiting;
        }
        if is_short(total.saturating_sub(freed)) {
            self.shed_idle();
        }
        *before =
            all.iter().map(|(n, reader)| (*n, reader.written.load(Ordering::Relaxed))).collect();
    }

    /// Bytes of the client that has most connections, each as large as the others on average.
    fn largest_holder(&self) -> usize {
        let (largest, all) = self.permits.largest();
        let kinds = [MemoryKind::Connections, MemoryKind::Tls, MemoryKind::Streams];
        kinds.map(|kind| self.budget.held(kind)).iter().sum::<usize>() / all.max(1) * largest
    }

    /// Closes idle connections of the clients that hold most; whether there were any.
    fn shed_idle(&self) -> bool {
        let shed = self.permits.shed_idle(self.clock.now().mono);
        (0..shed).for_each(|_| self.policy.record_shed(ShedReason::IdleConnections));
        shed > 0
    }
}

/// Bytes that wait for the client for which most waits.
fn most_waiting(seen: &[Seen]) -> usize {
    let mut clients: HashMap<IpAddr, usize> = HashMap::new();
    for one in seen {
        *clients.entry(one.client).or_default() += one.waiting;
    }
    clients.into_values().max().unwrap_or(0)
}

/// A connection as it was seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    client: IpAddr,
    /// Bytes of answers that wait.
    waiting: usize,
    /// Bytes written in the last [`TICK`]; none for a connection that is new.
    written: Option<u64>,
    is_cut: bool,
}

impl Seen {
    /// Whether it needs longer than [`PATIENCE`] for what waits, as far as that is known.
    fn may_be_slow(&self) -> bool {
        let ticks = PATIENCE.as_millis() / TICK.as_millis();
        let in_time = |written: u64| u128::from(written) * ticks >= self.waiting as u128;
        self.waiting > 0 && !self.is_cut && !self.written.is_some_and(in_time)
    }

    /// Whether it has had no time to read.
    const fn is_new(&self) -> bool {
        self.written.is_none()
    }
}

/// Which connections are to be cut when `total` of `max` bytes are used: when half of them are, those above a
/// connection's share, and while the budget is nearly used up the largest of the client that uses most. When those
/// of that client are new, the next look decides: others are not cut in their place.
fn chosen(seen: &[Seen], total: usize, max: usize) -> Vec<usize> {
    let being_freed: usize = seen.iter().filter(|one| one.is_cut).map(|one| one.waiting).sum();
    let mut total = total.saturating_sub(being_freed);
    let mut cut = Vec::new();
    let mut clients: HashMap<IpAddr, (usize, Vec<usize>)> = HashMap::new();
    for (index, one) in seen.iter().enumerate().filter(|(_, one)| one.may_be_slow()) {
        let is_half_used = total > max / 2;
        if is_half_used && one.waiting > max / CONNECTION_SHARE && !one.is_new() {
            total = total.saturating_sub(one.waiting);
            cut.push(index);
            continue;
        }
        let (sum, connections) = clients.entry(one.client).or_default();
        *sum += one.waiting;
        connections.push(index);
    }
    let free = max / HEADROOM;
    if total <= max - free {
        return cut;
    }
    for (_, connections) in clients.values_mut() {
        connections.sort_unstable_by_key(|index| (!seen[*index].is_new(), seen[*index].waiting));
    }
    let mut largest: BinaryHeap<(usize, IpAddr)> =
        clients.iter().map(|(client, (sum, _))| (*sum, *client)).collect();
    while total > max - 2 * free
        && let Some((sum, client)) = largest.pop()
    {
        let Some(index) = clients.get_mut(&client).and_then(|(_, connections)| connections.pop())
        else {
            continue;
        };
        if seen[index].is_new() {
            break;
        }
        total = total.saturating_sub(seen[index].waiting);
        cut.push(index);
        largest.push((sum - seen[index].waiting, client));
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn seen(number: u8, waiting: usize) -> Seen {
        Seen { client: client(number), waiting, written: Some(0), is_cut: false }
    }

    #[test]
    fn the_largest_of_the_client_that_uses_most_are_cut() {
        let all = [seen(1, 60), seen(2, 30), seen(2, 25), seen(2, 20), seen(3, 50), seen(2, 10)];
        assert_eq!(chosen(&all, 875, 1_000), [0; 0], "enough is free");
        // 250 bytes are to be free: 130 are needed, client 2 has 85.
        assert_eq!(chosen(&all, 880, 1_000), [1, 0, 2, 4], "of 85, 60, 55 and 50");
        let all_of_them = chosen(&all, 9_000, 1_000);
        assert_eq!(all_of_them.len(), all.len());
    }

    #[test]
    fn clients_that_read_are_left_alone() {
        let fast = Seen { written: Some(6), ..seen(1, 60) };
        let slow = Seen { written: Some(5), ..seen(2, 60) };
        let new = Seen { written: None, ..seen(3, 50) };
        let idle = seen(4, 0);
        assert_eq!(chosen(&[fast, slow, new, idle], 2_000, 1_000), [1]);
    }

    #[test]
    fn nobody_is_cut_for_what_is_new() {
        let new = |number, waiting| Seen { written: None, ..seen(number, waiting) };
        let all = [seen(1, 60), new(2, 50), seen(2, 10), new(2, 40)];
        assert_eq!(chosen(&all, 876, 1_000), [2], "then the largest client has new ones only");
        let later = [seen(1, 60), seen(2, 50), seen(2, 40)];
        assert_eq!(chosen(&later, 876, 1_000), [1, 0, 2]);
    }

    #[test]
    fn what_is_being_cut_counts_as_free() {
        let cut = Seen { is_cut: true, ..seen(1, 100) };
        assert_eq!(chosen(&[cut, seen(1, 90)], 975, 1_000), [0; 0]);
        assert_eq!(chosen(&[cut, seen(1, 90)], 976, 1_000), [1]);
    }

    #[test]
    fn one_connection_has_its_share_only() {
        assert_eq!(chosen(&[seen(1, 126), seen(1, 125)], 501, 1_000), [0]);
        assert_eq!(chosen(&[seen(1, 450)], 500, 1_000), [0; 0], "nobody needs it");
    }

    #[test]
    fn a_registration_ends_with_its_connection() {
        let readers = Arc::<SlowReaders>::default();
        let one = readers.register(client(1));
        assert!(!one.is_cut());
        readers.all.lock().values().for_each(|one| one.is_cut.store(true, Ordering::Relaxed));
        assert!(one.is_cut());
        one.was_cut();
        assert!(!one.is_cut());
        drop(one);
        assert!(readers.all.lock().is_empty());
    }
}
