//! Signals that logrotate sends, disks that are full, and how soon an idle process is gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use support::servers::{
    Gate, Origin, Reloaded, client, eventually, metric, now, origin_yaml, read,
};

const ROUTE: &str = "routes: [{ name: site }]\n";

async fn get(gate: &Gate, path: &str) -> u16 {
    client().get(gate.url(path)).send().await.unwrap().status().as_u16()
}

/// A gate whose access log is `access.log` in its folder.
async fn logging(origin: &Origin, more: &str) -> (Gate, PathBuf) {
    let policy =
        format!("{}{ROUTE}access_log: {{ to: ./access.log{more} }}\n", origin_yaml(origin.address));
    let gate = Gate::start(&policy).await;
    let file = gate.folder.path().join("access.log");
    (gate, file)
}

async fn has_line(file: &Path, path: &str) -> bool {
    let text = format!("\"path\":\"{path}\"");
    eventually(Duration::from_secs(5), || async { read(file).contains(&text) }).await
}

#[tokio::test]
async fn usr1_reopens_the_log_and_usr2_does_nothing() {
    let origin = Origin::start("site").await;
    let (mut gate, file) = logging(&origin, "").await;
    assert_eq!(get(&gate, "/before").await, 200);
    assert!(has_line(&file, "/before").await);
    gate.signal("USR2");
    let rotated = file.with_extension("log.1");
    std::fs::rename(&file, &rotated).unwrap();
    gate.signal("USR1");
    let reopened = eventually(Duration::from_secs(5), || async { file.exists() });
    assert!(reopened.await, "{}", gate.log());
    assert_eq!(get(&gate, "/after").await, 200);
    assert!(has_line(&file, "/after").await);
    assert!(!read(&rotated).contains("/after") && read(&rotated).contains("/before"));
    gate.signal("USR2");
    assert_eq!(get(&gate, "/still").await, 200);
    assert!(gate.ended(Duration::from_millis(200)).await.is_none());
    let metrics = gate.metrics().await;
    assert_eq!(metric(&metrics, "tollgate_config_generation"), 1.0, "no reload");
}

#[tokio::test]
async fn a_hup_reopens_the_log_of_a_refused_configuration_too() {
    let origin = Origin::start("site").await;
    let (gate, file) = logging(&origin, "").await;
    assert_eq!(get(&gate, "/before").await, 200);
    assert!(has_line(&file, "/before").await);
    std::fs::rename(&file, file.with_extension("log.1")).unwrap();
    assert_eq!(gate.reload_text("version: 1\nrubbish: [").await, Reloaded::Refused);
    let reopened = eventually(Duration::from_secs(5), || async { file.exists() });
    assert!(reopened.await, "{}", gate.log());
    assert_eq!(get(&gate, "/after").await, 200);
    assert!(has_line(&file, "/after").await);
}

/// The answer ends after the listeners have closed; its line is in the log when the process ends.
#[tokio::test]
async fn the_line_of_the_last_request_is_written() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (go_on, told) = tokio::sync::oneshot::channel();
    let origin = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut chunk = [0; 4096];
        assert!(stream.read(&mut chunk).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsl").await.unwrap();
        told.await.unwrap();
        stream.write_all(b"ow").await.unwrap();
    });
    let policy = format!(
        "{}{ROUTE}access_log: {{ to: ./access.log }}\nlimits_of_this_proxy: {{ drain: 100ms }}\n",
        origin_yaml(address)
    );
    let mut gate = Gate::start(&policy).await;
    let file = gate.folder.path().join("access.log");
    let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(2).any(|two| two == b"sl") {
        assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
    }
    gate.signal("TERM");
    let closed = eventually(Duration::from_secs(10), || async {
        gate.log().contains("closing the listeners")
    });
    assert!(closed.await, "the listeners close: {}", gate.log());
    // Longer than the log is waited for when nothing is open any more.
    assert!(gate.ended(Duration::from_millis(400)).await.is_none(), "the answer is waited for");
    go_on.send(()).unwrap();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"ow\r\n0\r\n\r\n"), "{answer:?}");
    assert!(gate.ended(Duration::from_secs(5)).await.is_some_and(|status| status.success()));
    assert!(read(&file).contains("\"path\":\"/slow\""), "{}", read(&file));
    origin.await.unwrap();
}

