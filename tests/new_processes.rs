//! What a new process of the embedded store still knows of the one before it: after a reload and after an orderly end.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::sync::Arc;
use std::time::Duration;

use support::servers::{Gate, Origin, Reloaded, client, origin_yaml};

const LIMIT: usize = 5;

const PATIENCE: Duration = Duration::from_secs(20);

/// The stores of one node, and whether they keep counts when the process ends.
const STORES: [(&str, bool); 2] = [("embedded", false), ("{ embedded: { state: state } }", true)];

async fn start(origin: &Origin, store: &str) -> Gate {
    Gate::start(&format!(
        "{}store: {store}\nlimits_of_this_proxy: {{ drain: 0s }}
limits: {{ writes: {{ tier: exact, algorithm: fixed_window, rate: {LIMIT}/366d, key: client_ip }} }}
routes: [{{ name: all, limits: [writes] }}]\n",
        origin_yaml(origin.address)
    ))
    .await
}

/// How many requests are admitted, of more than the limit.
async fn admitted(gate: &Gate) -> usize {
    let (client, mut admitted) = (client(), 0);
    for _ in 0..=LIMIT {
        let status = client.get(gate.url("/")).send().await.unwrap().status().as_u16();
        assert!(status == 200 || status == 429, "{status}");
        admitted += usize::from(status == 200);
    }
    admitted
}

#[tokio::test]
async fn a_reload_forgets_nothing() {
    let origin = Origin::start("site").await;
    for (store, _) in STORES {
        let gate = start(&origin, store).await;
        assert_eq!(admitted(&gate).await, LIMIT);
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert_eq!(admitted(&gate).await, 0, "{store}");
    }
}

#[tokio::test]
async fn an_orderly_end_forgets_memory_and_nothing_of_a_state_directory() {
    let origin = Origin::start("site").await;
    for (store, keeps) in STORES {
        for signal in ["TERM", "INT"] {
            let mut old = start(&origin, store).await;
            assert_eq!(admitted(&old).await, LIMIT);
            old.signal(signal);
            assert!(old.ended(PATIENCE).await.is_some(), "{}", old.log());
            let mut new = Gate::run(Arc::clone(&old.folder), old.port, old.admin, &[]);
            new.wait_ready().await;
            let expected = if keeps { 0 } else { LIMIT };
            assert_eq!(admitted(&new).await, expected, "{store} after {signal}: {}", new.log());
        }
    }
}
