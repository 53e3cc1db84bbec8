//! Random requests for random policies, over sockets, from several addresses, many at once.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use reqwest::header::{AUTHORIZATION, COOKIE, HOST};
use support::servers::client_from;
use support::{signing, wait};

use super::random_policy::POLICIES;

/// Addresses that requests come from.
const CLIENTS: u8 = 3;

/// Requests that each task sends.
const REQUESTS: usize = 45;

/// Sends requests to every policy; returns when all are answered.
pub(crate) async fn send(port: u16, seed: u64) {
    let clients: Vec<_> =
        (1..=CLIENTS).map(|n| client_from(IpAddr::from(Ipv4Addr::new(127, 0, 0, n)))).collect();
    let clients = Arc::new(clients);
    let tasks = (0..POLICIES).flat_map(|policy| (0..3).map(move |lane| (policy, lane)));
    let tasks: Vec<_> = tasks
        .map(|(policy, lane)| {
            let clients = Arc::clone(&clients);
            let mut random = Rng::with_seed(seed.wrapping_mul(1_000) + (policy * 3 + lane) as u64);
            tokio::spawn(async move {
                for _ in 0..REQUESTS {
                    let client = &clients[random.usize(..clients.len())];
                    let request = request(client, port, policy, &mut random);
                    let _ = request.send().await.unwrap().bytes().await;
                    if random.u8(..6) == 0 {
                        let pause = Duration::from_millis(random.u64(1..120));
                        wait::pause_of_a_slow_origin(pause).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

fn request(
    client: &reqwest::Client,
    port: u16,
    policy: usize,
    random: &mut Rng,
) -> reqwest::RequestBuilder {
    let chance = |random: &mut Rng| random.u8(..3) > 0;
    let word = |random: &mut Rng| ["a", "b", "c"][random.usize(..3)];
    let path = ["/", "/special/x", "/a/b", "/b"][random.usize(..4)];
    let query = if chance(random) { format!("?q={}", word(random)) } else { String::new() };
    let url = format!("http://127.0.0.1:{port}{path}{query}");
    let mut request = match random.u8(..4) {
        0 => client.post(url),
        _ => client.get(url),
    };
    request = request.header(HOST, format!("p{policy}.test"));
    if chance(random) {
        request = request.header("x-key", word(random));
    }
    if chance(random) {
        request = request.header(COOKIE, format!("sid={}", word(random)));
    }
    request = match random.u8(..5) {
        0 => request.bearer_auth(word(random)),
        1 => request.basic_auth(word(random), Some("secret")),
        2 => {
            let claims = format!("{{\"sub\":\"{}\",\"exp\":4102444800}}", word(random));
            request.header(AUTHORIZATION, format!("Bearer {}", signing::signed(&claims, 1)))
        }
        3 => request.header(AUTHORIZATION, format!("Bearer {}", signing::forged(random.u64(..5)))),
        _ => request,
    };
    for (name, values) in [
        ("x-app", &["mobile", "web"][..]),
        ("x-staff", &["yes", "no", "no"]),
        ("x-plan", &["gold", "tin", "none"]),
        ("x-weight", &["1", "3", "many"]),
        ("x-use", &["0", "1", "3"]),
        ("x-tokens", &["0", "2", "9"]),
        ("x-status", &["200", "401", "500", "204"]),
        ("x-pause", &["1", "5", "30"]),
        ("x-forwarded-for", &["192.0.2.1", "2001:db8::1", "198.51.100.7, 192.0.2.2"]),
    ] {
        if random.u8(..2) == 0 {
            request = request.header(name, values[random.usize(..values.len())]);
        }
    }
    request
}
