//! What operators are told of the state: by `check`, and by the metrics of a process that serves.

use std::path::Path;
use std::process::Command;

use support::servers::{client, metric};

use crate::node::{Node, ask, end, until};

const LIMITS: [(&str, &str); 3] = [
    ("allow", "rate: 24/1h"),
    ("deny", "rate: 24/1h, after_crash: deny"),
    ("single", "rate: 1/1h, after_crash: deny"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_and_the_metrics_tell_of_the_state() {
    let node = Node::new(None, &LIMITS).await;
    let file = node.folder.path().join("tollgate.yaml");
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let told = check.arg("check").arg(file).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("after crash")).collect();
    let expected = [
        "at most what was spent in the last 20ms (kill) or 100ms (power) is admitted again",
        "nothing above the limit; at most 3 units of a key are refused; about ",
        "nothing above the limit; at most 1 unit of a key are refused; about ",
    ];
    assert_eq!(lines.len(), expected.len(), "{told}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }

    let gate = node.start(&[]).await;
    ask(&gate, "allow", "a").await;
    until(&gate, "tollgate_state_writes_total{outcome=\"ok\"}", |writes| writes > 0.0).await;
    until(&gate, "tollgate_state_bytes", |bytes| bytes > 0.0).await;
    let metrics = gate.metrics().await;
    for sample in [
        "tollgate_state_age_seconds 0.",
        "tollgate_state_recovered_cells 0",
        "tollgate_state_writes_total{outcome=\"full\"} 0",
        "tollgate_state_writes_total{outcome=\"error\"} 0",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(sample)), "{sample}: {metrics}");
    }
}

/// Damages the payload of a frame of cells of a log, other than the first and the last.
fn damage(log: &Path) {
    let mut content = std::fs::read(log).unwrap();
    let (mut at, mut cells) = (0, Vec::new());
    while content.len() >= at + 24 {
        let length = content[at + 8..at + 12].try_into().map(u32::from_le_bytes).unwrap();
        if content[at + 4] == 4 {
            cells.push(at);
        }
        at += 24 + length as usize;
    }
    assert!(cells.len() >= 3, "{}", cells.len());
    content[cells[1] + 30] ^= 0x55;
    std::fs::write(log, content).unwrap();
}

/// A damaged frame is told as that, and as nothing else: no file was removed, and the process before ended in an orderly way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_frame_is_told_as_one() {
    let node = Node::new(None, &LIMITS).await;
    let gate = node.start(&[]).await;
    let written = "tollgate_state_writes_total{outcome=\"ok\"}";
    for key in ["a", "b", "c", "d"] {
        let before = metric(&gate.metrics().await, written);
        ask(&gate, "allow", key).await;
        until(&gate, written, |writes| writes > before).await;
    }
    end(gate).await;
    damage(&node.folder.path().join("state/log.0000000001"));
    let gate = node.start(&[]).await;
    assert!(gate.log().contains("are damaged and left out"), "{}", gate.log());
    for untrue in ["a file was removed or cut", "did not end in an orderly way"] {
        assert!(!gate.log().contains(untrue), "{untrue}: {}", gate.log());
    }
    end(gate).await;
}

/// An operator has banned a key under a limit that the next process does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_have_no_effect_any_more_are_told() {
    let node = Node::new(None, &LIMITS).await;
    std::fs::write(node.folder.path().join("token"), "0123456789abcdef").unwrap();
    node.edit(|text| text.replacen("origins:", "  token_file: token\norigins:", 1));
    let gate = node.start(&[]).await;
    let url = format!("http://127.0.0.1:{}/keys/ban", gate.admin);
    let body = r#"{"limit": "allow", "key": "a", "reason": "a test", "for": "1h"}"#;
    let request = client().post(url).bearer_auth("0123456789abcdef").body(body);
    let answer = request.header("content-type", "application/json").send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    let untold = "has no effect under this configuration";
    end(gate).await;
    let gate = node.start(&[]).await;
    assert!(!gate.log().contains(untold), "{}", gate.log());
    end(gate).await;
    node.edit(|text| text.replace("  allow: {", "  renamed: {").replace("[allow]", "[renamed]"));
    let gate = node.start(&[]).await;
    assert!(gate.log().contains(untold), "{}", gate.log());
    assert!(gate.log().contains("the limit is not in it"), "{}", gate.log());
}
