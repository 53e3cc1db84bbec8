//! An origin that does what the request tells it to, and clients that leave at every point.

use crate::wait::pause_in_thread;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What the origin may do: a status, an answer that stops in its middle, none, none ever, another
/// protocol.
pub const MOODS: [&str; 7] = ["200", "401", "503", "half", "close", "hang", "upgrade"];

/// Where a client leaves.
pub const LEAVES: [&str; 6] = ["never", "in-head", "at-once", "soon", "in-answer", "half-closed"];

/// How many requests the origin has at once, and the most it had.
#[derive(Default)]
pub struct Held {
    now: AtomicUsize,
    pub most: AtomicUsize,
}

impl Held {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Starts it; it ends with the test's process.
pub fn start() -> (SocketAddr, Arc<Held>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let held = Arc::<Held>::default();
    let book = Arc::clone(&held);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let book = Arc::clone(&book);
            std::thread::spawn(move || serve(stream, &book));
        }
    });
    (address, held)
}

fn serve(mut stream: TcpStream, held: &Held) {
    // One that hangs does so until the proxy has had enough.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
    while let Some(head) = read_head(&mut stream) {
        held.enter();
        let word = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let pause: u64 = word("x-pause:").and_then(|text| text.parse().ok()).unwrap_or(0);
        pause_in_thread(Duration::from_millis(pause));
        let mood = word("x-mood:").unwrap_or_else(|| "200".to_owned());
        let goes_on = match mood.as_str() {
            "close" => false,
            "hang" => {
                let _ = stream.read(&mut [0; 1]);
                false
            }
            "half" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
                false
            }
            "upgrade" => {
                let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello";
                // One that answers at once may lose the tunnel to the framework (ARCHITECTURE.md).
                pause_in_thread(std::time::Duration::from_millis(5));
                let _ = stream.write_all(head);
                let _ = stream.read(&mut [0; 16]);
                false
            }
            status => {
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\nok");
                stream.write_all(head.as_bytes()).is_ok()
            }
        };
        held.leave();
        if !goes_on {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).to_ascii_lowercase())
}

/// One request to a proxy, and how its client leaves.
pub fn ask(port: u16, mood: &str, leave: &str, pause: u64) {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
        return;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let upgrade = if mood == "upgrade" { "Connection: upgrade\r\nUpgrade: echo\r\n" } else { "" };
    let head = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nx-api-key: k\r\nx-mood: {mood}\r\nx-pause: {pause}\r\n{upgrade}\r\n"
    );
    let bytes = if leave == "in-head" { &head.as_bytes()[..30] } else { head.as_bytes() };
    let _ = stream.write_all(bytes);
    match leave {
        "in-head" | "at-once" => {}
        "soon" => pause_in_thread(Duration::from_millis(pause / 2)),
        "half-closed" => {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 512]);
        }
        "in-answer" => {
            let _ = stream.read(&mut [0; 20]);
        }
        _ => {
            let mut answer = [0; 512];
            // An upgraded connection is left when it has said something.
            let _ = stream.read(&mut answer);
        }
    }
}