fn whole_lines(text: &str) -> usize {
    for line in text.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "torn: {line:?}");
    }
    assert!(text.is_empty() || text.ends_with('\n'), "torn end: {:?}", text.lines().last());
    text.lines().count()
}

/// The size of files is limited as a full disk would: a line that does not fit is not there at all,
/// and when there is room again the next line begins at the beginning of a line.
#[tokio::test]
async fn a_full_disk_tears_no_line() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let origin = Origin::start("site").await;
    let (gate, file) = logging(&origin, "").await;
    let pid = Pid::from_raw(i32::try_from(gate.pid()).unwrap());
    assert_eq!(get(&gate, "/first").await, 200);
    assert!(has_line(&file, "/first").await);
    let line = read(&file).len() as u64;
    let before =
        prlimit(pid, Resource::Fsize, Rlimit { current: Some(line * 7 / 2), maximum: None });
    for n in 0..20 {
        assert_eq!(get(&gate, &format!("/full/{n}")).await, 200);
    }
    let dropped = eventually(Duration::from_secs(5), || async {
        let metrics = gate.metrics().await;
        let dropped = metric(&metrics, "tollgate_log_dropped_total") as usize;
        dropped > 0 && dropped + read(&file).lines().count() >= 21
    });
    assert!(dropped.await, "{}\n{}", gate.metrics().await, read(&file));
    let fitted = whole_lines(&read(&file));
    assert!((2..=4).contains(&fitted), "{fitted} lines of {line} bytes");
    prlimit(pid, Resource::Fsize, before.unwrap()).unwrap();
    assert_eq!(get(&gate, "/room-again").await, 200);
    assert!(has_line(&file, "/room-again").await, "{}", read(&file));
    whole_lines(&read(&file));
}

#[tokio::test]
async fn a_device_that_is_full_stops_nothing() {
    let origin = Origin::start("site").await;
    let policy = format!("{}{ROUTE}access_log: {{ to: /dev/full }}\n", origin_yaml(origin.address));
    let mut gate = Gate::start(&policy).await;
    for n in 0..20 {
        assert_eq!(get(&gate, &format!("/{n}")).await, 200);
    }
    let counted = eventually(Duration::from_secs(5), || async {
        metric(&gate.metrics().await, "tollgate_log_dropped_total") == 20.0
    });
    assert!(counted.await, "{}", gate.metrics().await);
    gate.signal("INT");
    assert!(gate.ended(Duration::from_secs(2)).await.is_some());
}

#[tokio::test]
async fn refused_requests_are_sampled_as_their_own_share_says() {
    let origin = Origin::start("site").await;
    let limits = "limits: { one: { tier: exact, rate: 1/1h, key: client_ip } }\nroutes: [{ name: site, match: { path: /x }, limits: [one] }]\n";
    for (share, least, most) in [("100%", 200, 200), ("50%", 50, 150), ("0%", 0, 0)] {
        let policy = format!(
            "{}{limits}access_log: {{ to: ./access.log, sample: 100%, sample_denied: {share} }}\n",
            origin_yaml(origin.address)
        );
        let mut gate = Gate::start(&policy).await;
        let file = gate.folder.path().join("access.log");
        let client = client();
        assert_eq!(client.get(gate.url("/x")).send().await.unwrap().status(), 200);
        for _ in 0..100 {
            assert_eq!(client.get(gate.url("/x")).send().await.unwrap().status(), 429);
            assert_eq!(client.get(gate.url("/none")).send().await.unwrap().status(), 404);
        }
        gate.signal("INT");
        assert!(gate.ended(Duration::from_secs(2)).await.is_some());
        let log = read(&file);
        let denied = whole_lines(&log) - 1;
        assert!(log.contains("\"decision\":\"allowed\""), "{share}: {log}");
        assert!((least..=most).contains(&denied), "{share}: {denied} of 200");
        if denied > 0 {
            assert!(log.contains("\"decision\":\"limited\"") && log.contains("\"rejected\""));
        }
    }
}

