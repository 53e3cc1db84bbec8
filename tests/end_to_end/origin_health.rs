//! Servers that do not answer: they are left out, others take their requests, and they come back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use support::servers::{Gate, Reloaded, client, eventually, free_port, metric};
use support::wait::pause_of_a_slow_origin;

/// What a server does with each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mood {
    /// It answers 200.
    Answers,
    /// It reads the request and closes.
    Closes,
    /// It resets the connection.
    Resets,
    /// It reads the request and never answers.
    Hangs,
    /// It takes its time and answers.
    AnswersSlowly,
    /// It begins an answer and closes in its middle.
    DiesInAnswer,
}

/// A server whose mood can be changed. It counts what it saw.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    mood: Arc<AtomicU8>,
    requests: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
    /// Ends with its connections when aborted.
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Server {
    async fn start(mood: Mood) -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.unwrap(), mood)
    }

    /// On a port at which nobody listened before.
    async fn start_at(port: u16, mood: Mood) -> Self {
        Self::listen(TcpListener::bind(("127.0.0.1", port)).await.unwrap(), mood)
    }

    fn listen(listener: TcpListener, mood: Mood) -> Self {
        let server = Self {
            address: listener.local_addr().unwrap(),
            mood: Arc::new(AtomicU8::new(mood as u8)),
            requests: Arc::default(),
            writes: Arc::default(),
            task: Arc::default(),
        };
        let accepting = server.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                connections.spawn(async move { server.serve(stream).await });
            }
        });
        *server.task.lock().unwrap() = Some(task);
        server
    }

    /// Ends it with all of its connections, as a process that is killed does.
    async fn stop(&self) {
        let task = self.task.lock().unwrap().take().unwrap();
        task.abort();
        let _ = task.await;
    }

    fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn serve(&self, mut stream: TcpStream) {
        let mut head = Vec::new();
        while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
            if !head.ends_with(b"\r\n\r\n") {
                continue;
            }
            self.requests.fetch_add(1, Ordering::SeqCst);
            if head.starts_with(b"DELETE") {
                self.writes.fetch_add(1, Ordering::SeqCst);
            }
            head.clear();
            let mood = self.mood.load(Ordering::SeqCst);
            if mood == Mood::AnswersSlowly as u8 {
                pause_of_a_slow_origin(Duration::from_millis(500)).await;
            }
            if mood == Mood::Answers as u8 || mood == Mood::AnswersSlowly as u8 {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            } else if mood == Mood::Hangs as u8 {
                pause_of_a_slow_origin(Duration::from_secs(30)).await;
            } else if mood == Mood::DiesInAnswer as u8 {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nha").await;
                return;
            } else {
                if mood == Mood::Resets as u8 {
                    let _ = stream.set_zero_linger();
                }
                return;
            }
        }
    }
}

fn policy(servers: &[SocketAddr], more: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    format!(
        "origins:\n  site: {{ servers: [{}]{more} }}\nroutes: [{{ name: site }}]\n",
        servers.join(", ")
    )
}

fn nobody() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

async fn get(gate: &Gate) -> u16 {
    client().get(gate.url("/")).send().await.unwrap().status().as_u16()
}

async fn is_up(gate: &Gate, server: SocketAddr) -> f64 {
    let sample = format!("tollgate_origin_server_up{{origin=\"site\",server=\"{server}\"}}");
    let text = gate.metrics().await;
    assert!(text.contains(&sample), "{sample}: {text}");
    metric(&text, &sample)
}

async fn retries(gate: &Gate) -> u64 {
    metric(&gate.metrics().await, "tollgate_origin_retries_total{origin=\"site\"}") as u64
}

