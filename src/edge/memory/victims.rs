//! Chooses which slow connections are cut when memory runs short. A pure function of samples.
//!
//! Connections of the client that uses most are cut first, so a client with many small responses is cut before one
//! with a single large response. It does not know connections, only numbers. What must always hold: a connection that
//! reads in time is never chosen, and no other client is cut instead of a connection that had no time to read yet.

use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;

/// How often connections are sampled.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// A client that reads what waits for it within this time is no slow reader.
const PATIENCE: Duration = Duration::from_secs(1);

/// Responses that wait on one connection use at most the budget divided by this, once half of the budget is used.
pub(super) const CONNECTION_SHARE: usize = 8;

/// Connections are cut while less than the budget divided by this is free, before any request is refused for want of
/// memory. They are cut until twice as much is free, so that the next request does not start it again.
const HEADROOM: usize = 8;

/// The number of bytes in use above which connections are cut.
pub(super) const fn shortage_begins_at(budget: usize) -> usize {
    budget - budget / HEADROOM
}

/// The number of bytes in use above which closing idle connections is not enough. Half of the headroom is reserved for
/// what they still hold until they have closed.
pub(super) const fn shortage_is_urgent_at(budget: usize) -> usize {
    budget - budget / HEADROOM / 2
}

/// What one check has read about a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderSample {
    pub(super) client: IpAddr,
    /// Bytes of responses that wait.
    pub(super) waiting: usize,
    /// Bytes written in the last [`TICK`]; `None` for a new connection.
    pub(super) written: Option<u64>,
    pub(super) is_cut: bool,
}

impl ReaderSample {
    /// Whether it needs longer than [`PATIENCE`] for what waits, as far as that is known.
    fn may_be_slow(&self) -> bool {
        let ticks = PATIENCE.as_millis() / TICK.as_millis();
        let in_time = |written: u64| u128::from(written) * ticks >= self.waiting as u128;
        self.waiting > 0 && !self.is_cut && !self.written.is_some_and(in_time)
    }

    /// Whether its client has had no time to read.
    const fn is_new(&self) -> bool {
        self.written.is_none()
    }
}

/// The slow connections of one client.
#[derive(Debug, Default)]
struct SlowClient {
    /// Bytes that wait in all of them.
    waiting: usize,
    /// Indices of the samples.
    connections: Vec<usize>,
}

/// Bytes of responses that wait on connections that are being cut.
pub(super) fn being_freed(samples: &[ReaderSample]) -> usize {
    samples.iter().filter(|sample| sample.is_cut).map(|sample| sample.waiting).sum()
}

/// The bytes that wait for the client with the most waiting bytes.
pub(super) fn largest_waiting(samples: &[ReaderSample]) -> usize {
    let mut clients: HashMap<IpAddr, usize> = HashMap::new();
    for sample in samples {
        *clients.entry(sample.client).or_default() += sample.waiting;
    }
    clients.into_values().max().unwrap_or(0)
}

/// The indices of the connections to cut when `total` of `max` bytes are used. When half are used, these are
/// connections above their share; while the budget is nearly used up, also the largest connections of the client that
/// uses most. If the remaining connections of that client are new, the next check decides: others are not cut
/// instead.
pub(super) fn choose(samples: &[ReaderSample], total: usize, max: usize) -> Vec<usize> {
    let mut total = total.saturating_sub(being_freed(samples));
    let mut cut = Vec::new();
    let mut clients: HashMap<IpAddr, SlowClient> = HashMap::new();
    for (index, sample) in samples.iter().enumerate().filter(|(_, sample)| sample.may_be_slow()) {
        let is_half_used = total > max / 2;
        if is_half_used && sample.waiting > max / CONNECTION_SHARE && !sample.is_new() {
            total = total.saturating_sub(sample.waiting);
            cut.push(index);
            continue;
        }
        let client = clients.entry(sample.client).or_default();
        client.waiting += sample.waiting;
        client.connections.push(index);
    }
    if total <= shortage_begins_at(max) {
        return cut;
    }
    for client in clients.values_mut() {
        // The last is taken first: the largest connection that is not new; new ones come at the end.
        client
            .connections
            .sort_unstable_by_key(|index| (!samples[*index].is_new(), samples[*index].waiting));
    }
    let mut largest: BinaryHeap<(usize, IpAddr)> =
        clients.iter().map(|(address, client)| (client.waiting, *address)).collect();
    while total > max - 2 * (max / HEADROOM)
        && let Some((waiting, address)) = largest.pop()
    {
        let Some(index) = clients.get_mut(&address).and_then(|client| client.connections.pop())
        else {
            continue;
        };
        if samples[index].is_new() {
            break;
        }
        total = total.saturating_sub(samples[index].waiting);
        cut.push(index);
        largest.push((waiting - samples[index].waiting, address));
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn sample(number: u8, waiting: usize) -> ReaderSample {
        ReaderSample { client: client(number), waiting, written: Some(0), is_cut: false }
    }

    #[test]
    fn the_largest_connections_of_the_largest_client_are_cut() {
        let all = [
            sample(1, 60),
            sample(2, 30),
            sample(2, 25),
            sample(2, 20),
            sample(3, 50),
            sample(2, 10),
        ];
        assert_eq!(choose(&all, 875, 1_000), [0; 0], "enough is free");
        // 250 bytes are to be free: 130 are needed, client 2 has 85.
        assert_eq!(choose(&all, 880, 1_000), [1, 0, 2, 4], "of 85, 60, 55 and 50");
        let every_index = choose(&all, 9_000, 1_000);
        assert_eq!(every_index.len(), all.len());
    }

    #[test]
    fn clients_that_read_are_left_alone() {
        let fast = ReaderSample { written: Some(6), ..sample(1, 60) };
        let slow = ReaderSample { written: Some(5), ..sample(2, 60) };
        let new = ReaderSample { written: None, ..sample(3, 50) };
        let idle = sample(4, 0);
        assert_eq!(choose(&[fast, slow, new, idle], 2_000, 1_000), [1]);
    }

    #[test]
    fn no_other_client_is_cut_instead_of_a_new_connection() {
        let new = |number, waiting| ReaderSample { written: None, ..sample(number, waiting) };
        let all = [sample(1, 60), new(2, 50), sample(2, 10), new(2, 40)];
        assert_eq!(
            choose(&all, 876, 1_000),
            [2],
            "then the largest client has only new connections"
        );
        let later = [sample(1, 60), sample(2, 50), sample(2, 40)];
        assert_eq!(choose(&later, 876, 1_000), [1, 0, 2]);
    }

    #[test]
    fn a_connection_being_cut_counts_as_free() {
        let cut = ReaderSample { is_cut: true, ..sample(1, 100) };
        assert_eq!(choose(&[cut, sample(1, 90)], 975, 1_000), [0; 0]);
        assert_eq!(choose(&[cut, sample(1, 90)], 976, 1_000), [1]);
    }

    #[test]
    fn a_connection_above_its_share_is_cut_when_half_is_used() {
        assert_eq!(choose(&[sample(1, 126), sample(1, 125)], 501, 1_000), [0]);
        assert_eq!(choose(&[sample(1, 450)], 500, 1_000), [0; 0], "the memory is not needed");
    }
}
