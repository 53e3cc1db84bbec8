//! Start, handing over, end: signals in every order, successors good and broken, files that break
//! a hundred times a second, and logs that nobody reads.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use support::servers::{
    Gate, Origin, client, eventually, metric, now, origin_yaml, resident_kib, signal,
};
use support::wait::pause_between_arrivals;

const ROUTE: &str = "routes: [{ name: r }]\nlimits_of_this_proxy: { drain: 500ms, finish: 10s }\n";

/// Clients that keep asking until told to stop: half keep their connections, half do not.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(port: u16) -> Self {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let tasks = (0..8)
            .map(|n| {
                let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
                tokio::spawn(async move {
                    let mut failures = Vec::new();
                    let mut kept = None;
                    while !stop.load(Ordering::Relaxed) {
                        match ask(port, &mut kept).await {
                            Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => failures.push(error),
                        }
                        if n % 2 == 0 {
                            kept = None;
                        }
                    }
                    failures
                })
            })
            .collect();
        Self { stop, answered, tasks }
    }

    /// Waits until so many more were answered.
    async fn more(&self, requests: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + requests;
        let come = eventually(Duration::from_secs(90), || async {
            self.answered.load(Ordering::Relaxed) >= goal
        });
        assert!(come.await, "requests are answered");
    }

    async fn failures(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        for task in self.tasks {
            failures.extend(task.await.unwrap());
        }
        failures
    }
}

/// One request, on the connection that was kept if there is one. Nothing is tried twice: a client
/// that retries would hide what was lost.
async fn ask(port: u16, kept: &mut Option<TcpStream>) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => TcpStream::connect(("127.0.0.1", port)).await.map_err(failed)?,
    };
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.map_err(failed)?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"site") {
        if stream.read_buf(&mut answer).await.map_err(failed)? == 0 {
            return Err(format!("closed after {:?}", String::from_utf8_lossy(&answer)));
        }
    }
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    if !answer.starts_with("http/1.1 200") {
        return Err(answer);
    }
    if !answer.contains("connection: close") {
        *kept = Some(stream);
    }
    Ok(())
}

async fn logged(gate: &Gate, text: &str) -> bool {
    eventually(Duration::from_secs(15), || async { gate.log().contains(text) }).await
}

#[tokio::test]
async fn a_successor_takes_over_and_no_request_fails() {
    let origin = Origin::start("site").await;
    let mut old = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let load = Load::start(old.port);
    load.more(200).await;
    let mut new = old.successor();
    assert!(logged(&old, "a successor is waiting").await, "{}", old.log());
    load.more(200).await;
    assert!(old.ended(Duration::ZERO).await.is_none(), "nothing happens before QUIT");
    old.signal("QUIT");
    let status = old.ended(Duration::from_secs(10)).await.expect("the old one ends");
    assert!(status.success(), "{status}: {}", old.log());
    load.more(500).await;
    new.wait_ready().await;
    // The other order: told first, a successor comes later.
    new.signal("QUIT");
    assert!(logged(&new, "serving on until a successor comes").await);
    load.more(200).await;
    let mut third = new.successor();
    assert!(new.ended(Duration::from_secs(10)).await.is_some_and(|status| status.success()));
    load.more(200).await;
    third.wait_ready().await;
    third.signal("TERM");
    let failures = load.failures().await;
    assert_eq!(failures, Vec::<String>::new());
}

#[tokio::test]
async fn quit_without_a_successor_serves_on() {
    let origin = Origin::start("site").await;
    let mut gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let load = Load::start(gate.port);
    for _ in 0..20 {
        gate.signal("QUIT");
        load.more(10).await;
    }
    assert!(gate.ended(Duration::ZERO).await.is_none());
    assert_eq!(gate.admin_get("/ready").await.unwrap().0, 200);
    assert_eq!(load.failures().await, Vec::<String>::new());
}

#[tokio::test]
async fn broken_successors_leave_the_old_one_serving() {
    let origin = Origin::start("site").await;
    let good = format!("{}{ROUTE}", origin_yaml(origin.address));
    let mut old = Gate::start(&good).await;
    let load = Load::start(old.port);
    // One that refuses its configuration never comes.
    let text = std::fs::read_to_string(old.file()).unwrap();
    std::fs::write(old.file(), "version: 1\nnonsense: true\n").unwrap();
    let mut refused = old.successor();
    let status = refused.ended(Duration::from_secs(10)).await.expect("refused");
    assert_eq!(status.code(), Some(2), "{}", refused.log());
    std::fs::write(old.file(), &text).unwrap();

    // One that dies while it waits.
    let mut dead = old.successor();
    assert!(logged(&old, "a successor is waiting").await);
    signal("KILL", dead.pid());
    dead.ended(Duration::from_secs(5)).await.unwrap();
    assert!(logged(&old, "the successor has gone").await, "{}", old.log());

    // And after all of them a good one.
    let mut new = old.successor();
    old.signal("QUIT");
    assert!(old.ended(Duration::from_secs(10)).await.is_some_and(|status| status.success()));
    load.more(100).await;
    new.wait_ready().await;
    assert_eq!(load.failures().await, Vec::<String>::new());
}

