//! What operators are told of the state: by `check`, and by the metrics of a process that serves.

use std::process::Command;

use crate::node::{Node, ask, until};

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
