//! A server that speaks the protocol and does what a test says: the script on a clock that is
//! turned by hand, or lies.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tollgate::clock::{Clock, ManualClock};

use crate::lua::Server;

/// What a command is answered, as bytes of the protocol; `None`: the connection is closed.
pub type Answer = dyn Fn(&[String]) -> Option<Vec<u8>> + Send + Sync;

/// Answers until the process ends; says on which port.
pub fn start(answer: Arc<Answer>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || serve(&stream.unwrap(), &*answer));
        }
    });
    port
}

fn serve(stream: &TcpStream, answer: &Answer) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(command) = read_command(&mut reader) {
        let Some(bytes) = answer(&command) else {
            return;
        };
        if writer.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// An array of bulk strings, as clients send commands.
fn read_command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut number = |first: u8| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end().as_bytes();
        assert!(line.is_empty() || line[0] == first, "{line:?}");
        let size = std::str::from_utf8(line.get(1..)?).ok()?.parse::<usize>().ok()?;
        if first == b'*' {
            return Some((size, String::new()));
        }
        let mut text = vec![0; size + 2];
        reader.read_exact(&mut text).ok()?;
        text.truncate(size);
        Some((size, String::from_utf8_lossy(&text).into_owned()))
    };
    let (words, _) = number(b'*')?;
    (0..words).map(|_| Some(number(b'$')?.1)).collect()
}

/// What a well-behaved server says to everything that is no charge.
pub fn plain(command: &[String]) -> Vec<u8> {
    match command[0].as_str() {
        "SCRIPT" => b"$3\r\nsha\r\n".to_vec(),
        "INFO" => b"$16\r\nused_memory:100\n\r\n".to_vec(),
        "CONFIG" => b"*0\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// Runs the script whenever it is called, at the time of a clock.
pub fn script(server: Arc<Mutex<Server>>, clock: Arc<Mutex<Arc<ManualClock>>>) -> Arc<Answer> {
    Arc::new(move |command| {
        if command[0] != "EVALSHA" {
            return Some(plain(command));
        }
        let server = server.lock().unwrap();
        server.set_time(clock.lock().unwrap().now().wall.get() / 1_000);
        let keys: usize = command[2].parse().unwrap();
        let (keys, rest) = command[3..].split_at(keys);
        Some(match server.run_words(keys, rest) {
            Ok(reply) => {
                let items = reply.iter().map(|number| format!(":{number}\r\n"));
                format!("*{}\r\n{}", reply.len(), items.collect::<String>()).into_bytes()
            }
            Err(error) => {
                format!("-ERR {}\r\n", error.to_string().replace(['\r', '\n'], " ")).into()
            }
        })
    })
}