#[tokio::test]
async fn the_meeting_place_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let origin = Origin::start("site").await;
    let gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let folder = std::fs::metadata(gate.folder.path().join("tollgate")).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn signals_in_every_order() {
    let origin = Origin::start("site").await;
    let site = origin_yaml(origin.address);
    let bounds = "routes: [{ name: r }]\nlimits_of_this_proxy: { drain: 300ms, finish: 5s }\n";
    let words = ["HUP", "QUIT", "TERM"];
    let orders = (0..27).map(|n| [words[n % 3], words[n / 3 % 3], words[n / 9]]);
    for order in orders {
        let mut gate = Gate::start(&format!("{site}{bounds}")).await;
        for name in order {
            if gate.ended(Duration::ZERO).await.is_none() {
                gate.signal(name);
            }
        }
        let terms = order.iter().filter(|name| **name == "TERM").count();
        if terms == 0 {
            assert_eq!(client().get(gate.url("/")).send().await.unwrap().status(), 200);
            assert!(gate.ended(Duration::ZERO).await.is_none(), "{order:?}");
        } else {
            let ended = gate.ended(Duration::from_secs(3)).await;
            // Signals of one kind that come together are one.
            let code = ended.unwrap_or_else(|| panic!("{order:?} does not end")).code();
            assert!(code == Some(0) || terms > 1 && code == Some(1), "{order:?}: {code:?}");
        }
    }
}

/// An origin that answers its only request when it is told to.
async fn held_origin() -> (SocketAddr, Arc<Notify>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, release) = (listener.local_addr().unwrap(), Arc::<Notify>::default());
    let told = Arc::clone(&release);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        assert!(stream.read(&mut head).await.unwrap() > 0);
        told.notified().await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow").await.unwrap();
    });
    (address, release)
}

/// A balancer needs a while to see that `/ready` fails; a slow request may outlast that.
#[tokio::test]
async fn a_term_under_load_fails_no_request() {
    let origin = Origin::start("site").await;
    let (slow, release) = held_origin().await;
    let text = format!(
        "origins:\n  site: {{ servers: [\"{}\"] }}\n  slow: {{ servers: [\"{slow}\"] }}\n\
         routes:\n  - {{ name: slow, match: {{ path: /slow }}, origin: slow }}\n  - {{ name: r, origin: site }}\n\
         limits_of_this_proxy: {{ drain: 2s, finish: 10s }}\n",
        origin.address
    );
    let mut gate = Gate::start(&text).await;
    let load = Load::start(gate.port);
    let held = tokio::spawn(client().get(gate.url("/slow")).send());
    load.more(200).await;
    gate.signal("TERM");
    load.more(200).await;
    assert_eq!(gate.admin_get("/ready").await.unwrap().0, 503);
    assert_eq!(load.failures().await, Vec::<String>::new());
    assert!(
        gate.ended(Duration::from_millis(2_500)).await.is_none(),
        "one request is not answered"
    );
    release.notify_one();
    assert_eq!(held.await.unwrap().unwrap().text().await.unwrap(), "slow");
    assert!(gate.ended(Duration::from_secs(2)).await.is_some_and(|status| status.success()));
}

#[tokio::test]
async fn a_hup_before_it_is_ready_does_not_kill_it() {
    let origin = Origin::start("site").await;
    let mut gate = Gate::spawn(&format!("{}{ROUTE}", origin_yaml(origin.address)), "");
    let pid = gate.pid();
    // From the first instant at which it takes the signal: bit 0 of the caught ones.
    let takes_hup = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & 1 == 1)
    };
    let began = now();
    while !takes_hup() {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    for _ in 0..20 {
        gate.signal("HUP");
    }
    gate.wait_ready().await;
    assert_eq!(client().get(gate.url("/")).send().await.unwrap().status(), 200);
}

/// Files that must be refused whole, by name.
fn bad_files(good: &str) -> Vec<(&'static str, Vec<u8>)> {
    let mut aliases = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let before = n - 1;
        let list = vec![format!("*a{before}"); 9].join(", ");
        aliases.push_str(&format!("a{n}: &a{n} [{list}]\n"));
    }
    vec![
        ("empty", Vec::new()),
        ("half written", good.as_bytes()[..good.len() / 2].to_vec()),
        ("huge", format!("{good}# {}\n", "x".repeat(8 << 20)).into_bytes()),
        ("many aliases", aliases.into_bytes()),
        ("deep", format!("a: {}", "[".repeat(100_000)).into_bytes()),
        ("a key twice", format!("{good}routes: []\n").into_bytes()),
        ("not text", vec![0xff, 0xfe, 0, 0]),
    ]
}