/// Kubernetes kills after 30 s, Docker after 10 s: the defaults stay below both.
#[tokio::test]
async fn an_idle_process_is_gone_when_drain_is_over() {
    let origin = Origin::start("site").await;
    let mut gate = Gate::start(&format!("{}{ROUTE}", origin_yaml(origin.address))).await;
    assert_eq!(get(&gate, "/").await, 200);
    // An operator's connection is kept open and is no reason to stay.
    let mut operator = TcpStream::connect(("127.0.0.1", gate.admin)).await.unwrap();
    operator.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let began = now();
    gate.signal("TERM");
    let status = gate.ended(Duration::from_secs(20)).await.expect("ends");
    let took = began.elapsed();
    assert!(status.success());
    assert!(took >= Duration::from_secs(5), "accepts for drain: {took:?}");
    assert!(took < Duration::from_millis(5_500), "gone within half a second of drain: {took:?}");
    assert_eq!(gate.stdout().lines().count(), 1, "{}", gate.stdout());
}

/// Clients that keep an idle connection are no reason to stay either.
#[tokio::test]
async fn idle_connections_of_clients_do_not_hold_the_process() {
    let origin = Origin::start("site").await;
    let bounds = "limits_of_this_proxy: { drain: 200ms, finish: 20s }\n";
    let mut gate = Gate::start(&format!("{}{ROUTE}{bounds}", origin_yaml(origin.address))).await;
    let mut kept = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"site") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
        }
        kept.push(stream);
    }
    let began = now();
    gate.signal("TERM");
    assert!(gate.ended(Duration::from_secs(20)).await.is_some());
    let took = began.elapsed();
    assert!(took < Duration::from_millis(700), "{took:?}");
}

#[tokio::test]
async fn an_idle_connection_of_http2_does_not_hold_the_process() {
    let origin = Origin::start("site").await;
    let (folder, pairs) = crate::tls::folder(&["one.example"]);
    let bounds = "limits_of_this_proxy: { drain: 300ms, finish: 20s }\n";
    let policy = format!("{}{ROUTE}{bounds}", origin_yaml(origin.address));
    let mut gate = Gate::start_in(folder, &policy, crate::tls::ONE).await;
    let to = std::net::SocketAddr::from(([127, 0, 0, 1], gate.port));
    let http2 = crate::tls::trusting(&pairs[0], "one.example", to).build().unwrap();
    let url = format!("https://one.example:{}/", gate.port);
    let answer = http2.get(&url).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, reqwest::Version::HTTP_2));
    // And one that never says what it is.
    let silent = TcpStream::connect(to).await.unwrap();
    let began = now();
    gate.signal("TERM");
    assert!(gate.ended(Duration::from_secs(20)).await.is_some());
    let took = began.elapsed();
    assert!(took < Duration::from_millis(800), "{took:?}");
    drop((http2, silent));
}

#[tokio::test]
async fn logs_that_nobody_reads_do_not_delay_the_end() {
    use std::process::{Command, Stdio};
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let bounds = "limits_of_this_proxy: { drain: 300ms, finish: 20s }\n";
    let policy = format!("{}{ROUTE}{bounds}", origin_yaml(origin.address));
    let (port, _) = Gate::prepare(&folder, &policy, "");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["run", "--config"])
        .arg(folder.path().join("tollgate.yaml"))
        .env("XDG_RUNTIME_DIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (client, path) = (client(), "x".repeat(1_000));
    let url = format!("http://127.0.0.1:{port}/{path}");
    let up = eventually(Duration::from_secs(20), || async {
        client.get(&url).send().await.is_ok_and(|answer| answer.status() == 200)
    });
    assert!(up.await);
    // More than the 64 KiB of a pipe.
    for _ in 0..100 {
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    }
    drop(client);
    let began = now();
    support::servers::signal("TERM", child.id());
    let ended = eventually(Duration::from_secs(10), || {
        let ended = child.try_wait().unwrap().is_some();
        async move { ended }
    });
    assert!(ended.await);
    let took = began.elapsed();
    assert!(took < Duration::from_millis(800), "{took:?}");
}
