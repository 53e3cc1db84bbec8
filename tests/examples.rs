//! The examples as programs: what they forward, what they refuse, and that a changed policy file is reloaded.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use support::servers::{Origin, client, free_port};
use support::wait::eventually;

const POLICY: &str = "
version: 1
limits: { site: { tier: exact, rate: 2/1h, key: client_ip } }
routes: [{ name: site, limits: [site] }]
";

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an example behind [`POLICY`]. Two requests pass, the third is refused, and a policy file with a higher limit is
/// reloaded.
async fn check(example: &str, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, POLICY).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let program: PathBuf =
        Path::new(env!("CARGO_BIN_EXE_tollgate")).with_file_name("examples").join(example);
    let mut command = Command::new(program);
    command.arg(&file).arg(&listen).args(more);
    let _running = Running(command.spawn().expect("cargo test --no-run builds the examples"));
    let up = eventually(Duration::from_secs(10), || async {
        tokio::net::TcpStream::connect(&listen).await.is_ok()
    });
    assert!(up.await);
    let get = || async { client().get(format!("http://{listen}/")).send().await.unwrap() };
    for remaining in ["1", "0"] {
        let answer = get().await;
        assert_eq!(answer.status(), 200);
        let field = answer.headers()["ratelimit"].to_str().unwrap().to_owned();
        assert!(field.starts_with(&format!("\"site\";r={remaining};t=")), "{field}");
    }
    let refused = get().await;
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    // A sliding window needs up to two of its lengths.
    assert!((1..=7_200).contains(&wait), "{wait}");
    assert!(refused.headers().contains_key("ratelimit"));
    assert!(refused.text().await.unwrap().contains("quota-exceeded"));

    std::fs::write(&file, POLICY.replace("2/1h", "1000/1h")).unwrap();
    let raised = eventually(Duration::from_secs(20), || async { get().await.status() == 200 });
    assert!(raised.await, "the changed file was not reloaded");
}

#[tokio::test]
async fn a_pingora_proxy_limits_and_reloads() {
    let origin = Origin::start("site").await;
    check("embed", &[&origin.address.to_string()]).await;
    assert!(origin.count() >= 3, "what is allowed is forwarded");
}

#[tokio::test]
async fn an_axum_server_limits_and_reloads() {
    check("axum", &[]).await;
}

/// The README promises how little a plugin needs.
#[test]
fn the_pingora_example_has_at_most_40_lines() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/embed.rs"));
    let text = text.unwrap();
    let counts = |line: &&str| {
        !line.is_empty() && !["use ", "//!"].iter().any(|word| line.starts_with(word))
    };
    let lines = text.lines().filter(counts).count();
    assert!(lines <= 40, "{lines}");
}
