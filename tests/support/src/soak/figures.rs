//! What hostile clients take of the proxy in a steady state: descriptors, processor time, memory.
//!
//! `TOLLGATE_BINARY` names the program that is measured, so that two versions can be compared. The policies use
//! keys only that both know.

use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Runtime;

use crate::servers::{now, resident_kib};
use crate::soak::hostile::http1::{forged_tokens, readings, unfinished_body};
use crate::soak::hostile::http2::{slow_reader, unfinished_streams};
use crate::soak::hostile::{Aim, Attempt};
use crate::soak::origin::{self, Origins};
use crate::soak::site::Site;
use crate::soak::threads;
use crate::soak::watch::{descriptors, processor_time, sum};
use crate::wait::{observe_for, pause_of_a_slow_client};

/// From the first connection to the first measurement, and from there to the last.
const SETTLE: Duration = Duration::from_secs(8);
const WINDOW: Duration = Duration::from_secs(10);

/// All connections come within this time.
const RAMP: Duration = Duration::from_secs(3);

/// Between two looks at what is held.
const LOOK: Duration = Duration::from_millis(100);

/// Connections of one client, of ten times and of a thousand times as many.
const SIZES: [u64; 3] = [1, 10, 1_000];

/// What the system allows the proxy: so that a version without bounds leaves some to the machine.
const DESCRIPTORS: u64 = 8_192;

/// Above it a measurement is ended, in KiB.
const MOST_KIB: u64 = 4 << 20;

const POLICY: &str = "
limits:
  by_address: { tier: exact, algorithm: token_bucket, rate: 10/s, key: client_ip }
  tokens: { tier: exact, rate: 60/1m, key: { jwt: { jwks_file: jwks.json, claim: sub } }, missing_key: client_ip }
routes:
  - { name: api, match: { path: /api/** }, origin: site, limits: [by_address, tokens] }
  - { name: early, match: { path: /early }, origin: early }
  - { name: site, origin: site }
access_log: { to: none }
";

/// What a client does, as soon as the one before it has ended.
struct Item {
    name: &'static str,
    attempt: fn(Aim) -> Attempt,
}

#[rustfmt::skip]
const ITEMS: [Item; 5] = [
    Item { name: "body that does not come, HTTP/1", attempt: |aim| unfinished_body(aim).boxed() },
    Item { name: "bodies that do not come, 100 streams", attempt: |aim| unfinished_streams(aim, u32::MAX / 4).boxed() },
    Item { name: "paths with many readings", attempt: |aim| readings(aim, Duration::ZERO).boxed() },
    Item { name: "slow readers, 100 streams of 4 MiB", attempt: |aim| slow_reader(aim, 100).boxed() },
    Item { name: "forged tokens under a limit by address", attempt: |aim| forged_tokens(aim, Duration::ZERO).boxed() },
];

/// What is taken, above what an idle proxy has.
#[derive(Default)]
struct Taken {
    descriptors: u64,
    kib: u64,
    /// Of one processor, in parts.
    processors: f64,
    requests_a_second: f64,
    stopped: bool,
}

impl Display for Taken {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { descriptors, kib, processors, requests_a_second, stopped } = self;
        let more = if *stopped { "more than " } else { "" };
        write!(f, "{descriptors}; {:.0} %; {more}{} MiB", processors * 100.0, kib / 1024)?;
        if *requests_a_second < 1.0 {
            return Ok(());
        }
        let micros = processors * 1e6 / requests_a_second;
        write!(f, " ({requests_a_second:.0} requests/s, {micros:.0} us each)")
    }
}

/// A row for each item, a column for each number of connections.
pub fn print() {
    threads::raise_descriptors();
    println!(
        "descriptors; processor time; memory\n\n| | 1 connection | 10 | 1,000 |\n|---|---|---|---|"
    );
    let wanted = std::env::var("TOLLGATE_FIGURES").unwrap_or_default();
    for item in ITEMS.iter().filter(|item| item.name.contains(&wanted)) {
        let cells = SIZES.map(|connections| measure(item, connections).to_string());
        println!("| {} | {} |", item.name, cells.join(" | "));
    }
}

fn measure(item: &Item, connections: u64) -> Taken {
    let (origins, clients) = (threads::runtime(1, 0), threads::runtime(1, 0));
    let taken = threads::runtime(1, 0).block_on(async {
        let origins: Origins = origins.spawn(origin::start()).await.unwrap();
        let bounds = std::env::var("TOLLGATE_FIGURES_BOUNDS").unwrap_or_default();
        let policy = format!("{POLICY}limits_of_this_proxy: {{ {bounds} }}\n");
        let site = Site::start(origins, &policy, &[&format!("nofile={DESCRIPTORS}")]).await;
        take(item, connections, &site, &clients).await
    });
    clients.shutdown_background();
    origins.shutdown_background();
    taken
}

async fn take(item: &Item, connections: u64, site: &Site, clients: &Runtime) -> Taken {
    let pid = site.gate.pid();
    let (descriptors_idle, kib_idle) = (descriptors(pid), resident_kib(pid));
    let attempt = item.attempt;
    for n in 0..connections {
        clients.spawn(live(attempt, Aim::at(site, n), RAMP.mul_f64(n as f64 / connections as f64)));
    }
    let mut taken = Taken::default();
    look(&mut taken, pid, SETTLE).await;
    if !taken.stopped {
        taken = Taken::default();
    }
    // A proxy that is overwhelmed does not answer operators either: then requests are not counted.
    let requests = async || {
        let metrics = site.gate.admin_get("/metrics").await.map_or(String::new(), |(_, text)| text);
        sum(&metrics, "tollgate_requests_total")
    };
    let (began, used, asked) = (now(), processor_time(pid), requests().await);
    look(&mut taken, pid, WINDOW).await;
    let seconds = began.elapsed().as_secs_f64().max(LOOK.as_secs_f64());
    taken.processors = (processor_time(pid) - used).as_secs_f64() / seconds;
    taken.requests_a_second = requests().await.saturating_sub(asked) as f64 / seconds;
    taken.descriptors = taken.descriptors.saturating_sub(descriptors_idle);
    taken.kib = taken.kib.saturating_sub(kib_idle);
    taken
}

/// The most that is held within this time; ends early where it is too much.
async fn look(taken: &mut Taken, pid: u32, patience: Duration) {
    let began = now();
    while began.elapsed() < patience && !taken.stopped {
        taken.descriptors = taken.descriptors.max(descriptors(pid));
        taken.kib = taken.kib.max(resident_kib(pid));
        taken.stopped = taken.kib > MOST_KIB;
        observe_for(LOOK).await;
    }
}

/// One client, again and again.
async fn live(attempt: fn(Aim) -> Attempt, mut aim: Aim, after: Duration) {
    pause_of_a_slow_client(after).await;
    loop {
        aim.number += 1;
        if attempt(aim).await.is_err() {
            pause_of_a_slow_client(LOOK).await;
        }
    }
}
