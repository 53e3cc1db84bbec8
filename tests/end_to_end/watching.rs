//! `run --watch`: a changed file is reloaded without a signal.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

use support::servers::{Gate, Origin, client, eventually, metric, origin_yaml};

/// Longer than two looks and a reload on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn policy(origin: &Origin, rate: &str) -> String {
    format!(
        "{}limits: {{ writes: {{ tier: exact, rate: {rate}, key: client_ip }} }}
routes: [{{ name: all, limits: [writes] }}]
",
        origin_yaml(origin.address)
    )
}

async fn reloads(gate: &Gate, outcome: &str) -> u64 {
    let name = format!("tollgate_config_reloads_total{{outcome=\"{outcome}\"}}");
    metric(&gate.metrics().await, &name) as u64
}

async fn limit(gate: &Gate) -> String {
    let answer = client().get(gate.url("/")).send().await.unwrap();
    answer.headers()["x-ratelimit-limit"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_burst_of_writes_is_a_single_reload_and_a_bad_file_changes_nothing() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let (port, admin) = Gate::prepare(&folder, &policy(&origin, "11/1h"), "");
    let mut gate = Gate::run(Arc::new(folder), port, admin, &["--watch"]);
    gate.wait_ready().await;
    let good = std::fs::read_to_string(gate.file()).unwrap();
    for n in 20..50 {
        std::fs::write(gate.file(), good.replace("11/1h", &format!("{n}/1h"))).unwrap();
    }
    assert!(eventually(PATIENCE, || async { limit(&gate).await == "49" }).await, "{}", gate.log());
    assert_eq!(reloads(&gate, "applied").await, 1);
    std::fs::write(gate.file(), good.replace("11/1h", "nonsense")).unwrap();
    let refused = eventually(PATIENCE, || async { reloads(&gate, "refused").await > 0 });
    assert!(refused.await, "{}", gate.log());
    assert_eq!(limit(&gate).await, "49");
    std::fs::write(gate.file(), good.replace("11/1h", "12/1h")).unwrap();
    assert!(eventually(PATIENCE, || async { limit(&gate).await == "12" }).await, "{}", gate.log());
}

/// A volume of Kubernetes: the file is a link into a link, and an update points the second link elsewhere.
#[tokio::test]
async fn a_link_that_is_pointed_elsewhere_is_a_change() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    let (port, admin) = Gate::prepare(&folder, &policy(&origin, "11/1h"), "");
    let at = |name: &str| folder.path().join(name);
    let text = std::fs::read_to_string(at("tollgate.yaml")).unwrap();
    for (version, text) in [("v1", text.clone()), ("v2", text.replace("11/1h", "12/1h"))] {
        std::fs::create_dir(at(version)).unwrap();
        std::fs::write(at(version).join("tollgate.yaml"), text).unwrap();
    }
    std::fs::remove_file(at("tollgate.yaml")).unwrap();
    symlink("v1", at("..data")).unwrap();
    symlink("..data/tollgate.yaml", at("tollgate.yaml")).unwrap();
    let mut gate = Gate::run(Arc::new(folder), port, admin, &["--watch"]);
    gate.wait_ready().await;
    assert_eq!(limit(&gate).await, "11");
    let at = |name: &str| gate.folder.path().join(name);
    symlink("v2", at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    assert!(eventually(PATIENCE, || async { limit(&gate).await == "12" }).await, "{}", gate.log());
    assert_eq!(reloads(&gate, "applied").await, 1);
}
