//! Clients of proxies under test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use support::servers::{eventually, now};

/// How often each status was answered.
pub type Statuses = BTreeMap<u16, usize>;

/// A connection that is kept, and opened again when it has gone.
#[derive(Default)]
pub struct Client(Option<(u16, TcpStream)>);

impl Client {
    /// The status of one POST with a key; 0 when there was no answer.
    pub async fn ask(&mut self, port: u16, path: &str, key: &str) -> u16 {
        match self.attempt(port, path, key).await {
            Ok(status) => status,
            Err(_) => {
                self.0 = None;
                0
            }
        }
    }

    async fn attempt(&mut self, port: u16, path: &str, key: &str) -> std::io::Result<u16> {
        let mut stream = match self.0.take() {
            Some((to, stream)) if to == port => stream,
            _ => TcpStream::connect(("127.0.0.1", port)).await?,
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nX-Api-Key: {key}\r\nContent-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        loop {
            if stream.read_buf(&mut answer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(length) = whole(&answer) {
                assert_eq!(answer.len(), length, "one answer to one request");
                break;
            }
        }
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        if !text.contains("connection: close") {
            self.0 = Some((port, stream));
        }
        Ok(text[9..12].parse().unwrap_or(0))
    }
}

/// How long an answer is, once its head is there.
fn whole(answer: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let head = text.find("\r\n\r\n")? + 4;
    let length = text[..head].split("content-length: ").nth(1)?.lines().next()?;
    let length = head + length.trim().parse::<usize>().unwrap();
    (answer.len() >= length).then_some(length)
}

/// `clients` ask as fast as they can for a while, spread over the ports.
pub async fn hammer(ports: &[u16], clients: usize, span: Duration, path: &str) -> Statuses {
    let began = now();
    let tasks: Vec<_> = (0..clients)
        .map(|n| {
            let (port, path) = (ports[n % ports.len()], path.to_owned());
            tokio::spawn(async move {
                let (mut client, mut seen) = (Client::default(), Statuses::new());
                while began.elapsed() < span {
                    *seen.entry(client.ask(port, &path, "one").await).or_default() += 1;
                }
                seen
            })
        })
        .collect();
    let mut all = Statuses::new();
    for task in tasks {
        for (status, count) in task.await.unwrap() {
            *all.entry(status).or_default() += count;
        }
    }
    all
}

/// One answer: how long it took, what it was.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub took: Duration,
    pub status: u16,
}

/// Requests at a steady pace, whether or not earlier ones are answered: over 50 keys.
pub struct Paced {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<Vec<Sample>>,
}

impl Paced {
    pub fn start(port: u16, each_second: u32) -> Self {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (told, count) = (Arc::clone(&stop), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_secs(1) / each_second);
            let idle = Arc::new(std::sync::Mutex::new(Vec::<Client>::new()));
            let mut tasks = Vec::new();
            let mut n = 0;
            while !told.load(Ordering::Relaxed) {
                pace.tick().await;
                n += 1;
                count.store(n, Ordering::Relaxed);
                let (key, idle) = (format!("k{}", n % 50), Arc::clone(&idle));
                tasks.push(tokio::spawn(async move {
                    let mut client = idle.lock().unwrap().pop().unwrap_or_default();
                    let began = now();
                    let status = client.ask(port, "/", &key).await;
                    let took = began.elapsed();
                    idle.lock().unwrap().push(client);
                    Sample { took, status }
                }));
            }
            let mut samples = Vec::new();
            for task in tasks {
                samples.push(task.await.unwrap());
            }
            samples
        });
        Self { stop, asked, task }
    }

    /// How many have been asked for.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Waits until so many more have been asked for.
    pub async fn more(&self, requests: usize) {
        let goal = self.asked() + requests;
        let patience = Duration::from_secs(60);
        let asked = eventually(patience, || std::future::ready(self.asked() >= goal)).await;
        assert!(asked, "{} of {goal} requests", self.asked());
    }

    pub async fn samples(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// The 99th of a hundred.
pub fn p99(samples: &[Sample]) -> Duration {
    let mut spans: Vec<Duration> = samples.iter().map(|one| one.took).collect();
    spans.sort_unstable();
    assert!(spans.len() >= 50, "{} samples", spans.len());
    spans[(spans.len() * 99).div_ceil(100) - 1]
}
