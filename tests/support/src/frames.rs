//! HTTP/2 as an attacker writes it: frames made by hand, over TLS that trusts whoever answers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use crate::servers::now;
use crate::wait::pause_of_a_slow_client;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// A frame (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Literal fields without indexing and without Huffman codes (RFC 7541, section 6.2.2).
pub fn fields(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend(*text);
        }
    }
    block
}

/// An integer with a prefix of 7 bits (section 5.1).
pub fn length(block: &mut Vec<u8>, mut value: usize) {
    if value < 127 {
        block.push(value as u8);
        return;
    }
    block.push(127);
    value -= 127;
    while value >= 128 {
        block.push((value % 128 + 128) as u8);
        value /= 128;
    }
    block.push(value as u8);
}

/// The fields of a request for `one.example`, and more.
pub fn request(method: &str, path: &str, more: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut all: Vec<(&[u8], &[u8])> = vec![
        (b":method", method.as_bytes()),
        (b":scheme", b"https"),
        (b":path", path.as_bytes()),
        (b":authority", b"one.example"),
    ];
    all.extend(more);
    fields(&all)
}

/// Trusts whoever answers: these tests attack, and have nothing to hide.
#[derive(Debug)]
pub struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A client's side of TLS: every handshake is a full one.
fn connector() -> tokio_rustls::TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config).into()
}

/// A connection from one of the addresses of loopback. `buffer` is the size of its receive buffer in bytes, where
/// it is not the system's.
pub async fn connect(source: IpAddr, to: SocketAddr, buffer: Option<u32>) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(SocketAddr::new(source, 0))?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A connection that agreed on HTTP/2 and has said nothing yet.
pub async fn agree(tcp: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    static CONNECTOR: OnceLock<tokio_rustls::TlsConnector> = OnceLock::new();
    let connector = CONNECTOR.get_or_init(connector);
    let name = ServerName::try_from("one.example").unwrap();
    connector.connect(name, tcp).await
}

/// As `agree`, from 127.0.0.1.
pub async fn silent(port: u16) -> TlsStream<TcpStream> {
    let here = IpAddr::from([127, 0, 0, 1]);
    agree(connect(here, SocketAddr::new(here, port), None).await.unwrap()).await.unwrap()
}

/// A client that takes so many bytes a second.
pub struct SlowReader {
    began: Instant,
    bytes_a_second: f64,
    bytes: usize,
}

impl SlowReader {
    pub fn new(bytes_a_second: u32) -> Self {
        Self { began: now(), bytes_a_second: bytes_a_second.into(), bytes: 0 }
    }

    /// It has taken so many more, and waits until it would have.
    pub async fn took(&mut self, bytes: usize) {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_a_second);
        pause_of_a_slow_client(due.saturating_sub(self.began.elapsed())).await;
    }
}

pub struct Attacker(pub TlsStream<TcpStream>);

impl Attacker {
    pub async fn new(port: u16) -> Self {
        Self::with_settings(port, &[]).await
    }

    pub async fn with_settings(port: u16, settings: &[u8]) -> Self {
        Self::begin(silent(port).await, settings).await.unwrap()
    }

    /// The preface, with these settings.
    pub async fn begin(mut stream: TlsStream<TcpStream>, settings: &[u8]) -> io::Result<Self> {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        stream.write_all(&frame(SETTINGS, 0, 0, settings)).await?;
        Ok(Self(stream))
    }

    /// Writes; false when the other side has closed.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        let writing = async {
            self.0.write_all(bytes).await?;
            self.0.flush().await
        };
        matches!(timeout(Duration::from_secs(5), writing).await, Ok(Ok(())))
    }

    /// Kind, flags, stream and payload of the next frame; `None` at the end.
    pub async fn read(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let reading = async {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).await?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            io::Result::Ok((head[3], head[4], stream, payload))
        };
        timeout(Duration::from_secs(10), reading).await.ok()?.ok()
    }

    /// The first answer to a stream: a status of the static table, 0 for another one; `None` for
    /// a reset or the end of the connection.
    pub async fn answer(&mut self, of: u32) -> Option<u16> {
        loop {
            let (kind, _, stream, payload) = self.read().await?;
            match kind {
                HEADERS if stream == of => {
                    let known = [200, 204, 206, 304, 400, 404, 500];
                    let index = payload[0].checked_sub(0x88).map(usize::from);
                    return Some(index.and_then(|index| known.get(index)).map_or(0, |s| *s));
                }
                RST_STREAM if stream == of => return None,
                GOAWAY => return None,
                _ => {}
            }
        }
    }

    /// Reads until the other side closes; how long that took.
    pub async fn closed(mut self) -> Duration {
        let began = now();
        while self.read().await.is_some() {}
        began.elapsed()
    }
}
