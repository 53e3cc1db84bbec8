//! The choice of one server for one attempt of a request.
//!
//! The framework orders the servers (in rotation, at random, by hash); least requests are found here. What is known about
//! their health then decides. It reads no clock and no request. What must always hold: a server whose health check fails
//! is never chosen, and a server is left out only while another one can be asked.

use std::hash::{DefaultHasher, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use pingora::lb::selection::{Consistent, Random, RoundRobin};
use pingora::lb::{Backend, Backends, LoadBalancer};

use super::health::{Admission, FULL_SHARE};
use super::servers::{InFlight, KnownServer, ServerList};
use crate::clock::Nanos;
use crate::config::Balance;

/// The largest number of servers that are looked at in the search for one.
const MAX_SERVERS_EXAMINED: usize = 256;

/// Servers among which the one with the fewest requests is searched. With more, the search would cost more than a better
/// choice saves: of sixteen servers, one with few requests is as good as the best of all.
const MAX_SERVERS_COMPARED: usize = 16;

/// A balancer for each way of choosing; each is a type of its own in the framework.
pub(super) enum Balancer {
    RoundRobin(LoadBalancer<RoundRobin>),
    Random(LoadBalancer<Random>),
    /// The framework only looks names up and sends checks.
    LeastRequests(LoadBalancer<RoundRobin>),
    Hash(LoadBalancer<Consistent>),
}

macro_rules! each {
    ($servers:expr, $balancer:ident => $do:expr) => {
        match $servers {
            Balancer::RoundRobin($balancer) | Balancer::LeastRequests($balancer) => $do,
            Balancer::Random($balancer) => $do,
            Balancer::Hash($balancer) => $do,
        }
    };
}

/// One attempt to send a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Attempt<'a> {
    /// Servers that failed this request before.
    pub tried: &'a [SocketAddr],
    /// Whether the request only reads, so that it may be sent to another server if this one fails.
    pub reads: bool,
    /// The monotonic time.
    pub now: Nanos,
}

/// The server of an attempt.
#[derive(Debug)]
pub(in crate::proxy) struct ChosenServer {
    /// Its address.
    pub address: SocketAddr,
    /// Counts the request, where the choice depends on that.
    pub in_flight: Option<InFlight>,
}

/// Which servers an attempt may be sent to. Later rules hold if an earlier one finds no server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Those that are not left out; those that came back get their share.
    Share,
    /// Those that are not left out.
    Admitted,
    /// Any: when all are left out, one of them may be back, and a refusal is certain without it.
    Any,
}

impl Balancer {
    pub(super) fn new(balance: &Balance, backends: Backends) -> Self {
        match balance {
            Balance::RoundRobin => Self::RoundRobin(LoadBalancer::from_backends(backends)),
            Balance::Random => Self::Random(LoadBalancer::from_backends(backends)),
            Balance::LeastRequests => Self::LeastRequests(LoadBalancer::from_backends(backends)),
            Balance::Hash(_) => Self::Hash(LoadBalancer::from_backends(backends)),
        }
    }

    /// Looks the servers up.
    pub(super) async fn resolve(&self) -> pingora::Result<()> {
        each!(self, balancer => balancer.update().await)
    }

    /// Sends a health check to each server.
    pub(super) async fn check(&self) {
        each!(self, balancer => balancer.backends().run_health_check(true).await);
    }

    /// A server for an attempt. `hashed`: the value whose hash decides, where one does.
    pub(super) fn choose(
        &self,
        list: &ServerList,
        hashed: &[u8],
        attempt: Attempt<'_>,
    ) -> Option<ChosenServer> {
        if let Self::LeastRequests(_) = self {
            return choose_least(list, attempt);
        }
        let is_untried = |address: &SocketAddr| !attempt.tried.contains(address);
        if !list.is_marked() {
            return self.select(hashed, is_untried);
        }
        // Equal values meet an equal chance, so that they change their server once while its share grows.
        let chance = match self {
            Self::Hash(_) => share_of(hashed),
            Self::RoundRobin(_) | Self::Random(_) | Self::LeastRequests(_) => {
                fastrand::u32(..FULL_SHARE)
            }
        };
        let known = list.load();
        let is_allowed = |rule: Rule, address: &SocketAddr| match known.find(address) {
            _ if rule == Rule::Any => true,
            Some(server) => {
                (rule == Rule::Admitted || chance < server.health.share(attempt.now))
                    && server.health.admit(attempt.reads, attempt.now) != Admission::LeftOut
            }
            None => true,
        };
        [Rule::Share, Rule::Admitted, Rule::Any].into_iter().find_map(|rule| {
            self.select(hashed, |address| is_untried(address) && is_allowed(rule, address))
        })
    }

