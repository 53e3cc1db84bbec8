//! `tollgate demo`: starts a small origin and the proxy in front of it, and prints commands to try.
//! The origin answers every request with one line of text.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::output::{self, Ending};
use super::run;
use crate::ops::LogSettings;
use crate::server::RunOptions;

/// The policy of the demonstration. `ORIGIN`, `LISTEN` and `ADMIN` are replaced by addresses.
const POLICY: &str = include_str!("demo.yaml");

/// Ports that are tried first, so that the printed commands are those of the documentation.
const ORIGIN_PORT: u16 = 9000;
const LISTEN_PORT: u16 = 8080;
const ADMIN_PORT: u16 = 9900;

/// Serves the demonstration until it is interrupted.
pub(super) fn demo() -> Ending {
    match prepare() {
        Ok((file, commands)) => match output::answer(&commands, Ending::Success) {
            Ending::Success => {
                let options = RunOptions { upgrade: false, ignore_state: false };
                run::run(&file, options, false, LogSettings::default())
            }
            ending => ending,
        },
        Err(error) => {
            output::complain(&format!("tollgate demo: {error}"));
            Ending::Negative
        }
    }
}

/// The file of the policy, and the commands to try.
fn prepare() -> std::io::Result<(PathBuf, String)> {
    let origin = bind(ORIGIN_PORT)?;
    let origin_address = origin.local_addr()?;
    std::thread::Builder::new().name("origin".to_owned()).spawn(move || serve(&origin))?;
    let (listen, admin) = (free_address(LISTEN_PORT)?, free_address(ADMIN_PORT)?);
    let policy = POLICY
        .replace("ORIGIN", &origin_address.to_string())
        .replace("LISTEN", &listen.to_string())
        .replace("ADMIN", &admin.to_string());
    let folder = std::env::temp_dir().join(format!("tollgate-demo-{}", std::process::id()));
    // Fails if the folder exists, so that a folder of another user is never written to.
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let file = folder.join("tollgate.yaml");
    std::fs::write(&file, policy)?;
    let commands = commands(listen, admin, &file);
    Ok((file, commands))
}

fn commands(listen: SocketAddr, admin: SocketAddr, file: &Path) -> String {
    let (file, pid) = (file.display(), std::process::id());
    format!(
        "\
tollgate demo: a small origin, and tollgate in front of it at http://{listen}
The policy is {file}

An allowed request, with the headers that say what is left of the limit (3 a minute per key):
  curl -i -X POST -H 'x-api-key: demo' http://{listen}/api/webhook
The same again until it is refused (429 with Retry-After and a problem document):
  for i in 1 2 3 4; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X POST -H 'x-api-key: demo' http://{listen}/api/webhook; done
Pageviews, counted cheaply (100 a minute per address), and a page without limits:
  curl -i http://{listen}/api/track
  curl -i http://{listen}/
A reload: what was spent stays spent, and raising the limit helps at once.
  sed -i 's|rate: 3/1m|rate: 6/1m|' {file} && kill -HUP {pid}
  curl -i -X POST -H 'x-api-key: demo' http://{listen}/api/webhook
What operators see:
  curl -s http://{admin}/metrics | grep tollgate_decisions_total
  curl -s http://{admin}/status
Ctrl-C ends it.

"
    )
}

/// Binds this port on loopback, or any free one.
fn bind(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)))
}

fn free_address(port: u16) -> std::io::Result<SocketAddr> {
    bind(port)?.local_addr()
}

/// An origin that answers everything with a line of text.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        // One thread for each connection is enough for a demonstration.
        let thread = std::thread::Builder::new().spawn(move || answer_requests(stream));
        if let Err(error) = thread {
            log::warn!("the demonstration's origin is out of threads: {error}");
        }
    }
}

fn answer_requests(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(read) = stream.read(&mut chunk) {
        if read == 0 {
            return;
        }
        head.extend_from_slice(&chunk[..read]);
        // The proxy sends complete heads. A body is not read: the connection is closed instead.
        let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let has_no_body = head.len() == end + 4;
        let text = format!("the origin saw: {line}\n");
        let close = if has_no_body { "" } else { "Connection: close\r\n" };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{close}\r\n{text}",
            text.len()
        );
        if stream.write_all(answer.as_bytes()).is_err() || !has_no_body {
            return;
        }
        head.clear();
    }
}
