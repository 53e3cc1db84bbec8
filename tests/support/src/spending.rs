//! Clients that spend keys whose limit does not refill while a test runs, so that what all processes together admit has one
//! right value; and an origin that counts what it has in flight.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::servers::{eventually, now};
use crate::wait::pause_of_a_slow_origin;

/// An origin that takes a few milliseconds, and knows the most requests of one key that it ever had at once.
pub struct CountingOrigin {
    pub address: SocketAddr,
    most: Arc<AtomicUsize>,
}

impl CountingOrigin {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (most, flying) =
            (Arc::<AtomicUsize>::default(), Arc::<Mutex<HashMap<String, usize>>>::default());
        let seen = Arc::clone(&most);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                tokio::spawn(answer_all(stream, Arc::clone(&flying), Arc::clone(&seen)));
            }
        });
        Self { address, most }
    }

    pub fn most_in_flight(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

async fn answer_all(
    mut stream: TcpStream,
    flying: Arc<Mutex<HashMap<String, usize>>>,
    most: Arc<AtomicUsize>,
) {
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_buf(&mut head).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let key =
            text.split("x-key: ").nth(1).unwrap_or("").split("\r\n").next().unwrap().to_owned();
        let now = {
            let mut flying = flying.lock().unwrap();
            let count = flying.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        most.fetch_max(now, Ordering::SeqCst);
        pause_of_a_slow_origin(Duration::from_millis(2)).await;
        *flying.lock().unwrap().get_mut(&key).unwrap() -= 1;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsite";
        if stream.write_all(answer).await.is_err() {
            return;
        }
        head.clear();
    }
}

/// Clients that spend keys until told to stop.
pub struct Spenders {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<(Vec<usize>, Vec<String>)>>,
}

impl Spenders {
    pub fn start(port: u16, clients: usize, keys: usize) -> Self {
        let (stop, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let spend = |n: usize| {
            let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(n as u64);
                let (mut admitted, mut failures, mut kept) = (vec![0; keys], Vec::new(), None);
                while !stop.load(Ordering::Relaxed) {
                    let key = random.usize(..keys);
                    match ask(port, key, &mut kept).await {
                        Ok(is_admitted) => admitted[key] += usize::from(is_admitted),
                        Err(error) => failures.push(error),
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                    if n.is_multiple_of(4) {
                        kept = None;
                    }
                }
                (admitted, failures)
            })
        };
        let tasks = (0..clients).map(spend).collect();
        Self { stop, asked, tasks }
    }

    pub async fn more(&self, requests: usize) {
        let goal = self.asked.load(Ordering::Relaxed) + requests;
        let come = eventually(Duration::from_secs(90), || async {
            self.asked.load(Ordering::Relaxed) >= goal
        });
        assert!(come.await, "requests are answered");
    }

    /// What each key was admitted in all, after what is left of it has been spent too. No request has failed.
    pub async fn totals(self, port: u16) -> Vec<usize> {
        self.stop.store(true, Ordering::Relaxed);
        let mut totals: Vec<usize> = Vec::new();
        for task in self.tasks {
            let (admitted, failures) = task.await.unwrap();
            assert_eq!(failures, Vec::<String>::new());
            totals.resize(admitted.len(), 0);
            totals.iter_mut().zip(admitted).for_each(|(total, more)| *total += more);
        }
        let mut kept = None;
        for (key, total) in totals.iter_mut().enumerate() {
            while ask(port, key, &mut kept).await.unwrap() {
                *total += 1;
            }
        }
        totals
    }
}

/// A connection that is kept, and since when it is idle.
pub type Kept = Option<(TcpStream, Instant)>;

/// Whether the server has not closed a connection. A client that cannot run for longer than `drain` finds it closed, and
/// every HTTP client looks before it uses a connection again.
fn is_open(stream: &TcpStream) -> bool {
    stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// One request; whether it was admitted. Nothing is tried twice.
pub async fn ask(port: u16, key: usize, kept: &mut Kept) -> Result<bool, String> {
    ask_at(port, "/", key, kept).await
}

/// The same at a path.
pub async fn ask_at(port: u16, path: &str, key: usize, kept: &mut Kept) -> Result<bool, String> {
    let (mut stream, idle) = match kept.take().filter(|(stream, _)| is_open(stream)) {
        Some((stream, since)) => (stream, Some(since.elapsed())),
        None => {
            let stream = TcpStream::connect(("127.0.0.1", port)).await;
            (stream.map_err(|error| format!("cannot connect: {error}"))?, None)
        }
    };
    let failed = |error: io::Error| match idle {
        Some(idle) => format!("{error}, on a connection that was idle for {idle:?}"),
        None => format!("{error}, on a new connection"),
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    let (head, length) = loop {
        if stream.read_buf(&mut answer).await.map_err(failed)? == 0 {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head
                .split("content-length: ")
                .nth(1)
                .map(|rest| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
            break (head.to_owned(), length.unwrap_or(0));
        }
    };
    while answer.len() < head.len() + 4 + length {
        if stream.read_buf(&mut answer).await.map_err(failed)? == 0 {
            return Err("a body was cut".to_owned());
        }
    }
    if !head.contains("connection: close") {
        *kept = Some((stream, now()));
    }
    match &head[..12] {
        "http/1.1 200" => Ok(true),
        "http/1.1 429" => Ok(false),
        _ => Err(head),
    }
}
