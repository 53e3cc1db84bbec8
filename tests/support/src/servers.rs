//! Real servers for tests: the binary, and origins that remember what they saw.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::wait::eventually_some;
pub use crate::wait::{eventually, now};

/// What an origin saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub target: String,
    pub version: hyper::Version,
    pub headers: hyper::HeaderMap,
}

/// An HTTP/1 and HTTP/2 (prior knowledge) origin on a free port of loopback.
pub struct Origin {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

pub type Answer = Response<Full<Bytes>>;

impl Origin {
    /// Answers everything with 200 and its name.
    pub async fn start(name: &'static str) -> Self {
        Self::with(move |_| Response::new(Full::from(name))).await
    }

    pub async fn with(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (book, answer) = (Arc::clone(&seen), Arc::new(answer));
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (book, answer) = (Arc::clone(&book), Arc::clone(&answer));
                tokio::spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let (book, answer) = (Arc::clone(&book), Arc::clone(&answer));
                        async move {
                            let (parts, body) = request.into_parts();
                            let _ = body.collect().await;
                            let one = Seen {
                                target: parts.uri.to_string(),
                                version: parts.version,
                                headers: parts.headers,
                            };
                            let response = answer(&one);
                            book.lock().unwrap().push(one);
                            Ok::<_, Infallible>(response)
                        }
                    });
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ =
                        server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, seen, task }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port of loopback that is free. None is given twice, and none that the kernel gives to others:
/// its own begin at 32,768.
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const PORTS: u32 = 20_000;
    static GIVEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    loop {
        let n =
            std::process::id().wrapping_mul(97).wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + n % PORTS).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The program under test: the one that `TOLLGATE_BINARY` names, or the one that cargo built with the tests.
fn binary() -> PathBuf {
    std::env::var_os("TOLLGATE_BINARY").map_or_else(built_binary, PathBuf::from)
}

/// Cargo puts tests and benchmarks into `deps`, next to the programs of the same profile.
fn built_binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().with_file_name("tollgate")
}

/// The binary, serving a configuration in a folder of its own. Killed when dropped.
pub struct Gate {
    pub folder: Arc<tempfile::TempDir>,
    pub port: u16,
    pub admin: u16,
    log: PathBuf,
    out: PathBuf,
    child: Child,
}

impl Gate {
    /// `policy` is everything but `version`, `listeners` and `admin`.
    pub async fn start(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::start_in(folder, policy, "").await
    }

    /// `tls` is put into the listener, for example `tls: { certificate: a, private_key: b }`.
    pub async fn start_in(folder: tempfile::TempDir, policy: &str, tls: &str) -> Self {
        let (port, admin) = Self::prepare(&folder, policy, tls);
        let mut gate = Self::run(Arc::new(folder), port, admin, &[]);
        gate.wait_ready().await;
        gate
    }

