//! Handovers of processes whose directories are not where they were: removed, other ones, or none. From the first moment in
//! which a successor serves, a kill costs what it costs any process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::servers::{Gate, eventually, metric};

use crate::node::{LIMIT, Node, ask, end, until};

const LIMITS: [(&str, &str); 2] = [
    ("allow", "rate: 24/366d, algorithm: fixed_window"),
    ("deny", "rate: 24/366d, algorithm: fixed_window, after_crash: deny"),
];

const KEYS: u32 = 20;

/// Spends one unit of every key, `before` of which are spent.
async fn spend(gate: &Gate, limits: &[(&str, &str)], before: u32) {
    for key in 0..KEYS {
        for (limit, _) in limits {
            let expected = (200, LIMIT - before - 1);
            assert_eq!(ask(gate, limit, &key.to_string()).await, expected, "{}", gate.log());
        }
    }
}

async fn logged(gate: &Gate, text: &str) {
    let is_said = eventually(Duration::from_secs(20), || async { gate.log().contains(text) });
    assert!(is_said.await, "{text}: {}", gate.log());
}

/// Hands over, and kills the successor as soon as it serves. Then the old process ends too.
async fn upgrade_and_kill(node: &Node, mut old: Gate) -> String {
    let mut new = node.start_unready(&[], &["--upgrade"]);
    logged(&old, "a successor is waiting").await;
    old.signal("QUIT");
    logged(&new, "listening on").await;
    new.signal("KILL");
    new.ended(Duration::from_secs(10)).await.unwrap();
    old.ended(Duration::from_secs(10)).await.unwrap();
    format!("{}\n---\n{}", old.log(), new.log())
}

/// Every key has spent exactly this much, also under `deny`: nothing was ahead of what was saved.
async fn check_spent(node: &Node, limits: &[(&str, &str)], spent: u32, said: &str) {
    let gate = node.start(&[]).await;
    for key in 0..KEYS {
        for (limit, _) in limits {
            let (status, left) = ask(&gate, limit, &key.to_string()).await;
            let least = LIMIT - spent - 1 - if *limit == "deny" { LIMIT / 8 } else { 0 };
            let is_right = status == 200 && (least..LIMIT - spent).contains(&left);
            assert!(is_right, "{limit} {key}: {status}, {left} left after {spent}\n{said}");
        }
    }
    end(gate).await;
}

async fn saved(gate: &Gate) {
    let written = "tollgate_state_writes_total{outcome=\"ok\"}";
    until(gate, written, |writes| writes > 0.0).await;
}

/// Whoever removes the directory of a running process must not make its successor take it for somebody else's: neither when
/// the running process has made it again, nor before it has noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_was_removed_goes_over() {
    for is_noticed in [true, false] {
        let node = Node::new(None, &LIMITS).await;
        let old = node.start(&[]).await;
        spend(&old, &LIMITS, 0).await;
        saved(&old).await;
        std::fs::remove_dir_all(node.folder.path().join("state")).unwrap();
        if is_noticed {
            spend(&old, &LIMITS, 1).await;
            logged(&old, "the state is saved again").await;
        }
        let said = upgrade_and_kill(&node, old).await;
        check_spent(&node, &LIMITS, 1 + u32::from(is_noticed), &said).await;
    }
}

