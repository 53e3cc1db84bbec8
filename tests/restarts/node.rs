//! A process with a state directory, and single requests to it.

use std::sync::Arc;
use std::time::Duration;

use support::servers::{Gate, Origin, client, eventually, metric, origin_yaml};

pub const LIMIT: u32 = 24;

/// Where a node is started, and started again.
pub struct Node {
    pub folder: Arc<tempfile::TempDir>,
    _origin: Origin,
    ports: (u16, u16),
}

impl Node {
    /// `state`: the directory, or the folder of the test with `state` in it. `limits`: names, and what they have beside a
    /// tier and a key; each has a route.
    pub async fn new(state: Option<&str>, limits: &[(&str, &str)]) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let own = folder.path().join("state").display().to_string();
        let (mut text, mut routes) = (String::new(), String::new());
        for (name, more) in limits {
            text.push_str(&format!(
                "  {name}: {{ tier: exact, key: header:x-key, missing_key: deny, {more} }}\n"
            ));
            routes.push_str(&format!(
                "- {{ name: {name}, match: {{ path: /{name} }}, limits: [{name}] }}\n"
            ));
        }
        let origin = Origin::start("site").await;
        let policy = format!(
            "{}store: {{ embedded: {{ state: {}, flush: 20ms, sync: 100ms }} }}\n\
             limits_of_this_proxy: {{ drain: 0s }}\naccess_log: {{ to: none }}\nlimits:\n{text}routes:\n{routes}",
            origin_yaml(origin.address),
            state.unwrap_or(&own)
        );
        let ports = Gate::prepare(&folder, &policy, "");
        Self { folder, _origin: origin, ports }
    }

    /// Starts a process by a program that becomes it, with these words.
    pub async fn start(&self, before: &[&str]) -> Gate {
        let mut gate = self.start_unready(before, &[]);
        gate.wait_ready().await;
        gate
    }

    /// The same, with more words behind, and without a wait.
    pub fn start_unready(&self, before: &[&str], more: &[&str]) -> Gate {
        let before = before.iter().map(|word| (*word).to_owned()).collect();
        let (port, admin) = self.ports;
        Gate::run_by(before, Arc::clone(&self.folder), port, admin, more)
    }

    /// Changes the configuration of the processes that are started from now on.
    pub fn edit(&self, change: impl FnOnce(String) -> String) {
        let file = self.folder.path().join("tollgate.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, change(text)).unwrap();
    }
}

/// A request: its status, and how many units its limit has left.
pub async fn ask(gate: &Gate, limit: &str, key: &str) -> (u16, u32) {
    let request = client().get(gate.url(&format!("/{limit}"))).header("x-key", key);
    let answer = request.send().await.unwrap();
    let left = answer.headers()["x-ratelimit-remaining"].to_str().unwrap().parse().unwrap();
    (answer.status().as_u16(), left)
}

/// Ends a process in an orderly way.
pub async fn end(mut gate: Gate) {
    gate.signal("TERM");
    assert!(gate.ended(Duration::from_secs(20)).await.is_some(), "{}", gate.log());
}

/// Waits for a sample of the metrics.
pub async fn until(gate: &Gate, sample: &str, holds: impl Fn(f64) -> bool) {
    let found = eventually(Duration::from_secs(30), || async {
        holds(metric(&gate.metrics().await, sample))
    });
    assert!(found.await, "{sample}: {}\n{}", gate.metrics().await, gate.log());
}
