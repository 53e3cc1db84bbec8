//! An origin that writes down when which key came: what was admitted is what it saw.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use support::servers::now;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A request that reached the origin.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    pub at: Instant,
    /// How many processes had ended before the one that forwarded it.
    pub lives: usize,
}

/// The requests that reached the origin, by key.
#[derive(Clone)]
pub struct Admissions(Arc<Vec<Mutex<Vec<Admission>>>>);

impl Admissions {
    pub fn of(&self, key: usize) -> Vec<Admission> {
        self.0[key].lock().unwrap().clone()
    }

    pub fn count(&self, key: usize) -> usize {
        self.0[key].lock().unwrap().len()
    }

    pub fn total(&self) -> usize {
        self.0.iter().map(|times| times.lock().unwrap().len()).sum()
    }
}

/// Serves `/LIMIT/KEY/LIVES`, a thread for each connection, until the test ends.
pub fn start(keys: usize) -> (SocketAddr, Admissions) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let admissions = Admissions(Arc::new((0..keys).map(|_| Mutex::default()).collect()));
    let own = admissions.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let admissions = own.clone();
            std::thread::spawn(move || serve(stream, &admissions));
        }
    });
    (address, admissions)
}

fn serve(mut stream: TcpStream, admissions: &Admissions) {
    let _ = stream.set_nodelay(true);
    let (mut head, mut piece) = (Vec::new(), [0; 4_096]);
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(read @ 1..) => head.extend(&piece[..read]),
                _ => return,
            }
        }
        let (key, lives) = asked_for(&head);
        admissions.0[key].lock().unwrap().push(Admission { at: now(), lives });
        head.clear();
        if stream.write_all(ANSWER).is_err() {
            return;
        }
    }
}

/// The last segments of the path.
fn asked_for(head: &[u8]) -> (usize, usize) {
    let line = std::str::from_utf8(head).unwrap().lines().next().unwrap();
    let path = line.split(' ').nth(1).unwrap();
    let mut segments = path.rsplit('/').map(|segment| segment.parse().unwrap_or_default());
    let (lives, key) = (segments.next().unwrap(), segments.next().unwrap());
    (key, lives)
}
