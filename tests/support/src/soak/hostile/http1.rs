//! Hostile over HTTP/1.

use std::io;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Aim;
use crate::frames::connect;
use crate::wait::pause_of_a_slow_client;

const SECOND: Duration = Duration::from_secs(1);

/// What a slow reader's kernel takes before it is read, in bytes.
const SMALL_BUFFER: u32 = 4096;

/// A path that origins read in many ways, 30 KB long in all.
const TWIST: &str = "/a/../%252F%2F\\;x//./b";
const PATH_BYTES: usize = 30_000;

/// What one chunk brings beside its byte: about as much as is allowed (256 bytes).
const EXTENSION_BYTES: usize = 250;

/// Of a body that is refused, and sent all the same.
const REFUSED_BYTES: usize = 16 * 1024;

async fn plain(aim: Aim) -> io::Result<TcpStream> {
    connect(aim.source, aim.plain, None).await
}

/// Reads until the other side closes.
pub async fn until_closed(stream: &mut TcpStream) -> io::Result<()> {
    tokio::io::copy(stream, &mut tokio::io::sink()).await.map(drop)
}

/// Says nothing.
pub async fn idle(aim: Aim) -> io::Result<()> {
    until_closed(&mut plain(aim).await?).await
}

/// A head, one byte a second.
pub async fn half_head(aim: Aim) -> io::Result<()> {
    let head = format!("GET / HTTP/1.1\r\nHost: one.example\r\nX: {}\r\n\r\n", "y".repeat(100));
    drip(&mut plain(aim).await?, head.into_bytes().chunks(1), SECOND).await
}

/// Writes a piece, then waits; until there is none or the other side closes.
async fn drip<'a>(
    stream: &mut TcpStream,
    pieces: impl Iterator<Item = &'a [u8]>,
    every: Duration,
) -> io::Result<()> {
    let mut answer = [0; 1024];
    for piece in pieces {
        stream.write_all(piece).await?;
        if let Ok(0) = timeout(every, stream.read(&mut answer)).await.unwrap_or(Ok(1)) {
            return Ok(());
        }
    }
    until_closed(stream).await
}

/// A body that is announced to an origin that answers at once, and does not come.
pub async fn unfinished_body(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let head = b"POST /early HTTP/1.1\r\nHost: one.example\r\nContent-Length: 100000\r\n\r\n";
    stream.write_all(head).await?;
    until_closed(&mut stream).await
}

/// A body of so many bytes a second, for a minute.
pub async fn slow_body(aim: Aim, bytes: usize) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let length = bytes * 60;
    let head =
        format!("POST /page HTTP/1.1\r\nHost: one.example\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    drip(&mut stream, vec![b'x'; length].chunks(bytes), SECOND).await
}

/// Asks for 4 MiB and takes a little of it each second.
pub async fn slow_reader(aim: Aim) -> io::Result<()> {
    let mut stream = connect(aim.source, aim.plain, Some(SMALL_BUFFER)).await?;
    stream.write_all(b"GET /big HTTP/1.1\r\nHost: one.example\r\n\r\n").await?;
    let mut some = [0; 300];
    while stream.read(&mut some).await? > 0 {
        pause_of_a_slow_client(SECOND).await;
    }
    Ok(())
}

/// Asks, takes the answer and waits, again and again; `ask` makes the request of a number.
async fn again_and_again(aim: Aim, pause: Duration, ask: impl Fn(u64) -> String) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let (mut answer, mut number) = (vec![0; 16 * 1024], 0);
    loop {
        stream.write_all(ask(number).as_bytes()).await?;
        if stream.read(&mut answer).await? == 0 {
            return Ok(());
        }
        number += 1;
        pause_of_a_slow_client(pause).await;
    }
}

/// Paths that origins read in many ways.
pub async fn readings(aim: Aim, pause: Duration) -> io::Result<()> {
    let path = TWIST.repeat(PATH_BYTES / TWIST.len());
    again_and_again(aim, pause, |_| format!("GET {path} HTTP/1.1\r\nHost: one.example\r\n\r\n"))
        .await
}

/// Tokens that nobody signed, each another one, and none that names its key.
pub async fn forged_tokens(aim: Aim, pause: Duration) -> io::Result<()> {
    let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","typ":"JWT"}"#);
    let signature = URL_SAFE_NO_PAD.encode([7; 64]);
    again_and_again(aim, pause, |n| {
        let claims = format!(r#"{{"sub":"{}-{n}","exp":4000000000}}"#, aim.number);
        let claims = URL_SAFE_NO_PAD.encode(claims);
        format!(
            "GET /api/x HTTP/1.1\r\nHost: one.example\r\nAuthorization: Bearer \
             {head}.{claims}.{signature}\r\n\r\n"
        )
    })
    .await
}

/// Fifty requests at once, whose answers nobody reads.
pub async fn pipelined(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let asks = "GET /page HTTP/1.1\r\nHost: one.example\r\n\r\n".repeat(50);
    stream.write_all(asks.as_bytes()).await?;
    pause_of_a_slow_client(SECOND * 5).await;
    Ok(())
}

const CHUNKED: &[u8] =
    b"POST /page HTTP/1.1\r\nHost: one.example\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Chunks of one byte with hundreds of bytes of extension.
pub async fn chunk_extensions(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    stream.write_all(CHUNKED).await?;
    let chunk = format!("1;x={}\r\ny\r\n", "z".repeat(EXTENSION_BYTES));
    drip(&mut stream, std::iter::repeat_n(chunk.as_bytes(), 60), SECOND).await
}

/// A body that ends, and trailers that do not.
pub async fn trailers(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    stream.write_all(CHUNKED).await?;
    stream.write_all(b"1\r\nx\r\n0\r\n").await?;
    let trailer = format!("x-more: {}\r\n", "y".repeat(500));
    drip(&mut stream, std::iter::repeat_n(trailer.as_bytes(), 60), SECOND).await
}

/// Asks whether it may send a body, and does not.
pub async fn expects(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let head = b"POST /page HTTP/1.1\r\nHost: one.example\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head).await?;
    until_closed(&mut stream).await
}

/// A WebSocket on which nobody says anything.
pub async fn upgrade(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let head = b"GET /early HTTP/1.1\r\nHost: one.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n";
    stream.write_all(head).await?;
    until_closed(&mut stream).await
}

/// A large body of a request that is refused, sent in pieces whatever is answered.
pub async fn refused_body(aim: Aim) -> io::Result<()> {
    let mut stream = plain(aim).await?;
    let head = b"POST /refused HTTP/1.1\r\nHost: one.example\r\nContent-Length: 100000000\r\n\r\n";
    stream.write_all(head).await?;
    loop {
        stream.write_all(&[b'x'; REFUSED_BYTES]).await?;
        pause_of_a_slow_client(Duration::from_millis(200)).await;
    }
}