/// Reads under load, at most so many at once: how many did not get 200.
async fn load(gate: &Gate, requests: usize, at_once: usize) -> usize {
    let (client, failed) = (client(), Arc::<AtomicUsize>::default());
    let begun = Arc::<AtomicUsize>::default();
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let (client, url, failed) = (client.clone(), gate.url("/"), Arc::clone(&failed));
            let begun = Arc::clone(&begun);
            tokio::spawn(async move {
                while begun.fetch_add(1, Ordering::SeqCst) < requests {
                    let answer = client.get(&url).send().await;
                    if !answer.is_ok_and(|answer| answer.status() == 200) {
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    failed.load(Ordering::SeqCst)
}

#[tokio::test]
async fn with_two_of_three_dead_no_read_fails_and_the_dead_are_left_alone() {
    for balance in ["round_robin", "random", "least_requests", "{ hash: header:x-user }"] {
        let living = Server::start(Mood::Answers).await;
        let dead = [nobody(), nobody()];
        let servers = [dead[0], living.address, dead[1]];
        let gate = Gate::start(&policy(&servers, &format!(", balance: {balance}"))).await;
        assert_eq!(load(&gate, 400, 8).await, 0, "{balance}");
        assert_eq!(living.requests(), 400, "{balance}");
        let first = retries(&gate).await;
        if balance.contains("hash") {
            // Without the header all requests have one server.
            continue;
        }
        assert!(first >= 3, "{balance}: {first}");
        assert!(first < 100, "{balance}: {first} retries of 400 requests");
        for server in dead {
            assert_eq!(is_up(&gate, server).await, 0.0, "{balance}");
        }
        assert_eq!(is_up(&gate, living.address).await, 1.0);
        let (_, status) = gate.admin_get("/status").await.unwrap();
        assert!(status.contains("\"healthy\": 1"), "{status}");
        // A server whose time is over is tried by a request, and is then left out for longer.
        let is_left_out = eventually(Duration::from_secs(10), || async {
            let _ = client().get(gate.url("/")).send().await;
            let (_, status) = gate.admin_get("/status").await.unwrap();
            let told = status.split("left_out_for_seconds\": ").skip(1);
            told.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit())).count() == 2
        });
        assert!(is_left_out.await, "{status}");
        let told = eventually(Duration::from_secs(5), || async {
            gate.log().contains("does not answer: left out for")
        });
        assert!(told.await, "{}", gate.log());
    }
}

/// Two of three servers are killed under load and come back, while the configuration is reloaded; clients speak HTTP/1 and
/// HTTP/2.
#[tokio::test]
async fn servers_that_die_and_come_back_under_load_fail_no_read() {
    let ports = [free_port(), free_port(), free_port()];
    let servers = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let mut running = Vec::new();
    for port in ports {
        running.push(Server::start_at(port, Mood::Answers).await);
    }
    let (folder, pairs) = support::certificates::folder(&["one.example"]);
    let text = policy(&servers, ", slow_start: 1s, balance: least_requests");
    let gate = Gate::start_in(folder, &text, support::certificates::ONE).await;
    let to = SocketAddr::from(([127, 0, 0, 1], gate.port));
    let stop = Arc::<std::sync::atomic::AtomicBool>::default();
    let answered: [Arc<AtomicUsize>; 6] = std::array::from_fn(|_| Arc::default());
    let clients = answered.iter().cloned().enumerate().map(|(n, answered)| {
        let client = support::certificates::trusting(&pairs[0], "one.example", to);
        let client = if n % 2 == 0 { client } else { client.http1_only() }.build().unwrap();
        let (url, stop) = (format!("https://one.example:{}/", gate.port), Arc::clone(&stop));
        tokio::spawn(async move {
            let (mut done, mut failed) = (0, Vec::new());
            while !stop.load(Ordering::SeqCst) {
                match client.get(&url).send().await {
                    Ok(answer) if answer.status() == 200 => done += 1,
                    other => failed.push(format!("{other:?}")),
                }
                answered.fetch_add(1, Ordering::SeqCst);
            }
            (done, failed)
        })
    });
    let clients: Vec<_> = clients.collect();
    for round in 0..3 {
        // A read is sent again once, so none may meet both ends.
        for index in [round % 3, (round + 1) % 3] {
            running[index].stop().await;
            let down = eventually(Duration::from_secs(5), || async {
                is_up(&gate, servers[index]).await == 0.0
            });
            assert!(down.await, "{}", gate.log());
            let count = || answered.each_ref().map(|count| count.load(Ordering::SeqCst));
            let before = count();
            let over = eventually(Duration::from_secs(5), || async {
                count().iter().zip(before).all(|(now, before)| *now > before)
            });
            assert!(over.await, "a read that met the end of the server has no answer");
        }
        assert_eq!(gate.hup().await, Reloaded::Applied);
        for index in [round % 3, (round + 1) % 3] {
            running[index] = Server::start_at(ports[index], Mood::Answers).await;
        }
        let up = eventually(Duration::from_secs(10), || async {
            let mut up = 0.0;
            for server in servers {
                up += is_up(&gate, server).await;
            }
            up == 3.0
        });
        assert!(up.await, "{}", gate.log());
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        let (done, failed) = client.await.unwrap();
        assert!(done > 20, "{done}");
        assert_eq!(failed, Vec::<String>::new(), "{}", gate.log());
    }
}

#[tokio::test]
async fn reads_go_to_another_server_when_a_new_connection_ends_without_an_answer() {
    for mood in [Mood::Closes, Mood::Resets] {
        let (bad, good) = (Server::start(mood).await, Server::start(Mood::Answers).await);
        let gate = Gate::start(&policy(&[bad.address, good.address], "")).await;
        assert_eq!(load(&gate, 200, 4).await, 0, "{mood:?}");
        // After a second without any answer of it, it is left out.
        let out = eventually(Duration::from_secs(10), || async {
            assert_eq!(get(&gate).await, 200);
            is_up(&gate, bad.address).await == 0.0
        });
        assert!(out.await, "{mood:?}: {}", gate.log());
        // Writes: those that met it were sent once.
        bad.set(Mood::Answers);
        let back = eventually(Duration::from_secs(10), || async {
            assert_eq!(get(&gate).await, 200);
            is_up(&gate, bad.address).await == 1.0
        });
        assert!(back.await, "{mood:?}: {}", gate.log());
        let told =
            eventually(Duration::from_secs(5), || async { gate.log().contains("answers again") });
        assert!(told.await, "{}", gate.log());
    }
}

#[tokio::test]
async fn a_write_is_sent_to_one_server() {
    let (bad, good) = (Server::start(Mood::Closes).await, Server::start(Mood::Answers).await);
    let gate = Gate::start(&policy(&[bad.address, good.address], "")).await;
    let client = client();
    let (mut failed, mut done) = (0, 0);
    for _ in 0..20 {
        match client.delete(gate.url("/")).send().await.unwrap().status().as_u16() {
            200 => done += 1,
            502 => failed += 1,
            other => panic!("{other}"),
        }
    }
    let writes = [&bad, &good].map(|server| server.writes.load(Ordering::SeqCst));
    assert_eq!(writes, [failed, done], "what failed was sent once, and to nobody else");
    assert_eq!((failed + done, retries(&gate).await), (20, 0));
}

#[tokio::test]
async fn a_server_that_hangs_is_left_out_and_one_that_dies_in_its_answers_is_not() {
    let (bad, good) = (Server::start(Mood::Hangs).await, Server::start(Mood::Answers).await);
    let timeouts = ", timeouts: { read: 300ms }";
    let gate = Gate::start(&policy(&[bad.address, good.address], timeouts)).await;
    let out = eventually(Duration::from_secs(20), || async {
        let answers = futures_util::future::join_all((0..4).map(|_| get(&gate))).await;
        assert!(answers.iter().all(|status| matches!(status, 200 | 504)), "{answers:?}");
        is_up(&gate, bad.address).await == 0.0
    });
    assert!(out.await, "{}", gate.log());
    assert_eq!(get(&gate).await, 200);

    // It answers each request, and so it is not down.
    let bad = Server::start(Mood::DiesInAnswer).await;
    let gate = Gate::start(&policy(&[bad.address, good.address], "")).await;
    for _ in 0..20 {
        // The head may come before the connection ends, or not.
        if let Ok(answer) = client().get(gate.url("/")).send().await {
            assert_eq!(answer.status(), 200);
            let _ = answer.bytes().await;
        }
    }
    assert_eq!((is_up(&gate, bad.address).await, retries(&gate).await), (1.0, 0));
    assert_eq!(bad.requests(), 10);
}

#[tokio::test]
async fn when_all_are_down_each_is_asked_and_the_first_that_answers_brings_them_back() {
    let ports = [free_port(), free_port()];
    let servers = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let gate = Gate::start(&policy(&servers, "")).await;
    for _ in 0..12 {
        assert_eq!(get(&gate).await, 502);
    }
    assert_eq!((is_up(&gate, servers[0]).await, is_up(&gate, servers[1]).await), (0.0, 0.0));
    let back = [
        Server::start_at(ports[0], Mood::Answers).await,
        Server::start_at(ports[1], Mood::Answers).await,
    ];
    assert_eq!(get(&gate).await, 200, "nobody waits for the end of an exclusion");
    let both = eventually(Duration::from_secs(5), || async {
        assert_eq!(get(&gate).await, 200);
        is_up(&gate, servers[0]).await + is_up(&gate, servers[1]).await == 2.0
    });
    assert!(both.await, "{}", gate.log());
    assert!(back.iter().all(|server| server.requests() > 0));
}

#[tokio::test]
async fn a_health_check_that_passes_admits_a_server_at_once() {
    let port = free_port();
    let bad = SocketAddr::from(([127, 0, 0, 1], port));
    let good = Server::start(Mood::Answers).await;
    let check = ", health_check: { path: /healthz, every: 200ms, timeout: 1s }";
    let gate = Gate::start(&policy(&[bad, good.address], check)).await;
    let down = eventually(Duration::from_secs(5), || async { is_up(&gate, bad).await == 0.0 });
    assert!(down.await);
    let _back = Server::start_at(port, Mood::Answers).await;
    let up = eventually(Duration::from_secs(5), || async { is_up(&gate, bad).await == 1.0 });
    assert!(up.await, "{}", gate.log());
    assert_eq!(load(&gate, 100, 4).await, 0);
}

#[tokio::test]
async fn a_reload_keeps_what_is_known_of_servers_that_stay() {
    let living = Server::start(Mood::Answers).await;
    let dead = nobody();
    let text = policy(&[dead, living.address], "");
    let gate = Gate::start(&text).await;
    assert_eq!(load(&gate, 40, 2).await, 0);
    assert_eq!(is_up(&gate, dead).await, 0.0);
    let other =
        text.replace("{ name: site }", "{ name: other, match: { path: /x } }, { name: site }");
    assert_eq!(gate.reload(&other, "").await, Reloaded::Applied);
    assert_eq!(is_up(&gate, dead).await, 0.0, "the origin did not change");
    assert_eq!(load(&gate, 40, 2).await, 0);
}

#[tokio::test]
async fn least_requests_spare_a_slow_server() {
    let slow = Server::start(Mood::AnswersSlowly).await;
    let (a, b) = (Server::start(Mood::Answers).await, Server::start(Mood::Answers).await);
    let servers = [slow.address, a.address, b.address];
    let gate = Gate::start(&policy(&servers, ", balance: least_requests")).await;
    assert_eq!(load(&gate, 300, 4).await, 0);
    // A third of them without regard to what it does. With four clients it has one or two in flight all the time.
    assert!(slow.requests() < 30, "{} of 300", slow.requests());
}

#[tokio::test]
async fn requests_in_flight_are_released_however_they_end() {
    let bad = Server::start(Mood::Hangs).await;
    let good = Server::start(Mood::Answers).await;
    let more = ", balance: least_requests, timeouts: { read: 300ms }";
    let gate = Gate::start(&policy(&[bad.address, good.address], more)).await;
    // Clients that leave, answers that end in their middle, timeouts, closed connections.
    for mood in [Mood::Hangs, Mood::DiesInAnswer, Mood::Closes, Mood::Hangs] {
        bad.set(mood);
        let leaving = (0..8).map(|_| async {
            let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        });
        futures_util::future::join_all(leaving).await;
        // What they are told does not matter here.
        let asking = (0..8).map(|_| async { client().get(gate.url("/")).send().await.is_ok() });
        futures_util::future::join_all(asking).await;
    }
    bad.set(Mood::Answers);
    let idle = eventually(Duration::from_secs(10), || async {
        metric(&gate.metrics().await, "tollgate_origin_connections{origin=\"site\"}") == 0.0
            && get(&gate).await == 200
            && is_up(&gate, bad.address).await == 1.0
    });
    assert!(idle.await, "{}", gate.log());
    // One after the other: if a server still had requests in flight, the other one would get them all.
    let before = [bad.requests(), good.requests()];
    for _ in 0..60 {
        assert_eq!(get(&gate).await, 200);
    }
    let after = [bad.requests() - before[0], good.requests() - before[1]];
    assert!(after.iter().all(|count| *count >= 10), "{after:?}");
}
