//! Clients that ask as fast as they are answered: many kept connections in one thread, each with keys of its own, so that
//! no two requests of a key are ever on their way together.
//!
//! A connection belongs to one process. Which one that is, is told by the number of processes that had ended when the
//! connection was made.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use support::wait::pause_in_thread;

/// Longer than a start and a wait for the disk together.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two attempts to connect to a process that is not there.
const ABSENT: Duration = Duration::from_millis(2);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With this status, and so many units left.
    Told { status: u16, remaining: u32 },
    /// The connection ended first: nobody knows what became of the request.
    Cut,
}

/// A request of a connection, and its answer.
pub struct Asked {
    pub client: usize,
    /// How many processes had ended before the one that was asked.
    pub lives: usize,
    pub answer: Answer,
}

/// Connections that ask in step: each sends a request, then each reads its answer.
pub struct Clients {
    address: SocketAddr,
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    lives: usize,
}

impl Clients {
    pub fn new(address: SocketAddr, connections: usize) -> Self {
        let connections = std::iter::repeat_with(|| None).take(connections).collect();
        Self { address, connections, buffer: Vec::new() }
    }

    /// Asks once over every connection that can be made. `lives`: how many processes have ended; `request` writes the request
    /// of a connection to the process after so many.
    pub fn ask(
        &mut self,
        lives: impl Fn() -> usize,
        mut request: impl FnMut(usize, usize, &mut Vec<u8>),
    ) -> Vec<Asked> {
        let mut sent = Vec::with_capacity(self.connections.len());
        for client in 0..self.connections.len() {
            if !self.connect(client, &lives) {
                break;
            }
            if let Some(Connection { stream, lives }) = &mut self.connections[client] {
                self.buffer.clear();
                request(client, *lives, &mut self.buffer);
                // A request that could not be sent as a whole is one whose answer will not come.
                let _ = stream.write_all(&self.buffer);
                sent.push(Asked { client, lives: *lives, answer: Answer::Cut });
            }
        }
        if sent.is_empty() {
            pause_in_thread(ABSENT);
        }
        for Asked { client, answer, .. } in &mut sent {
            *answer = self.read(*client);
            if *answer == Answer::Cut {
                self.connections[*client] = None;
            }
        }
        sent
    }

    fn connect(&mut self, client: usize, lives: impl Fn() -> usize) -> bool {
        if self.connections[client].is_none() {
            let Ok(stream) = TcpStream::connect(self.address) else {
                return false;
            };
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            self.connections[client] = Some(Connection { stream, lives: lives() });
        }
        true
    }

    fn read(&mut self, client: usize) -> Answer {
        let Some(Connection { stream, .. }) = &mut self.connections[client] else {
            return Answer::Cut;
        };
        self.buffer.clear();
        let mut piece = [0; 4_096];
        loop {
            if let Some((answer, is_last)) = whole_answer(&self.buffer) {
                if is_last {
                    self.connections[client] = None;
                }
                return answer;
            }
            match stream.read(&mut piece) {
                Ok(read @ 1..) => self.buffer.extend(&piece[..read]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    panic!("no answer within {PATIENCE:?}")
                }
                _ => return Answer::Cut,
            }
        }
    }
}

/// An answer that has arrived with its body, and whether the connection ends with it.
fn whole_answer(bytes: &[u8]) -> Option<(Answer, bool)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let status = head.split(' ').nth(1)?.parse().unwrap();
    let field = |wanted: &str| {
        let fields = head.lines().filter_map(|line| line.split_once(": "));
        let mut values = fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        values.next().map(|(_, value)| value)
    };
    let number = |wanted: &str| field(wanted).and_then(|value| value.parse::<usize>().ok());
    if bytes.len() < end + number("content-length").unwrap_or(0) {
        return None;
    }
    let remaining = number("x-ratelimit-remaining").map_or(u32::MAX, |left| left as u32);
    let is_last = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Some((Answer::Told { status, remaining }, is_last))
}
