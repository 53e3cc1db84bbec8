//! TLS to origins that ask for a certificate.

use std::sync::Arc;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring::default_provider};

use support::certificates::{Authority, Pair, dns};
use support::servers::{Gate, Reloaded, client, eventually, metric};

/// An origin that asks for a certificate of an authority. It answers with the number of the connection, and remembers the
/// certificate of each.
struct Asking {
    port: u16,
    shown: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Asking {
    async fn start(own: &Pair, clients: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        let authority = Pair { pem: clients.pem.clone(), key: own.key.clone() };
        roots.add(authority.to_der().0[0].clone()).unwrap();
        let provider = Arc::new(default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let (chain, key) = own.to_der();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shown = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let seen = Arc::clone(&shown);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(tcp).await else { return };
                    let chain = stream.get_ref().1.peer_certificates().unwrap().to_vec();
                    let number = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(chain[0].to_vec());
                        seen.len().to_string()
                    };
                    let mut head = Vec::new();
                    while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                        if head.ends_with(b"\r\n\r\n") {
                            head.clear();
                            let answer = format!(
                                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{number}",
                                number.len()
                            );
                            let _ = stream.write_all(answer.as_bytes()).await;
                        }
                    }
                });
            }
        });
        Self { port, shown }
    }

    fn shown(&self) -> Vec<Vec<u8>> {
        self.shown.lock().unwrap().clone()
    }
}

async fn get(gate: &Gate) -> (u16, String) {
    let answer = client().get(gate.url("/")).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

fn policy(port: u16, more: &str) -> String {
    format!(
        "origins:
  site:
    servers: [\"127.0.0.1:{port}\"]
    tls: {{ sni: site.internal, ca_file: ca.pem{more} }}
routes: [{{ name: site }}]
"
    )
}

const SHOWN: &str = ", certificate: edge.crt, private_key: edge.key";

#[tokio::test]
async fn a_certificate_is_shown_and_replaced_by_a_reload() {
    let ours = Authority::new("ours");
    let origin = Asking::start(&ours.sign(vec![dns("site.internal")]), &ours).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), &ours.pem).unwrap();
    let first = ours.sign(vec![dns("edge.internal")]);
    first.write(folder.path(), "edge");
    let gate = Gate::start_in(folder, &policy(origin.port, SHOWN), "").await;
    assert_eq!(get(&gate).await, (200, "1".to_owned()), "{}", gate.log());
    assert_eq!(get(&gate).await.1, "1", "the connection is kept");
    assert_eq!(origin.shown(), [first.to_der().0[0].to_vec()]);
    // Nothing has changed: the connection is kept.
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(get(&gate).await.1, "1");
    // Another certificate under the same name: the connection of the first is not used again.
    let second = ours.sign(vec![dns("edge.internal")]);
    second.write(gate.folder.path(), "edge");
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(get(&gate).await, (200, "2".to_owned()), "{}", gate.log());
    assert_eq!(origin.shown()[1], second.to_der().0[0].to_vec());
    // Without a certificate the origin lets nobody in.
    assert_eq!(gate.reload(&policy(origin.port, ""), "").await, Reloaded::Applied);
    assert_eq!(get(&gate).await.0, 502);
    assert_eq!(origin.shown().len(), 2);
    assert_eq!(gate.reload(&policy(origin.port, SHOWN), "").await, Reloaded::Applied);
    assert_eq!(get(&gate).await.0, 200);
}

#[tokio::test]
async fn a_kept_connection_is_not_used_under_another_authority() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let origin = Asking::start(&ours.sign(vec![dns("site.internal")]), &ours).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), &ours.pem).unwrap();
    ours.sign(vec![dns("edge.internal")]).write(folder.path(), "edge");
    let gate = Gate::start_in(folder, &policy(origin.port, SHOWN), "").await;
    assert_eq!(get(&gate).await.0, 200, "{}", gate.log());
    std::fs::write(gate.folder.path().join("ca.pem"), &other.pem).unwrap();
    assert_eq!(gate.hup().await, Reloaded::Applied);
    assert_eq!(get(&gate).await.0, 502, "this server is not to be trusted any more");
    let told = eventually(std::time::Duration::from_secs(5), || async {
        gate.log().contains("does not agree on TLS")
    });
    assert!(told.await, "{}", gate.log());
}

#[tokio::test]
async fn health_checks_show_the_certificate_too() {
    let ours = Authority::new("ours");
    let origin = Asking::start(&ours.sign(vec![dns("site.internal")]), &ours).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), &ours.pem).unwrap();
    ours.sign(vec![dns("edge.internal")]).write(folder.path(), "edge");
    let check = "\n    health_check: { path: /healthz, every: 100ms }";
    let with = policy(origin.port, SHOWN).replace(" }\nroutes", &format!(" }}{check}\nroutes"));
    let gate = Gate::start_in(folder, &with, "").await;
    let up = format!(
        "tollgate_origin_server_up{{origin=\"site\",server=\"127.0.0.1:{}\"}}",
        origin.port
    );
    assert!(
        eventually(std::time::Duration::from_secs(5), || async { origin.shown().len() >= 3 }).await
    );
    assert_eq!(metric(&gate.metrics().await, &up), 1.0);
    assert_eq!(gate.reload(&with.replace(SHOWN, ""), "").await, Reloaded::Applied);
    let down = eventually(std::time::Duration::from_secs(5), || async {
        metric(&gate.metrics().await, &up) == 0.0
    });
    assert!(down.await, "{}", gate.log());
    assert_eq!(get(&gate).await.0, 503);
}
