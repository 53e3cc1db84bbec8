//! Keys at a URL, in the library on a turned clock: a real server over TLS rotates them, stalls, lies and dies.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use support::key_server::{KeyServer, Publishes};
use support::signing::{SigningKey, set_of};
use support::wait::{eventually, observe_for};
use tollgate::clock::{ManualClock, Nanos};
use tollgate::{Action, KeySetMetrics, Limiter};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const CLAIMS: &str = r#"{"sub":"ann","aud":["api","web"]}"#;
const PATIENCE: Duration = Duration::from_secs(20);
/// The background work looks ten times a second.
const LOOKS: Duration = Duration::from_millis(350);

struct Node {
    limiter: Limiter,
    clock: Arc<ManualClock>,
    background: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// A policy with keys at this URL, and `more` in its key.
fn policy(url: &str, more: &str) -> String {
    format!(
        "version: 1
limits:
  user:
    tier: exact
    rate: 1000000/1h
    key: {{ jwt: {{ jwks_url: \"{url}\", jwks_ca_file: ca.pem, claim: sub, audience: api, {more} }} }}
    missing_key: {{ deny: 401 }}
routes: [{{ name: r, limits: [user] }}]
"
    )
}

impl Node {
    async fn start(url: &str, authority: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority).unwrap();
        let clock = Arc::new(ManualClock::new(Nanos::from_secs(1_800_057_600)));
        let builder = Limiter::builder().policy_text(policy(url, more)).folder(folder.path());
        let limiter = builder.clock(Arc::clone(&clock) as Arc<_>).connect().await.unwrap();
        let background = tokio::spawn(limiter.run_background());
        Self { limiter, clock, background, _folder: folder }
    }

    async fn of(server: &KeyServer) -> Self {
        Self::start(&server.url(), &server.certificate.pem, "").await
    }

    /// The status of the answer to a request with this token; 200 if it is forwarded.
    async fn status(&self, token: &str) -> u16 {
        let request = http::Request::get("/").header("host", "a");
        let request = request.header("authorization", format!("Bearer {token}")).body(()).unwrap();
        match self.limiter.judge(&request.into_parts().0, CLIENT).await.action() {
            Action::Forward { .. } => 200,
            Action::Refuse(refusal) => refusal.status.as_u16(),
        }
    }

    async fn becomes(&self, token: &str, status: u16) -> bool {
        eventually(PATIENCE, || async { self.status(token).await == status }).await
    }

    fn set(&self) -> KeySetMetrics {
        self.limiter.metrics().key_sets.remove(0)
    }

    /// Advances the clock, and waits until the last fetch ended as `expected` says.
    async fn fetched(&self, secs: u64, expected: impl Fn(&KeySetMetrics) -> bool) -> bool {
        self.clock.advance(Nanos::from_secs(secs));
        eventually(PATIENCE, || async { expected(&self.set()) }).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_there_at_the_start_and_rotate() {
    let (old, new) = (SigningKey::new("old"), SigningKey::new("new"));
    let by_age = "cache-control: public, max-age=120\r\n";
    let server = KeyServer::start(Publishes::Set(set_of(&[&old]), by_age)).await;
    let node = Node::of(&server).await;
    let (of_old, of_new) = (old.sign(CLAIMS), new.sign(CLAIMS));
    assert_eq!(node.status(&of_old).await, 200, "connect waits for the keys");
    assert_eq!(node.status(&of_new).await, 401);
    assert_eq!((server.asked(), node.set().keys), (1, 1));

    // Both are published: the unknown key is asked for, half a minute after the last time.
    server.publish(Publishes::Set(set_of(&[&old, &new]), by_age));
    node.clock.advance(Nanos::from_secs(29));
    observe_for(LOOKS).await;
    assert_eq!(server.asked(), 1);
    node.clock.advance(Nanos::from_secs(1));
    assert!(node.becomes(&of_new, 200).await, "{:?}", node.set());
    assert_eq!(node.status(&of_old).await, 200);
    assert_eq!((server.asked(), node.set().keys), (2, 2));

    // The old key is withdrawn: also a token that is remembered is not believed any more.
    server.publish(Publishes::Set(set_of(&[&new]), by_age));
    node.clock.advance(Nanos::from_secs(120));
    assert!(node.becomes(&of_old, 401).await, "{:?}", node.set());
    assert_eq!((node.status(&of_new).await, node.set().keys), (200, 1));
    // Under the name of the new key the old one is no better.
    assert_eq!(node.status(&old.sign_as("new", CLAIMS)).await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_forged_key_ids_causes_a_fetch_every_half_minute() {
    let key = SigningKey::new("a");
    let by_age = "cache-control: max-age=86400\r\n";
    let server = KeyServer::start(Publishes::Set(set_of(&[&key]), by_age)).await;
    let node = Node::of(&server).await;
    let forger = SigningKey::new("forger");
    for step in 0..18 {
        for n in 0..100 {
            let id = format!("../../{step}/{n}");
            assert_eq!(node.status(&forger.sign_as(&id, CLAIMS)).await, 401);
        }
        node.clock.advance(Nanos::from_secs(10));
        observe_for(LOOKS).await;
    }
    // Three minutes; the first fetch was at their beginning.
    assert_eq!(server.asked(), 1 + 6);
    // Those that are no question of keys ask for none.
    let (before, good) = (server.asked(), key.sign(CLAIMS));
    let unsigned = format!("{}.AAAA", good.rsplit_once('.').unwrap().0);
    for token in [&unsigned, "x", "a.b.c", &key.sign(r#"{"sub":"ann","aud":"other"}"#)] {
        node.clock.advance(Nanos::from_secs(60));
        assert_eq!(node.status(token).await, 401);
        observe_for(LOOKS).await;
    }
    assert_eq!(server.asked(), before);
    assert_eq!(node.status(&good).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_server_does_the_last_good_set_stays() {
    let key = SigningKey::new("a");
    let good = set_of(&[&key]);
    let server = KeyServer::start(Publishes::Set(good.clone(), "")).await;
    let node = Node::of(&server).await;
    let token = key.sign(CLAIMS);
    let set = |text: &str| Publishes::Set(text.to_owned(), "");
    let many = format!("{{\"keys\":[{}]}}", vec![key.jwk(); 65].join(","));
    let twice = set_of(&[&key, &SigningKey::new("a")]);
    let secret =
        good.replacen('[', r#"[{"kty":"oct","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"},"#, 1);
    let private = good.replacen(r#""kid""#, r#""d":"AAAA","kid""#, 1);
    let redirect = format!("location: {}\r\n", server.url());
    for (publishes, why) in [
        (set("no json"), "is no JWKS"),
        (set(""), "is no JWKS"),
        (set("[]"), "no list of keys"),
        (set("{\"keys\":{}}"), "no list of keys"),
        (set("{\"keys\":[]}"), "no key for RS256"),
        (
            set(r#"{"keys":[{"kty":"EC","crv":"P-521","alg":"ES512","x":"AA","y":"AA"}]}"#),
            "ES384 and EdDSA; ES512 is not supported",
        ),
        (set(r#"{"keys":[{"kty":"RSA","kid":"a"},{"kty":"new"},7,null]}"#), "no key for RS256"),
        (set(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))), "is no JWKS"),
        (set(&many), "more than 64 keys"),
        (set(&twice), "two keys with the same id"),
        (set(&secret), "publishes a secret"),
        (set(&private), "publishes a private key"),
        (Publishes::Set(good.clone(), "content-encoding: gzip\r\nx: \u{1}\r\n"), ""),
        (Publishes::Large(good.clone(), 10 << 20, true), "larger than 1048576 bytes"),
        (Publishes::Large(good.clone(), 10 << 20, false), "larger than 1048576 bytes"),
        (Publishes::Status(500, String::new()), "status 500"),
        (Publishes::Status(204, String::new()), "status 204"),
        (Publishes::Status(302, redirect.clone()), "status 302"),
        (Publishes::Status(308, redirect), "status 308"),
        (Publishes::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), ""),
        (Publishes::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{\"keys\""), ""),
        (Publishes::Bytes(b""), ""),
        (Publishes::Closed, "TLS"),
    ] {
        let before = server.asked();
        server.publish(publishes.clone());
        let failed = node.fetched(600, |set| set.failure.is_some()).await;
        let failure = node.set().failure.unwrap_or_default();
        assert!(failed && failure.contains(why), "{publishes:?}: {failure}");
        assert!(server.asked() > before);
        assert_eq!((node.status(&token).await, node.set().keys), (200, 1), "{publishes:?}");
        assert!(node.set().age >= Some(Duration::from_secs(600)), "{publishes:?}");
        server.publish(Publishes::Set(good.clone(), ""));
        assert!(node.fetched(60, |set| set.failure.is_none()).await, "{publishes:?}");
        assert!(node.set().age < Some(Duration::from_secs(60)));
    }
    server.stop();
    for _ in 0..3 {
        assert!(node.fetched(100_000, |set| set.failure.is_some()).await);
        assert_eq!(node.status(&token).await, 200);
    }
    assert!(node.set().age >= Some(Duration::from_secs(300_000)), "{:?}", node.set());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stalls_or_trickles_is_left_after_ten_seconds() {
    let key = SigningKey::new("a");
    let token = key.sign(CLAIMS);
    let stall = async |publishes: Publishes| {
        let server = KeyServer::start(Publishes::Set(set_of(&[&key]), "")).await;
        let node = Node::of(&server).await;
        server.publish(publishes);
        assert!(node.fetched(600, |set| set.failure.is_some()).await);
        let failure = node.set().failure.unwrap();
        assert!(failure.contains("within 10 s"), "{failure}");
        assert_eq!((server.asked(), node.status(&token).await), (2, 200));
    };
    tokio::join!(stall(Publishes::Nothing), stall(Publishes::Trickle));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_the_server_follows_on_keys_failure() {
    let key = SigningKey::new("a");
    let token = key.sign(CLAIMS);
    for (more, without_keys) in
        [("", 503), ("on_keys_failure: deny", 503), ("on_keys_failure: absent", 401)]
    {
        let server = KeyServer::start(Publishes::Closed).await;
        let node = Node::start(&server.url(), &server.certificate.pem, more).await;
        assert_eq!(node.set().keys, 0);
        assert_eq!(node.status(&token).await, without_keys, "{more}");
        assert_eq!(node.status("").await, 401, "no token needs no keys");
        server.publish(Publishes::Set(set_of(&[&key]), ""));
        node.clock.advance(Nanos::from_secs(60));
        assert!(node.becomes(&token, 200).await, "{more}: {:?}", node.set());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_believed_by_its_certificate_only() {
    let key = SigningKey::new("a");
    let server = KeyServer::start(Publishes::Set(set_of(&[&key]), "")).await;
    let stranger = support::certificates::pair("localhost");
    let by_address = format!("https://127.0.0.1:{}/keys", server.address.port());
    for (url, authority) in [(server.url(), &stranger), (by_address, &server.certificate)] {
        let node = Node::start(&url, &authority.pem, "").await;
        let failure = node.set().failure.unwrap();
        assert!(failure.starts_with("TLS: "), "{url}: {failure}");
        assert_eq!(node.status(&key.sign(CLAIMS)).await, 503);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_keeps_the_set_of_the_same_url() {
    let key = SigningKey::new("a");
    let server = KeyServer::start(Publishes::Set(set_of(&[&key]), "")).await;
    let node = Node::of(&server).await;
    let token = key.sign(CLAIMS);
    for more in
        ["leeway: 5s", "from: \"header:authorization2\", algorithms: EdDSA", "algorithms: [EdDSA]"]
    {
        node.limiter.reload_text(policy(&server.url(), more)).unwrap();
        let expected = if more.contains("header:") { 401 } else { 200 };
        assert_eq!(node.status(&token).await, expected, "{more}");
    }
    observe_for(LOOKS).await;
    assert_eq!(server.asked(), 1);
    // The query makes it another URL. The background work fetches it after the reload.
    node.limiter.reload_text(policy(&format!("{}?tenant=2", server.url()), "")).unwrap();
    assert_eq!(node.status(&token).await, 503);
    assert!(node.becomes(&token, 200).await);
    assert_eq!(server.asked(), 2);
}
