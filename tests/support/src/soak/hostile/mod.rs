//! Hostile clients of every kind, from several addresses, at bounded rates.

pub mod http1;
pub mod http2;
mod table;
mod tls;
mod tool;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::soak::site::Site;
use crate::soak::threads;

use crate::wait::pause_of_a_slow_client;
use table::KINDS;
use tool::Tools;

/// Addresses that hostile clients share.
const ADDRESSES: u64 = 8;

/// In so long all of them come.
pub const RAMP: Duration = Duration::from_secs(6);

/// No attempt lasts longer; most are ended by the proxy before.
const LONGEST: Duration = Duration::from_secs(90);

/// What the tool's clients are called.
const TOOL: &str = "slowhttptest";

/// Hostile clients run with this niceness above the test's own.
const NICER: i32 = 10;

/// Where to, and from which address.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    pub source: IpAddr,
    pub plain: SocketAddr,
    pub tls: SocketAddr,
    /// Another number for each attempt.
    pub number: u64,
}

/// One connection's life.
pub type Attempt = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// A kind of hostile client.
pub struct Kind {
    pub name: &'static str,
    /// How many clients there are of it. Each has one connection at a time.
    pub connections: u64,
    /// From the end of an attempt to the next one of the same client.
    pub pause: Duration,
    pub attempt: fn(Aim) -> Attempt,
    /// A sample of the metrics that shows that these clients reach what they aim at.
    pub shows: Option<&'static str>,
}

/// What the clients of one kind did.
#[derive(Debug, Default)]
pub struct Tally {
    pub begun: AtomicU64,
    /// Attempts that ended with an error of their connection: it was refused or reset.
    pub cut: AtomicU64,
}

/// All of them at work; they leave when this is dropped.
pub struct Hostile {
    pub tallies: Vec<(&'static Kind, Arc<Tally>)>,
    runtime: Option<Runtime>,
    _tools: Option<Tools>,
}

impl Aim {
    /// At a site, as the client of this number.
    pub fn at(site: &Site, client: u64) -> Self {
        let last = u8::try_from(1 + client % ADDRESSES).unwrap();
        let source = IpAddr::from([127, 0, 1, last]);
        Self { source, plain: site.plain, tls: site.tls, number: client << 32 }
    }
}

impl Hostile {
    /// Two thousand connections of all kinds at once, after `RAMP`. `only` leaves those whose names have it.
    pub fn start(site: &Site, only: &str) -> Self {
        let runtime = threads::runtime(1, NICER);
        let mut client = 0;
        let kinds = KINDS.iter().filter(|kind| kind.name.contains(only));
        let tallies = kinds.map(|kind| {
            let tally = Arc::<Tally>::default();
            for _ in 0..kind.connections {
                runtime.spawn(live(kind, Aim::at(site, client), Arc::clone(&tally)));
                client += 1;
            }
            (kind, tally)
        });
        let tallies = tallies.collect();
        let tools = TOOL.contains(only).then(|| Tools::start(site.plain));
        Self { tallies, runtime: Some(runtime), _tools: tools }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One client: comes within the ramp, then tries again and again.
async fn live(kind: &'static Kind, mut aim: Aim, tally: Arc<Tally>) {
    pause_of_a_slow_client(RAMP.mul_f64(fastrand::f64())).await;
    loop {
        aim.number += 1;
        tally.begun.fetch_add(1, Ordering::Relaxed);
        if let Ok(Err(_)) = timeout(LONGEST, (kind.attempt)(aim)).await {
            tally.cut.fetch_add(1, Ordering::Relaxed);
        }
        // So that they do not march in step.
        pause_of_a_slow_client(kind.pause.mul_f64(0.5 + fastrand::f64())).await;
    }
}