fn copy(from: &Path, to: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir(to).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        if entry.file_name() != "lock" {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn ignored(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_string_lossy().contains("ignored-")).collect()
}

/// To an empty directory, and to one that holds older counts under the same secret, which are kept and not believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_directory_has_everything_before_its_process_counts() {
    for has_older in [false, true] {
        let node = Node::new(None, &LIMITS).await;
        let old = node.start(&[]).await;
        spend(&old, &LIMITS, 0).await;
        saved(&old).await;
        let other = node.folder.path().join("other");
        if has_older {
            copy(&node.folder.path().join("state"), &other);
        }
        spend(&old, &LIMITS, 1).await;
        let to = format!("state: {},", other.display());
        let from = format!("state: {},", node.folder.path().join("state").display());
        node.edit(|text| text.replace(&from, &to));
        let said = upgrade_and_kill(&node, old).await;
        assert!(said.contains("does not hold"), "{said}");
        assert_eq!(ignored(&other).len(), usize::from(has_older), "{said}");
        check_spent(&node, &LIMITS, 2, &said).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_directory_has_everything_before_its_process_counts() {
    let limits = &LIMITS[..1];
    let node = Node::new(None, limits).await;
    let mut store = String::new();
    node.edit(|text| {
        let line = text.lines().find(|line| line.starts_with("store:")).unwrap();
        store = format!("{line}\n");
        text.replace(&store, "")
    });
    let old = node.start(&[]).await;
    spend(&old, limits, 0).await;
    assert_eq!(metric(&old.metrics().await, "tollgate_state_bytes"), 0.0);
    node.edit(|text| format!("{text}{store}"));
    let said = upgrade_and_kill(&node, old).await;
    assert!(!said.contains("does not hold"), "{said}");
    check_spent(&node, limits, 1, &said).await;
}

/// An orderly end right after somebody has removed the directory: it is made again, with everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_saves_everything_into_a_directory_that_was_just_removed() {
    for signal in ["INT", "TERM"] {
        let node = Node::new(None, &LIMITS).await;
        let mut gate = node.start(&[]).await;
        spend(&gate, &LIMITS, 0).await;
        saved(&gate).await;
        std::fs::remove_dir_all(node.folder.path().join("state")).unwrap();
        gate.signal(signal);
        gate.ended(Duration::from_secs(10)).await.unwrap();
        check_spent(&node, &LIMITS, 1, &gate.log()).await;
    }
}

/// A process without a directory has a secret of its own, so the counts of an earlier one are refused. They can be put aside
/// without an end of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_an_earlier_run_is_ignored_on_request() {
    let limits = &LIMITS[..1];
    let node = Node::new(None, limits).await;
    let first = node.start(&[]).await;
    spend(&first, limits, 0).await;
    saved(&first).await;
    end(first).await;
    let mut store = String::new();
    node.edit(|text| {
        let line = text.lines().find(|line| line.starts_with("store:")).unwrap();
        store = format!("{line}\n");
        text.replace(&store, "")
    });
    let mut old = node.start(&[]).await;
    spend(&old, limits, 0).await;
    node.edit(|text| format!("{text}{store}"));
    let refused = node.start_unready(&[], &["--upgrade"]);
    logged(&refused, "with --ignore-state").await;
    let mut new = node.start_unready(&[], &["--upgrade", "--ignore-state"]);
    logged(&new, "waiting for process").await;
    old.signal("QUIT");
    logged(&new, "listening on").await;
    new.signal("KILL");
    new.ended(Duration::from_secs(10)).await.unwrap();
    old.ended(Duration::from_secs(10)).await.unwrap();
    assert_eq!(ignored(&node.folder.path().join("state")).len(), 1, "{}", new.log());
    check_spent(&node, limits, 1, &new.log()).await;
}

/// A process that waits for the running one, which ends without handing over, must not say that it still serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_process_that_has_ended_is_not_said_to_serve() {
    let node = Node::new(None, &LIMITS).await;
    let mut old = node.start(&[]).await;
    let mut new = node.start_unready(&[], &["--upgrade"]);
    logged(&old, "a successor is waiting").await;
    old.signal("KILL");
    old.ended(Duration::from_secs(10)).await.unwrap();
    new.ended(Duration::from_secs(10)).await.unwrap();
    assert!(new.log().contains("cannot take over"), "{}", new.log());
    assert!(!new.log().contains("the running process serves on"), "{}", new.log());
}

/// A successor that is slow finds the directory free when the process before has died meanwhile. It must not take it for one that
/// nobody uses, and replace what was saved there by what it was told before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_process_that_dies_under_a_slow_successor_leaves_what_it_saved() {
    let mut met = 0;
    for (signal_of_old, millis) in [("KILL", 1), ("KILL", 3), ("TERM", 2), ("KILL", 5), ("TERM", 4)]
    {
        let node = Node::new(None, &LIMITS).await;
        let mut old = node.start(&[]).await;
        spend(&old, &LIMITS, 0).await;
        saved(&old).await;
        let mut new = node.start_unready(&[], &["--upgrade"]);
        logged(&old, "a successor is waiting").await;
        old.signal("QUIT");
        // Anywhere in the conversation is right.
        tokio::time::sleep(Duration::from_millis(millis)).await;
        new.signal("STOP");
        if old.log().contains("the successor counts") {
            new.signal("KILL");
            old.signal("KILL");
            continue;
        }
        met += 1;
        spend(&old, &LIMITS, 1).await;
        until(&old, "tollgate_state_age_seconds", |age| age < 0.05).await;
        old.signal(signal_of_old);
        old.ended(Duration::from_secs(20)).await.unwrap();
        new.signal("CONT");
        new.ended(Duration::from_secs(20)).await.unwrap();
        assert!(new.log().contains("its log says why"), "{}", new.log());
        let said = format!("{signal_of_old} {millis}\n{}\n---\n{}", old.log(), new.log());
        assert!(ignored(&node.folder.path().join("state")).is_empty(), "{said}");
        check_spent(&node, &LIMITS, 2, &said).await;
    }
    assert!(met > 0, "every handover was over before");
}
