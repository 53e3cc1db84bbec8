//! An origin that answers as the request asks: with a status, costs, and after a while.

use std::net::SocketAddr;
use std::time::Duration;

use support::wait::pause_of_a_slow_origin;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Serves until the runtime ends.
pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            tokio::spawn(answer_all(stream));
        }
    });
    address
}

async fn answer_all(mut stream: TcpStream) {
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_buf(&mut head).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let field = |name: &str| {
            let value = text.split(&format!("\r\n{name}: ")).nth(1)?;
            value.split("\r\n").next().map(str::to_owned)
        };
        let number = |name: &str| field(name).and_then(|value| value.parse::<u64>().ok());
        if let Some(pause) = number("x-pause") {
            pause_of_a_slow_origin(Duration::from_millis(pause)).await;
        }
        let status = number("x-status").unwrap_or(200);
        let used = field("x-use").map(|used| format!("X-Used: {used}\r\n")).unwrap_or_default();
        let body = match number("x-tokens") {
            Some(tokens) => format!("{{\"usage\":{{\"total\":{tokens}}}}}"),
            None => "{}".to_owned(),
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\n{used}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        head.clear();
    }
}
