//! A server that lies: sixty replies, each with the name of what becomes of it. Whatever it says,
//! the node keeps the limit by itself, and nothing panics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::store::redis::CallOutcome;

use crate::engines::{Node, one};
use support::servers::eventually;
use support::stand_in::{self, plain};

const POLICY: &str = "
limits:
  one: { tier: exact, algorithm: fixed_window, rate: 2/30d, key: header:x-key, missing_key: deny }
routes: [{ name: r, limits: [one] }]
";

/// `#` is the number of the call, `@` the server's time, `w` the number of the window.
fn lies() -> Vec<(String, CallOutcome)> {
    use CallOutcome::{Invalid, Refused, Timeout, Unreachable};
    let mut lies: Vec<(String, CallOutcome)> = Vec::new();
    let mut add = |outcome, reply: &str| lies.push((reply.to_owned(), outcome));
    for word in [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "NOAUTH Authentication required.",
        "NOPERM this user has no permissions",
        "WRONGPASS invalid username-password pair",
        "BUSY Redis is busy running a script.",
        "MISCONF Redis is configured to save RDB snapshots",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "NOREPLICAS Not enough good replicas to write.",
        "EXECABORT Transaction discarded",
        "ERR unknown command 'EVALSHA'",
        "ERR max number of clients reached",
        "ERR",
        "TRYAGAIN Multiple keys request during rehashing of slot",
    ] {
        add(Refused, &format!("-{word}\r\n"));
    }
    // A single server names no other one.
    add(Refused, "-MOVED 1 127.0.0.1:1\r\n");
    add(Refused, "-ASK 1 127.0.0.1:1\r\n");
    add(Invalid, "-TOLLGATE the cell t was not written by tollgate\r\n");
    add(Invalid, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    add(Invalid, "-MOVED\r\n");
    add(Invalid, "-MOVED x y\r\n");
    add(Invalid, "-ASK 1\r\n");
    for reply in [
        "+OK\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        ":1\r\n",
        "$2\r\nhi\r\n",
        "*1\r\n:1\r\n",
        "*2\r\n:#\r\n:@\r\n",
        "*3\r\n:#\r\n:@\r\n:1\r\n",
        "*4\r\n:#\r\n:@\r\n:1\r\n:w\r\n",
        // Another call's number.
        "*5\r\n:0\r\n:@\r\n:1\r\n:w\r\n:0\r\n",
        "*5\r\n:99999999\r\n:@\r\n:1\r\n:w\r\n:0\r\n",
        // More admitted than asked, fewer than none.
        "*5\r\n:#\r\n:@\r\n:2\r\n:w\r\n:0\r\n",
        "*5\r\n:#\r\n:@\r\n:-1\r\n:w\r\n:0\r\n",
        "*5\r\n:#\r\n:@\r\n:18446744073709551615\r\n:w\r\n:0\r\n",
        // Admitted where the cell is full, refused where it is empty.
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n:2\r\n",
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n:4294967295\r\n",
        "*5\r\n:#\r\n:@\r\n:0\r\n:w\r\n:0\r\n",
        // Units that are none.
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n:4294967296\r\n",
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n:-5\r\n",
        "*5\r\n:#\r\n:-1\r\n:1\r\n:w\r\n:0\r\n",
        // Not numbers, too many, too deep.
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n$1\r\n0\r\n",
        "*5\r\n:#\r\n:@\r\n$-1\r\n:w\r\n:0\r\n",
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n+0\r\n",
        "*5\r\n:#\r\n:@\r\n*1\r\n:1\r\n:w\r\n:0\r\n",
        "*6\r\n:#\r\n:@\r\n:1\r\n:w\r\n:0\r\n:0\r\n",
        "*1\r\n*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n:0\r\n",
        "*5\r\n:#\r\n:@\r\n:1\r\n:w\r\n-ERR inside\r\n",
    ] {
        add(Invalid, reply);
    }
    // Not the protocol at all.
    for reply in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "garbage\r\n",
        "*x\r\n",
        "$x\r\n",
        ":x\r\n",
        "\0\0\0\0\r\n",
    ] {
        add(Invalid, reply);
    }
    // Half a reply, and nothing.
    add(Timeout, "*5\r\n:#\r\n:@\r\n");
    add(Timeout, "$100\r\nhalf");
    add(Timeout, "");
    add(Unreachable, "close");
    lies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_lies_are_told_by_their_names_and_the_limit_holds() {
    let _alone = crate::alone().await;
    let lies = lies();
    assert!(lies.len() >= 60, "{}", lies.len());
    let lie = Arc::new(Mutex::new(String::new()));
    let said = Arc::clone(&lie);
    let port = stand_in::start(Arc::new(move |command: &[String]| {
        if command[0] != "EVALSHA" {
            return Some(plain(command));
        }
        let lie = said.lock().unwrap().clone();
        let at = 1_800_057_600_000_000_u64;
        let window = at / (30 * 86_400 * 1_000_000);
        let reply = lie.replace('#', &command[4]).replace('@', &at.to_string());
        (lie != "close").then(|| reply.replace(":w", &format!(":{window}")).into_bytes())
    }));
    let timeout = Duration::from_millis(200);
    for (n, (reply, outcome)) in lies.iter().enumerate() {
        reply.clone_into(&mut lie.lock().unwrap());
        // A node of its own, so that the breaker of the last one is not met.
        let node = Node::start(one(port), timeout, POLICY).await;
        let key = format!("k{n}");
        let mut admitted = 0;
        for _ in 0..4 {
            let decision = node.decide("/", &[("x-key", &key)]).await;
            assert!(decision.is_degraded(), "{reply:?} is believed: {decision:?}");
            admitted += usize::from(node_allowed(&decision));
        }
        assert_eq!(admitted, 2, "{reply:?}: alone, at the limit");
        // A call that times out is counted by the task that made it, which may run after its requests were answered. And a
        // server that leaves a question out may be asked another one meanwhile, whose reply is then taken for the first's.
        let other = match outcome {
            CallOutcome::Timeout => CallOutcome::Invalid,
            other => *other,
        };
        let is_counted = || async { node.calls(*outcome) + node.calls(other) >= 1 };
        let counted = eventually(Duration::from_secs(5), is_counted).await;
        let all = CallOutcome::ALL.map(|outcome| (outcome.name(), node.calls(outcome)));
        assert!(counted, "{reply:?} is no {}: {all:?}", outcome.name());
        assert_eq!(node.calls(CallOutcome::Ok), 0, "{reply:?}");
    }
}

fn node_allowed(decision: &tollgate::engine::Decision) -> bool {
    decision.outcome == tollgate::engine::Outcome::Allowed
}

/// A server that answers twice puts every later answer out of step: none of them is believed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_another_call_is_not_believed() {
    let _alone = crate::alone().await;
    let port = stand_in::start(Arc::new(|command: &[String]| {
        if command[0] != "EVALSHA" {
            return Some(plain(command));
        }
        let at = 1_800_057_600_000_000_u64;
        let window = at / (30 * 86_400 * 1_000_000);
        let one = format!("*5\r\n:{}\r\n:{at}\r\n:1\r\n:{window}\r\n:0\r\n", command[4]);
        Some(one.repeat(2).into_bytes())
    }));
    let node = Arc::new(Node::start(one(port), Duration::from_secs(1), POLICY).await);
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let node = Arc::clone(&node);
            tokio::spawn(async move { node.decide("/", &[("x-key", &n.to_string())]).await })
        })
        .collect();
    let mut degraded = 0;
    for task in tasks {
        degraded += u64::from(task.await.unwrap().is_degraded());
    }
    let (believed, invalid) = (node.calls(CallOutcome::Ok), node.calls(CallOutcome::Invalid));
    assert!(invalid >= 1 && degraded >= invalid, "{believed} believed, {invalid} invalid");
}

/// A single server that names another one is asked again: whoever answers for it once must not name an address for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_server_names_no_other() {
    let _alone = crate::alone().await;
    let lies = Arc::new(AtomicBool::new(true));
    let is_lying = Arc::clone(&lies);
    let port = stand_in::start(Arc::new(move |command: &[String]| {
        if command[0] != "EVALSHA" {
            return Some(plain(command));
        }
        if is_lying.load(Ordering::Relaxed) {
            return Some(b"-MOVED 0 127.0.0.1:1\r\n".to_vec());
        }
        let at = 1_800_057_600_000_000_u64;
        let window = at / (30 * 86_400 * 1_000_000);
        let reply = format!("*5\r\n:{}\r\n:{at}\r\n:1\r\n:{window}\r\n:0\r\n", command[4]);
        Some(reply.into_bytes())
    }));
    let node = Node::start(one(port), Duration::from_millis(200), POLICY).await;
    for key in ["a", "b", "c", "d", "e"] {
        assert!(node.decide("/", &[("x-key", key)]).await.is_degraded());
    }
    lies.store(false, Ordering::Relaxed);
    let believes = || async { !node.decide("/", &[("x-key", "f")]).await.is_degraded() };
    assert!(eventually(Duration::from_secs(5), believes).await);
}