#[tokio::test]
async fn bad_files_a_hundred_times_a_second_change_nothing() {
    let origin = Origin::start("site").await;
    let mut gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    let good = std::fs::read_to_string(gate.file()).unwrap();
    let load = Load::start(gate.port);
    load.more(200).await;
    let before = resident_kib(gate.pid());
    let storm = async |gate: &Gate| {
        for _ in 0..100 {
            gate.signal("HUP");
            pause_between_arrivals(Duration::from_millis(5)).await;
        }
    };
    let refused = async |gate: &Gate| {
        let metrics = gate.metrics().await;
        assert_eq!(metric(&metrics, "tollgate_config_generation") as u64, 1);
        metric(&metrics, "tollgate_config_reloads_total{outcome=\"refused\"}")
    };
    for (name, content) in bad_files(&good) {
        let before = refused(&gate).await;
        if content.len() > 4_096 {
            // Not in place: what a writer has left that was stopped on its way may be a good file.
            let beside = gate.folder.path().join("beside");
            std::fs::write(&beside, &content).unwrap();
            std::fs::rename(&beside, gate.file()).unwrap();
        } else {
            std::fs::write(gate.file(), &content).unwrap();
        }
        storm(&gate).await;
        let told = eventually(Duration::from_secs(20), || async { refused(&gate).await > before });
        assert!(told.await, "{name} is refused");
    }
    std::fs::remove_file(gate.file()).unwrap();
    storm(&gate).await;
    std::fs::create_dir(gate.file()).unwrap();
    storm(&gate).await;
    std::fs::remove_dir(gate.file()).unwrap();
    // No permission: root would read it all the same, so a loop of links stands for it.
    std::os::unix::fs::symlink(gate.file(), gate.file()).unwrap();
    storm(&gate).await;
    std::fs::remove_file(gate.file()).unwrap();
    load.more(100).await;
    let grown = resident_kib(gate.pid()).saturating_sub(before);
    assert!(grown < 24 * 1024, "{grown} KiB more than before");
    std::fs::write(gate.file(), &good).unwrap();
    assert_eq!(gate.hup().await, support::servers::Reloaded::Applied);
    assert_eq!(load.failures().await, Vec::<String>::new());
    // And while it ends.
    let load = Load::start(gate.port);
    load.more(20).await;
    gate.signal("TERM");
    std::fs::write(gate.file(), "nonsense").unwrap();
    for _ in 0..20 {
        if gate.ended(Duration::from_millis(5)).await.is_none() {
            gate.signal("HUP");
        }
    }
    let mut failures = load.failures().await;
    // A connection that stands in the kernel's queue when the listener closes is reset.
    failures.retain(|why| !why.contains("refused") && !why.contains("reset by peer"));
    assert_eq!(failures, Vec::<String>::new());
    let status = gate.ended(Duration::from_secs(5)).await.expect("ends");
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_log_that_nobody_reads_blocks_nobody() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let (port, admin) =
        Gate::prepare(&folder, &format!("{}{ROUTE}", origin_yaml(origin.address)), "");
    // Pipes that are never read: 64 KiB fit, then nothing.
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--config"])
        .arg(folder.path().join("tollgate.yaml"))
        .env("XDG_RUNTIME_DIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let url = format!("http://127.0.0.1:{port}/");
    let up = eventually(Duration::from_secs(20), || async {
        client().get(&url).send().await.is_ok_and(|answer| answer.status() == 200)
    });
    assert!(up.await);
    let load = Load::start(port);
    // What fits into the pipe, and the 16,384 lines that wait.
    load.more(18_000).await;
    let metrics = client().get(format!("http://127.0.0.1:{admin}/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert_eq!(load.failures().await, Vec::<String>::new());
    assert!(metric(&metrics, "tollgate_log_dropped_total") > 0.0, "{metrics}");
    signal("TERM", child.id());
    let ended = eventually(Duration::from_secs(10), || {
        let ended = child.try_wait().unwrap().is_some();
        async move { ended }
    });
    assert!(ended.await, "the end does not wait for a reader either");
}

/// A service manager that stops a replaced process sends it one TERM. That cuts no request.
#[tokio::test]
async fn one_term_to_a_replaced_process_cuts_nothing() {
    let (go_on, held) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let origin = {
        let (go_on, held) = (Arc::clone(&go_on), Arc::clone(&held));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (go_on, held) = (Arc::clone(&go_on), Arc::clone(&held));
                tokio::spawn(async move {
                    let mut chunk = [0; 4096];
                    assert!(stream.read(&mut chunk).await.unwrap() > 0);
                    held.notify_one();
                    go_on.notified().await;
                    stream
                        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsite")
                        .await
                        .unwrap();
                });
            }
        });
        address
    };
    let mut old = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin))).await;
    let port = old.port;
    let asked = tokio::spawn(async move { ask(port, &mut None).await });
    held.notified().await;
    let mut new = old.successor();
    assert!(logged(&old, "a successor is waiting").await, "{}", old.log());
    old.signal("QUIT");
    assert!(logged(&old, "closing the listeners").await, "{}", old.log());
    old.signal("TERM");
    assert!(old.ended(Duration::from_millis(500)).await.is_none(), "it waits for the request");
    go_on.notify_one();
    assert_eq!(asked.await.unwrap(), Ok(()));
    assert!(old.ended(Duration::from_secs(10)).await.is_some_and(|status| status.success()));
    new.wait_ready().await;
}
