//! A client that keeps to the rules: so many requests a second over a few connections, whatever happens to the
//! ones before.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use support::certificates::trusting;
use support::servers::{eventually, now};
use support::soak::origin::SMALL;
use support::soak::site::Site;
use support::soak::threads;
use support::wait::pause_in_thread;

/// The time between two requests: 50 a second.
const EVERY: Duration = Duration::from_millis(20);

/// A client that hears nothing for so long gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// An address that no hostile client has.
const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

/// What became of one request.
struct Sample {
    scheduled: Instant,
    /// From the instant at which it was to be sent: a client that falls behind does not hide it.
    took: Duration,
    outcome: Result<(), String>,
}

type Samples = Arc<std::sync::Mutex<Vec<Sample>>>;

/// What became of the requests of some time.
pub struct Served {
    pub requests: usize,
    pub answered: usize,
    pub p50: Duration,
    pub p99: Duration,
    pub slowest: Duration,
    /// Of those that failed, what was the matter.
    pub failures: Vec<String>,
}

/// The client at work; it ends when dropped.
pub struct Good {
    samples: Samples,
    stop: Arc<AtomicBool>,
    pacer: Option<std::thread::JoinHandle<()>>,
}

/// Four ways to ask.
struct Asker {
    plain: reqwest::Client,
    tls: reqwest::Client,
    plain_url: String,
    tls_url: String,
}

impl Good {
    pub fn start(site: &Site) -> Self {
        let asker = Arc::new(Asker::new(site));
        let (samples, stop) = (Samples::default(), Arc::<AtomicBool>::default());
        let (book, until) = (Arc::clone(&samples), Arc::clone(&stop));
        let pacer = std::thread::spawn(move || {
            let runtime = threads::runtime(1, 0);
            pace(&runtime, &asker, &book, &until);
            runtime.shutdown_timeout(PATIENCE);
        });
        Self { samples, stop, pacer: Some(pacer) }
    }

    /// What became of the requests that were scheduled in this time. The last ones may be under way: it waits for them
    /// as long as the client does, at most.
    pub async fn of(&self, from: Instant, to: Instant) -> Served {
        let all = (to - from).as_nanos() / EVERY.as_nanos();
        eventually(PATIENCE * 2, || async { self.between(from, to).requests as u128 >= all }).await;
        self.between(from, to)
    }

    fn between(&self, from: Instant, to: Instant) -> Served {
        let samples = self.samples.lock().unwrap();
        let within: Vec<&Sample> =
            samples.iter().filter(|sample| (from..to).contains(&sample.scheduled)).collect();
        let mut times: Vec<Duration> = within.iter().map(|sample| sample.took).collect();
        times.sort_unstable();
        // The smallest time that at least this share is not above.
        let at = |thousandths: usize| {
            let rank = (times.len() * thousandths).div_ceil(1_000).max(1);
            times.get(rank - 1).copied().unwrap_or(PATIENCE)
        };
        let failures: Vec<String> =
            within.iter().filter_map(|sample| sample.outcome.clone().err()).collect();
        Served {
            requests: within.len(),
            answered: within.len() - failures.len(),
            p50: at(500),
            p99: at(990),
            slowest: at(1_000),
            failures,
        }
    }
}

impl Drop for Good {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(pacer) = self.pacer.take() {
            let _ = pacer.join();
        }
    }
}

/// Sends each request at its instant, whether or not earlier ones are answered.
fn pace(runtime: &Runtime, asker: &Arc<Asker>, samples: &Samples, stop: &AtomicBool) {
    let began = now();
    for n in 0.. {
        let scheduled = began + EVERY * n;
        pause_in_thread(scheduled.saturating_duration_since(now()));
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (asker, samples) = (Arc::clone(asker), Arc::clone(samples));
        runtime.spawn(async move {
            let outcome = asker.ask(n).await;
            let sample = Sample { scheduled, took: scheduled.elapsed(), outcome };
            samples.lock().unwrap().push(sample);
        });
    }
}

impl Asker {
    fn new(site: &Site) -> Self {
        let plain = reqwest::Client::builder().no_proxy();
        let tls = trusting(&site.pair, "one.example", site.tls);
        let build = |builder: reqwest::ClientBuilder| {
            builder.local_address(SOURCE).timeout(PATIENCE).build().unwrap()
        };
        Self {
            plain: build(plain),
            tls: build(tls),
            plain_url: format!("http://{}/page", site.plain),
            tls_url: format!("https://one.example:{}/page", site.tls.port()),
        }
    }

    async fn ask(&self, n: u32) -> Result<(), String> {
        let request = match n % 4 {
            0 => self.plain.get(&self.plain_url),
            1 => self.tls.get(&self.tls_url),
            2 => self.plain.post(&self.plain_url).body("small"),
            _ => self.tls.post(&self.tls_url).body("small"),
        };
        let answer = request.send().await.map_err(|error| format!("{error:?}"))?;
        let status = answer.status();
        let body = answer.text().await.map_err(|error| format!("{error:?}"))?;
        match status.as_u16() {
            200 if body == SMALL => Ok(()),
            status => Err(format!("{status} {body}")),
        }
    }
}
