//! The origins: one that does as it is asked, and one that answers a head and reads no body.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::wait::pause_of_a_slow_origin;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// What everything but `/big` is answered.
pub const SMALL: &str = "ok";

/// The size of `/big`, in bytes.
const BIG: usize = 4 << 20;

/// The kernel would keep megabytes of `/big` for each slow reader.
const SEND_BUFFER: u32 = 64 * 1024;

const BACKLOG: u32 = 4096;

const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// Where the two are.
#[derive(Clone, Copy)]
pub struct Origins {
    /// Reads bodies, answers `/big` with 4 MiB and the rest with two bytes.
    pub site: SocketAddr,
    /// Answers a head with 404, or 101 where it asks for an upgrade, and keeps the connection.
    pub early: SocketAddr,
}

/// Starts both; they end with the runtime.
pub async fn start() -> Origins {
    let (site, early) = (listen(), listen());
    let addresses =
        Origins { site: site.local_addr().unwrap(), early: early.local_addr().unwrap() };
    tokio::spawn(accept(site, |stream| drop(tokio::spawn(serve(stream)))));
    tokio::spawn(accept(early, |stream| drop(tokio::spawn(answer_early(stream)))));
    addresses
}

fn listen() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(SEND_BUFFER).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    socket.listen(BACKLOG).unwrap()
}

async fn accept(listener: TcpListener, serve: impl Fn(TcpStream)) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => serve(stream),
            // No descriptor is left: some are soon.
            Err(_) => pause_of_a_slow_origin(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(stream: TcpStream) {
    let service = service_fn(answer);
    let server = hyper::server::conn::http1::Builder::new();
    // A client that leaves is no failure of the origin.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    static BODY: OnceLock<Bytes> = OnceLock::new();
    let big = request.uri().path() == "/big";
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        drop(frame?);
    }
    let answer = match big {
        true => BODY.get_or_init(|| vec![b'x'; BIG].into()).clone(),
        false => Bytes::from_static(SMALL.as_bytes()),
    };
    Ok(Response::new(Full::new(answer)))
}

async fn answer_early(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut bytes).await, Ok(1..)) {
            return;
        }
    }
    let upgrade = bytes.to_ascii_lowercase().windows(9).any(|nine| nine == b"\nupgrade:");
    if stream.write_all(if upgrade { SWITCH } else { NOT_FOUND }).await.is_ok() {
        // Until the proxy closes.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}
