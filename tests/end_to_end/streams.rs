//! Streams of bytes, clean, odd and hostile (`tests/streams/*.yaml`), through tollgate to servers
//! that read requests in their own ways: NGINX, Node and aiohttp.
//!
//! For every stream, with every server: the answers are the expected ones; what the server saw is
//! what was expected, each request once; it is what the access log says was forwarded; and a path
//! that the server reads as one of a limited route was decided under that route.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use support::servers::{Gate, eventually, free_port, read};
use support::wait::{pause_of_a_slow_client, stands_still};

const POLICY: &str = "
limits:
  once: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: host, missing_key: deny }
  keyed: { tier: exact, algorithm: fixed_window, rate: 1/30d, key: header:x-api-key, missing_key: deny }
  site: { tier: estimate, rate: 100000/1m, key: client_ip }
defaults: { limits: [site] }
routes:
  - { name: admin, match: { path: /admin/** } }
  - { name: raw-files, match: { path: /files/*/raw } }
  - { name: limited, match: { path: /limited/** }, limits: [once] }
  - { name: keyed, match: { path: /keyed/** }, limits: [keyed] }
  - { name: site }
";

/// Streams at once.
const ABREAST: usize = 16;

/// How long nothing more may come until a stream is taken for answered.
const QUIET: Duration = Duration::from_millis(150);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stream {
    name: String,
    /// Code points are bytes. `{h}` and `{H}` become a host of this stream's own, `{body:N}` that
    /// many letters.
    send: String,
    answers: Answers,
    /// Targets that the origin sees.
    seen: Vec<String>,
    /// Written in pieces of so many bytes.
    cut: Option<usize>,
    /// Origins that take such a request at all.
    only: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Answers {
    /// These statuses and no more.
    Statuses(Vec<u16>),
    /// `broken`: the request may or may not have reached the origin when its body broke; nothing
    /// after it does.
    Word(Word),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Broken,
}

/// A server of another make, with the file in which it notes what it saw.
pub struct Server {
    name: &'static str,
    pub port: u16,
    seen: PathBuf,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Server {
    pub async fn start(name: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, seen) = (free_port(), folder.path().join("seen"));
        let origins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams/origins");
        let mut command = match name {
            "nginx" => {
                let text = read(&origins.join("nginx.conf"));
                let text = text.replace("PORT", &port.to_string());
                let text = text.replace("FOLDER", folder.path().to_str().unwrap());
                let file = folder.path().join("nginx.conf");
                std::fs::write(&file, text).unwrap();
                let mut command = Command::new("nginx");
                command.arg("-c").arg(file).arg("-p").arg(folder.path());
                command
            }
            "node" => {
                let mut command = Command::new("node");
                command.arg(origins.join("node.js")).arg(port.to_string()).arg(&seen);
                command
            }
            _ => {
                // Debian's own, whose packages `make test` installs.
                let mut command = Command::new("/usr/bin/python3");
                command.arg(origins.join("server.py")).arg(port.to_string()).arg(&seen);
                command
            }
        };
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let up = eventually(Duration::from_secs(20), || async {
            TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        });
        assert!(up.await, "{name} does not start");
        Self { name, port, seen, child, _folder: folder }
    }

    /// Host, target as it came, and path as it was read, of everything seen.
    pub fn seen(&self) -> Vec<[String; 3]> {
        let bytes = std::fs::read(&self.seen).unwrap_or_default();
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        let line = |line: &str| {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut field = || fields.next().unwrap_or_default();
            [field(), field(), field()]
        };
        text.lines().map(line).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `TOLLGATE_STREAMS=heads: a folded` sends only the streams with this in their name (`FILE: NAME`).
fn chosen() -> Option<String> {
    std::env::var("TOLLGATE_STREAMS").ok()
}

fn corpus() -> Vec<Stream> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let streams: Vec<Stream> = serde_yaml::from_str(&read(&file)).unwrap();
        let topic = file.file_stem().unwrap().to_str().unwrap();
        all.extend(
            streams
                .into_iter()
                .map(|stream| Stream { name: format!("{topic}: {}", stream.name), ..stream }),
        );
    }
    if let Some(part) = chosen() {
        all.retain(|stream| stream.name.contains(&part));
        assert!(!all.is_empty(), "no stream has {part:?} in its name");
    }
    all
}

fn filled_in(text: &str, host: &str) -> String {
    let mut text = text.replace("{h}", host).replace("{H}", &host.to_ascii_uppercase());
    while let Some(at) = text.find("{body:") {
        let end = at + text[at..].find('}').unwrap();
        let length: usize = text[at + 6..end].parse().unwrap();
        text.replace_range(at..=end, &"x".repeat(length));
    }
    text
}

/// Sends a stream and reads what comes back, until it is closed or quiet.
async fn send(port: u16, stream: &Stream, host: &str) -> (Vec<u16>, bool) {
    let text = filled_in(&stream.send, host);
    let bytes: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let (mut from, mut to) = tcp.into_split();
    let cut = stream.cut.unwrap_or(bytes.len().max(1));
    let slow = stream.cut.is_some();
    let writing = tokio::spawn(async move {
        for piece in bytes.chunks(cut) {
            // The other side may have closed: its answer says why.
            if to.write_all(piece).await.is_err() {
                break;
            }
            if slow {
                pause_of_a_slow_client(Duration::from_millis(1)).await;
            }
        }
        to
    });
    let wanted = match &stream.answers {
        Answers::Statuses(statuses) => statuses.len(),
        Answers::Word(Word::Broken) => 1,
    };
    let mut answer = Vec::new();
    loop {
        let patience =
            if statuses(&answer).len() < wanted { Duration::from_secs(10) } else { QUIET };
        match timeout(patience, from.read_buf(&mut answer)).await {
            Ok(Ok(more)) if more > 0 => {}
            _ => break,
        }
    }
    drop(writing.await);
    // An answer of the framework's own has no reason, and nobody counted it.
    let uncounted = String::from_utf8_lossy(&answer).contains("Server: Pingora");
    (statuses(&answer), uncounted)
}

/// The statuses of all answers; no body of these servers holds a status line.
fn statuses(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    let found = text.match_indices("HTTP/1.1 ");
    let statuses = found.filter_map(|(at, word)| text[at + word.len()..].get(..3)?.parse().ok());
    statuses.filter(|status| *status != 100).collect()
}

/// A stream with its host's number and the answers that it got.
struct Sent {
    stream: Stream,
    host: String,
    statuses: Vec<u16>,
    uncounted: bool,
}

async fn send_all(port: u16, server: &'static str) -> Vec<Sent> {
    let abreast = Arc::new(Semaphore::new(ABREAST));
    let mut tasks = Vec::new();
    for (number, stream) in corpus().into_iter().enumerate() {
        if stream.only.as_ref().is_some_and(|only| only.iter().all(|one| one != server)) {
            continue;
        }
        let abreast = Arc::clone(&abreast);
        tasks.push(tokio::spawn(async move {
            let _permit = abreast.acquire().await.unwrap();
            let host = format!("s{number:04}.test");
            let (statuses, uncounted) = send(port, &stream, &host).await;
            Sent { stream, host, statuses, uncounted }
        }));
    }
    let mut sent = Vec::new();
    for task in tasks {
        sent.push(task.await.unwrap());
    }
    sent
}

/// `s0001.test:80.` is `s0001.test`.
fn bare(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    let host = host.split(':').next().unwrap_or_default();
    host.trim_end_matches('.').to_owned()
}

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or_default()
}

/// The route of the policy above that a path is of, as this server reads paths.
fn route_as_read(path: &str) -> &'static str {
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match segments[..] {
        ["admin", ..] => "admin",
        ["files", one, "raw"] if !one.is_empty() => "raw-files",
        ["limited", ..] => "limited",
        ["keyed", ..] => "keyed",
        _ => "site",
    }
}

/// Path and route of everything that was let through, by host.
fn admitted(gate: &Gate) -> BTreeMap<String, Vec<(String, String)>> {
    let mut all: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for line in gate.stdout().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        if !line["origin"].is_null() {
            all.entry(text("host")).or_default().push((text("path"), text("route")));
        }
    }
    all
}

/// Everything that is wrong with what became of the streams.
fn judge(server: &Server, gate: &Gate, sent: &[Sent]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<String, Vec<[String; 3]>> = BTreeMap::new();
    for [host, target, reading] in server.seen() {
        seen.entry(bare(&host)).or_default().push([host, target, reading]);
    }
    let mut admitted = admitted(gate);
    for Sent { stream, host, statuses, uncounted } in sent {
        let seen = seen.remove(host).unwrap_or_default();
        let admitted = admitted.remove(host).unwrap_or_default();
        let targets: Vec<&str> = seen.iter().map(|[_, target, _]| &**target).collect();
        let mut tell = |why: String| {
            wrong.push(format!("{}: {}: {why} (answers {statuses:?})", server.name, stream.name));
        };
        if *uncounted {
            tell("an answer without a reason".to_owned());
        }
        let expected: Vec<String> =
            stream.seen.iter().map(|target| filled_in(target, host)).collect();
        match &stream.answers {
            Answers::Statuses(expected) if expected != statuses => {
                tell(format!("expected the answers {expected:?}"));
            }
            Answers::Word(Word::Broken) if seen.len() > 1 => {
                tell("more than the broken request was seen".to_owned());
            }
            Answers::Statuses(_) | Answers::Word(Word::Broken) => {}
        }
        let broken = matches!(stream.answers, Answers::Word(Word::Broken));
        if targets != expected && !(broken && targets.is_empty()) {
            tell(format!("the origin saw {targets:?} and not {expected:?}"));
        }
        let paths: Vec<&str> = admitted.iter().map(|(path, _)| &**path).collect();
        let seen_paths: Vec<&str> = targets.iter().map(|target| path_of(target)).collect();
        // The log cuts long paths.
        let alike = paths.len() == seen_paths.len()
            && paths.iter().zip(&seen_paths).all(|(p, s)| p == s || p.len() > 400);
        if !alike && !broken {
            tell(format!("let through {paths:?}, seen {seen_paths:?}"));
        }
        for ([_, target, reading], (_, route)) in seen.iter().zip(&admitted) {
            if route_as_read(path_of(reading)) != route {
                tell(format!("{target} is read as {reading} and was decided as {route}"));
            }
        }
    }
    // Nothing was seen or let through that no stream sent.
    wrong.extend(seen.into_values().flatten().map(|one| format!("{}: {one:?}", server.name)));
    wrong.extend(
        admitted
            .into_iter()
            .filter(|(host, _)| !host.is_empty())
            .map(|one| format!("{}: let through for nobody: {one:?}", server.name)),
    );
    wrong
}

async fn run(name: &'static str) {
    let server = Server::start(name).await;
    let origin = format!("origins:\n  site:\n    servers: [\"127.0.0.1:{}\"]\n", server.port);
    let gate = Gate::start(&format!("{origin}{POLICY}")).await;
    let sent = send_all(gate.port, name).await;
    // Until the books are closed: nothing new in either.
    let books = || (server.seen().len(), gate.stdout().len());
    assert!(stands_still(Duration::from_secs(20), 15, books).await, "{:?}", books());
    assert!(books().0 > 0 || chosen().is_some(), "the origin saw nothing");
    let wrong = judge(&server, &gate, &sent);
    println!("{name}: {} streams, {} requests seen", sent.len(), server.seen().len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), sent.len(), wrong.join("\n"));
    assert!(sent.len() >= 400 || chosen().is_some());
    let panics = gate.log().matches("panicked").count();
    assert_eq!(panics, 0, "{}", gate.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_sees_what_was_decided() {
    run("nginx").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_sees_what_was_decided() {
    run("node").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_sees_what_was_decided() {
    run("python").await;
}
