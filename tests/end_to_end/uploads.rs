//! Refused uploads: real clients see their 429, and little is read of what they send.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use support::servers::{Gate, Origin, origin_yaml, read};

/// A gate that refuses every second request, and a file of 20 MB.
async fn refusing(origin: &Origin, lingers: &str) -> Gate {
    let policy = format!(
        "
limits: {{ once: {{ tier: exact, algorithm: fixed_window, rate: 1/30d, key: path }} }}
routes: [{{ name: r, limits: [once] }}]
limits_of_this_proxy: {{ discard: {{ time: {lingers} }} }}
"
    );
    let gate = Gate::start(&format!("{}{policy}", origin_yaml(origin.address))).await;
    std::fs::write(gate.folder.path().join("large"), vec![b'x'; 20_000_000]).unwrap();
    gate
}

/// Runs a client a few times; each must see its 429.
fn each_sees_it(name: &str, gate: &Gate, command: impl Fn() -> Command) {
    for n in 0..10 {
        let output = command().current_dir(gate.folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("429"), "{name}, {n}: {said} {errors}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_sees_the_429_of_a_large_upload() {
    let origin = Origin::start("site").await;
    let gate = refusing(&origin, "1s").await;
    let url = gate.url("/up");
    assert_eq!(support::servers::client().get(&url).send().await.unwrap().status(), 200);
    let curl = |more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "answer", "-w", "%{http_code}", "--data-binary", "@large"]);
        command.args(more).arg(&url);
        command
    };
    // With Expect: 100-continue, which curl sends by itself, and without.
    each_sees_it("curl", &gate, || curl(&[]));
    each_sees_it("curl without Expect", &gate, || curl(&["-H", "Expect:"]));
    each_sees_it("curl in chunks", &gate, || {
        curl(&["-H", "Expect:", "-H", "Transfer-Encoding: chunked"])
    });
    assert_eq!(origin.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_requests_sees_the_429_of_a_large_upload() {
    let origin = Origin::start("site").await;
    let gate = refusing(&origin, "1s").await;
    let url = gate.url("/up");
    assert_eq!(support::servers::client().get(&url).send().await.unwrap().status(), 200);
    let program = "import requests, sys\n\
                   print(requests.post(sys.argv[1], data=open('large', 'rb').read()).status_code)\n\
                   print(requests.post(sys.argv[1], data=open('large', 'rb')).status_code)";
    each_sees_it("requests", &gate, || {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", program, &url]);
        command
    });
    assert_eq!(origin.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetch_of_node_sees_the_429_of_a_large_upload() {
    let origin = Origin::start("site").await;
    let gate = refusing(&origin, "1s").await;
    let url = gate.url("/up");
    assert_eq!(support::servers::client().get(&url).send().await.unwrap().status(), 200);
    let program = "const body = require('fs').readFileSync('large');\
                   fetch(process.argv[1], { method: 'POST', body })\
                   .then(answer => console.log(answer.status), why => console.log(why))";
    each_sees_it("fetch", &gate, || {
        let mut command = Command::new("node");
        command.args(["-e", program, &url]);
        command
    });
    assert_eq!(origin.count(), 1);
}

/// Bytes that wait in the kernel's queues of a connection, told by its two ports: written and not
/// yet received, or received and not yet read.
fn queued(local: u16, remote: u16) -> (usize, usize) {
    let table = read(std::path::Path::new("/proc/net/tcp"));
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    for row in rows {
        if row.len() > 4 && port(row[1]) == Some(local) && port(row[2]) == Some(remote) {
            let (written, received) = row[4].split_once(':').unwrap();
            let size = |hex| usize::from_str_radix(hex, 16).unwrap();
            return (size(written), size(received));
        }
    }
    panic!("no connection from {local} to {remote}")
}

#[tokio::test]
async fn of_a_refused_upload_no_more_is_read_than_its_bound() {
    let origin = Origin::start("site").await;
    let gate = refusing(&origin, "5s").await;
    let url = gate.url("/up");
    assert_eq!(support::servers::client().get(&url).send().await.unwrap().status(), 200);
    for framing in ["Content-Length: 20000000", "Transfer-Encoding: chunked"] {
        let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
        let head = format!("POST /up HTTP/1.1\r\nHost: 127.0.0.1\r\n{framing}\r\n\r\n");
        let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
        let bytes = head.clone() + &chunk.repeat(1000);
        // As much as the kernel takes: what is not read stays in its queues.
        let mut sent = 0;
        while let Ok(more) =
            timeout(Duration::from_millis(200), stream.write(&bytes.as_bytes()[sent..])).await
        {
            sent += more.unwrap();
        }
        let client = stream.local_addr().unwrap().port();
        let (unsent, _) = queued(client, gate.port);
        let (_, unread) = queued(gate.port, client);
        let taken = sent - unsent - unread - head.len();
        assert!(sent > 1_000_000 && taken == 64 * 1024, "{framing}: {sent}, {taken} taken");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 429 "), "{}", String::from_utf8_lossy(&answer));
    }
}