    fn select(
        &self,
        hashed: &[u8],
        is_allowed: impl Fn(&SocketAddr) -> bool,
    ) -> Option<ChosenServer> {
        let accept = |backend: &Backend, is_healthy: bool| {
            is_healthy && backend.as_inet().is_some_and(&is_allowed)
        };
        let chosen =
            each!(self, balancer => balancer.select_with(hashed, MAX_SERVERS_EXAMINED, accept));
        let address = chosen.and_then(|backend| backend.as_inet().copied())?;
        Some(ChosenServer { address, in_flight: None })
    }
}

/// A number below [`FULL_SHARE`], the same for equal values on every node.
fn share_of(value: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(value);
    u32::try_from(hasher.finish() % u64::from(FULL_SHARE)).unwrap_or(0)
}

fn choose_least(list: &ServerList, attempt: Attempt<'_>) -> Option<ChosenServer> {
    let known = list.load();
    let chosen = match list.is_marked() {
        false => least_loaded(&known.all, Rule::Any, attempt),
        true => [Rule::Share, Rule::Any]
            .into_iter()
            .find_map(|rule| least_loaded(&known.all, rule, attempt)),
    };
    let server = chosen?;
    Some(ChosenServer { address: server.address, in_flight: Some(InFlight::begin(server)) })
}

/// The server with the fewest requests for its weight; of equal ones, any. A server whose trial has come is chosen first.
fn least_loaded<'s>(
    servers: &'s [Arc<KnownServer>],
    rule: Rule,
    attempt: Attempt<'_>,
) -> Option<&'s Arc<KnownServer>> {
    let first = fastrand::usize(..servers.len().max(1));
    let (before, from) = servers.split_at(first.min(servers.len()));
    let (mut least, mut compared) = (None::<Loaded<'s>>, 0);
    for server in from.iter().chain(before).take(MAX_SERVERS_EXAMINED) {
        if server.health.is_ill() || attempt.tried.contains(&server.address) {
            continue;
        }
        let mut share = FULL_SHARE;
        if rule != Rule::Any {
            match server.health.admit(attempt.reads, attempt.now) {
                Admission::Trial => return Some(server),
                Admission::LeftOut => continue,
                Admission::Admitted => share = server.health.share(attempt.now),
            }
        }
        let loaded = Loaded::of(server, share);
        if least.as_ref().is_none_or(|least| loaded.is_below(least)) {
            least = Some(loaded);
        }
        compared += 1;
        if compared == MAX_SERVERS_COMPARED {
            break;
        }
    }
    least.map(|least| least.server)
}

/// A server, with what it would have to do if it were chosen.
struct Loaded<'s> {
    server: &'s Arc<KnownServer>,
    requests: u64,
    weight: u64,
}

impl<'s> Loaded<'s> {
    fn of(server: &'s Arc<KnownServer>, share: u32) -> Self {
        let weight = u64::from(server.weight()) * u64::from(share);
        Self { server, requests: server.requests() as u64 + 1, weight }
    }