    /// Starts it and does not wait.
    pub fn spawn(policy: &str, tls: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, admin) = Self::prepare(&folder, policy, tls);
        Self::run(Arc::new(folder), port, admin, &[])
    }

    /// Starts a process that waits to take over from this one.
    pub fn successor(&self) -> Self {
        Self::run(Arc::clone(&self.folder), self.port, self.admin, &["--upgrade"])
    }

    /// Writes the configuration; says on which ports it serves.
    pub fn prepare(folder: &tempfile::TempDir, policy: &str, tls: &str) -> (u16, u16) {
        let (port, admin) = (free_port(), free_port());
        let file = folder.path().join("tollgate.yaml");
        std::fs::write(file, Self::whole(port, admin, tls, policy)).unwrap();
        (port, admin)
    }

    /// Runs it with more arguments; `nofile=600` as the first leaves it so many descriptors.
    pub fn run(folder: Arc<tempfile::TempDir>, port: u16, admin: u16, more: &[&str]) -> Self {
        // `prlimit` becomes the program that it is given.
        let limited = more.first().and_then(|first| first.strip_prefix("nofile="));
        let before = limited.map(|number| format!("prlimit --nofile={number}:{number}"));
        let more = if limited.is_some() { &more[1..] } else { more };
        let before = before.as_deref().unwrap_or_default().split_whitespace();
        Self::run_by(before.map(str::to_owned).collect(), folder, port, admin, more)
    }

    /// The same, by a program that becomes the one that it is given, with these words.
    pub fn run_by(
        before: Vec<String>,
        folder: Arc<tempfile::TempDir>,
        port: u16,
        admin: u16,
        more: &[&str],
    ) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (log, out) = (format!("stderr-{number}"), format!("stdout-{number}"));
        let (log, out) = (folder.path().join(log), folder.path().join(out));
        let mut command = match before.split_first() {
            None => Command::new(binary()),
            Some((program, words)) => {
                let mut command = Command::new(program);
                command.args(words).arg(binary());
                command
            }
        };
        let child = command
            .args(["run", "--config"])
            .arg(folder.path().join("tollgate.yaml"))
            .args(more)
            .env("XDG_RUNTIME_DIR", folder.path())
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&out).unwrap())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { folder, port, admin, log, out, child }
    }

    fn whole(port: u16, admin: u16, tls: &str, policy: &str) -> String {
        let tls = if tls.is_empty() { String::new() } else { format!("\n    {tls}") };
        format!(
            "version: 1\nlisteners:\n  - address: 127.0.0.1:{port}{tls}\nadmin:\n  address: \
             127.0.0.1:{admin}\n{policy}"
        )
    }

    pub async fn wait_ready(&mut self) {
        let port = self.port;
        let up = eventually(Duration::from_secs(20), || async {
            let open = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok();
            open && self.admin_get("/ready").await.is_ok_and(|(status, _)| status == 200)
        })
        .await;
        assert!(up, "tollgate did not start: {}", self.log());
    }

    /// Waits until it is ready, where its listener takes no plain connection.
    pub async fn wait_admin(&mut self) {
        let up = eventually(Duration::from_secs(20), || async {
            self.admin_get("/ready").await.is_ok_and(|(status, _)| status == 200)
        });
        assert!(up.await, "tollgate did not start: {}", self.log());
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("tollgate.yaml")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn log(&self) -> String {
        read(&self.log)
    }

    pub fn stdout(&self) -> String {
        read(&self.out)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes the next policy and reloads; waits until it is applied or refused.
    pub async fn reload(&self, policy: &str, tls: &str) -> Reloaded {
        self.reload_text(&Self::whole(self.port, self.admin, tls, policy)).await
    }

    pub async fn reload_text(&self, text: &str) -> Reloaded {
        std::fs::write(self.file(), text).unwrap();
        self.hup().await
    }

    pub async fn hup(&self) -> Reloaded {
        let before = self.reloads().await;
        self.signal("HUP");
        let mut after = before;
        let moved = eventually(Duration::from_secs(10), || async {
            let now = self.reloads().await;
            now != before
        })
        .await;
        assert!(moved, "the reload was not answered: {}", self.log());
        after = self.reloads().await.max(after);
        if after.0 > before.0 { Reloaded::Applied } else { Reloaded::Refused }
    }

    async fn reloads(&self) -> (u64, u64) {
        let text = self.metrics().await;
        let of = |outcome: &str| {
            metric(&text, &format!("tollgate_config_reloads_total{{outcome=\"{outcome}\"}}"))
        };
        (of("applied") as u64, of("refused") as u64)
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.pid());
    }

    pub async fn metrics(&self) -> String {
        self.admin_get("/metrics").await.unwrap().1
    }

    pub async fn admin_get(&self, path: &str) -> reqwest::Result<(u16, String)> {
        let answer = client().get(format!("http://127.0.0.1:{}{path}", self.admin)).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// How the process has ended, if it has.
    pub fn try_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        eventually_some(patience, || {
            let status = self.child.try_wait().unwrap();
            async move { status }
        })
        .await
    }
}

/// Sends a signal, by the shell's own `kill`: a minimal Debian has no other.
pub fn signal(name: &str, pid: u32) {
    let sent = Command::new("sh").args(["-c", &format!("kill -s {name} {pid}")]).status();
    assert!(sent.unwrap().success());
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of tollgate ---\n{}", self.log());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    Applied,
    Refused,
}

/// A client of HTTP/1 that keeps connections.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap()
}

/// The same, from an address of its own.
pub fn client_from(source: std::net::IpAddr) -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20));
    client.local_address(source).build().unwrap()
}

/// The value of one sample of a scrape, 0 when it is not there.
pub fn metric(text: &str, sample: &str) -> f64 {
    let line =
        text.lines().find(|line| line.strip_prefix(sample).is_some_and(|r| r.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// What a process has in memory, in KiB (`VmRSS`).
pub fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// The origin and a policy that leads everything there.
pub fn origin_yaml(address: SocketAddr) -> String {
    format!("origins:\n  site:\n    servers: [\"{address}\"]\n")
}
