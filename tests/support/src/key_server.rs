//! A server that publishes keys over TLS, and everything that such a server can do wrong.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificates::{Pair, pair};
use crate::wait::pause_of_a_slow_origin;

/// What it answers from now on.
#[derive(Clone, Debug)]
pub enum Publishes {
    /// A set, with these lines in the head.
    Set(String, &'static str),
    /// Another status, with these lines in the head.
    Status(u16, String),
    /// The set, after so many blanks; the head says how many, or not.
    Large(String, usize, bool),
    /// These bytes instead of an answer.
    Bytes(&'static [u8]),
    /// Nothing, with the connection open.
    Nothing,
    /// A byte of a set now and then.
    Trickle,
    /// The end of the connection before TLS.
    Closed,
}

/// A server that publishes keys.
pub struct KeyServer {
    pub address: SocketAddr,
    /// Its certificate, which clients trust as their only authority.
    pub certificate: Pair,
    publishes: tokio::sync::watch::Sender<Publishes>,
    asked: Arc<AtomicUsize>,
    served: tokio::task::JoinHandle<()>,
}

impl KeyServer {
    /// Serves `https://localhost`.
    pub async fn start(publishes: Publishes) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), pair("localhost"), publishes).await
    }

    /// Serves there, with this certificate.
    pub async fn start_at(at: SocketAddr, certificate: Pair, publishes: Publishes) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&certificate)));
        let (sender, receiver) = tokio::sync::watch::channel(publishes);
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let served = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, acceptor.clone(), receiver.borrow().clone()));
            }
        });
        Self { address, certificate, publishes: sender, asked, served }
    }

    /// The URL of the keys.
    pub fn url(&self) -> String {
        format!("https://localhost:{}/keys", self.address.port())
    }

    /// Changes what it answers.
    pub fn publish(&self, publishes: Publishes) {
        self.publishes.send_replace(publishes);
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Stops listening.
    pub fn stop(&self) {
        self.served.abort();
    }
}

fn server_config(pair: &Pair) -> ServerConfig {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let chain = vec![CertificateDer::from_pem_slice(pair.pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    builder.with_no_client_auth().with_single_cert(chain, key).unwrap()
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, publishes: Publishes) {
    if matches!(publishes, Publishes::Closed) {
        return;
    }
    let Ok(mut stream) = acceptor.accept(stream).await else {
        return;
    };
    let mut head = [0; 4_096];
    let _ = stream.read(&mut head).await;
    // A client that has enough closes the connection, and the rest cannot be written.
    let _ = answer(&mut stream, publishes).await;
    let _ = stream.shutdown().await;
}

async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    publishes: Publishes,
) -> std::io::Result<()> {
    match publishes {
        Publishes::Set(set, lines) => {
            let length = set.len();
            let head = format!("HTTP/1.1 200 OK\r\n{lines}content-length: {length}\r\n\r\n{set}");
            stream.write_all(head.as_bytes()).await
        }
        Publishes::Status(status, lines) => {
            let head = format!("HTTP/1.1 {status} x\r\n{lines}content-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await
        }
        Publishes::Large(set, blanks, is_declared) => {
            let length = format!("content-length: {}\r\n", set.len() + blanks);
            let length = if is_declared { &length } else { "" };
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{length}\r\n").as_bytes()).await?;
            for _ in 0..blanks / 1_024 {
                stream.write_all(&[b' '; 1_024]).await?;
            }
            stream.write_all(set.as_bytes()).await
        }
        Publishes::Bytes(bytes) => stream.write_all(bytes).await,
        Publishes::Nothing => std::future::pending().await,
        Publishes::Trickle => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"keys\":[").await?;
            loop {
                stream.write_all(b" ").await?;
                stream.flush().await?;
                pause_of_a_slow_origin(std::time::Duration::from_millis(200)).await;
            }
        }
        Publishes::Closed => Ok(()),
    }
}