    fn is_below(&self, other: &Self) -> bool {
        let scaled = |requests: u64, weight: u64| u128::from(requests) * u128::from(weight);
        scaled(self.requests, other.weight) < scaled(other.requests, self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::origins::health::ServerFailure;
    use crate::proxy::origins::servers::ResolvedServer;

    const AT: Nanos = Nanos::from_secs(100);

    fn list(weights: &[u16], slow_start: Option<Nanos>) -> ServerList {
        let list = ServerList::new(slow_start);
        let servers = weights.iter().zip(1..).map(|(weight, n)| ResolvedServer {
            address: SocketAddr::from(([192, 0, 2, n], 80)),
            weight: *weight,
            label: Arc::from(n.to_string()),
        });
        list.replace(&servers.collect::<Vec<_>>(), Nanos::ZERO);
        list
    }

    fn attempt(now: Nanos) -> Attempt<'static> {
        Attempt { tried: &[], reads: true, now }
    }

    /// Requests by server, of so many that never end.
    fn spread(list: &ServerList, requests: usize, now: Nanos) -> Vec<usize> {
        let held: Vec<_> =
            (0..requests).map(|_| choose_least(list, attempt(now)).unwrap()).collect();
        let counts = list.load().all.iter().map(|server| server.requests()).collect();
        drop(held);
        assert!(list.load().all.iter().all(|server| server.requests() == 0), "all have ended");
        counts
    }

    fn refuse(list: &ServerList, server: usize) {
        let server = Arc::clone(&list.load().all[server]);
        for _ in 0..3 {
            server.health.failed(ServerFailure::Connection, AT, AT, 500);
        }
        assert!(!server.health.is_up());
    }

    #[test]
    fn requests_in_flight_are_spread_by_weight() {
        assert_eq!(spread(&list(&[1, 1, 1], None), 30, AT), [10, 10, 10]);
        assert_eq!(spread(&list(&[3, 1], None), 40, AT), [30, 10]);
        assert_eq!(spread(&list(&[1_000, 1], None), 1_001, AT), [1_000, 1]);
        assert!(choose_least(&list(&[], None), attempt(AT)).is_none());
        // Among many each is as good as its neighbours.
        let many = spread(&list(&[1; 100], None), 1_000, AT);
        assert!(many.iter().all(|count| (5..=20).contains(count)), "{many:?}");
    }

    #[test]
    fn a_server_that_answers_slowly_gets_what_it_can_do() {
        // The first server takes ten times as long as the others: of each hundred moments it answers in ten.
        let list = list(&[1, 1, 1], None);
        let (mut held, mut total) = (vec![Vec::new(), Vec::new(), Vec::new()], [0_usize; 3]);
        for moment in 0..3_000 {
            for _ in 0..2 {
                let chosen = choose_least(&list, attempt(AT)).unwrap();
                let server = list
                    .load()
                    .all
                    .iter()
                    .position(|server| server.address == chosen.address)
                    .unwrap();
                held[server].push(chosen);
                total[server] += 1;
            }
            for (server, requests) in held.iter_mut().enumerate() {
                if (server > 0 || moment % 10 == 0) && !requests.is_empty() {
                    requests.remove(0);
                }
            }
        }
        assert!(total[0] * 5 < total[1] && total[0] * 5 < total[2], "{total:?}");
    }

    #[test]
    fn a_server_that_is_left_out_gets_a_trial_and_then_its_growing_share() {
        let list = list(&[1, 1], Some(Nanos::from_secs(100)));
        refuse(&list, 0);
        assert_eq!(spread(&list, 10, AT), [0, 10]);
        let back = AT.saturating_add(Nanos::SECOND);
        let trial = choose_least(&list, attempt(back)).unwrap();
        assert_eq!(trial.address, list.load().all[0].address);
        drop(trial);
        assert_eq!(spread(&list, 10, back), [0, 10], "one at a time");
        let first = Arc::clone(&list.load().all[0]);
        first.health.answered(back, back);
        let later = |secs: u64| back.saturating_add(Nanos::from_secs(secs));
        assert_eq!(spread(&list, 110, later(10)), [10, 100]);
        assert_eq!(spread(&list, 150, later(50)), [50, 100]);
        assert_eq!(spread(&list, 100, later(100)), [50, 50]);
        assert!(!list.is_marked());
    }

    #[test]
    fn when_all_are_left_out_each_may_be_asked() {
        let list = list(&[1, 1], None);
        refuse(&list, 0);
        refuse(&list, 1);
        assert_eq!(spread(&list, 10, AT), [5, 5]);
        let first = list.load().all[0].address;
        let tried = Attempt { tried: &[first], ..attempt(AT) };
        assert_ne!(choose_least(&list, tried).unwrap().address, first);
        // One that fails its checks is not asked even then.
        list.load().all[1].health.checked(false, AT);
        assert_eq!(spread(&list, 10, AT), [10, 0]);
        assert!(choose_least(&list, tried).is_none());
    }

    #[test]
    fn equal_values_have_an_equal_chance() {
        let shares: Vec<u32> = (0..1_000_u32).map(|n| share_of(&n.to_be_bytes())).collect();
        assert_eq!(shares[7], share_of(&7_u32.to_be_bytes()));
        let below = shares.iter().filter(|share| **share < 300).count();
        assert!((240..=360).contains(&below), "{below} of 1,000 are below 300");
    }
}
