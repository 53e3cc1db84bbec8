//! What the proxy decided, and what a replay of its own log decides, is the same for every request.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use support::servers::Gate;
use tollgate::config;
use tollgate::engine::Outcome;
use tollgate::replay::{
    KeySecrets, Log, MAX_WAITING, Ordering, ReadSettings, ReplayedPolicy, SourceIndex,
};

use super::{origin, random_policy, traffic};

/// Processes that are driven one after the other, each with policies of its own.
const ROUNDS: u64 = 8;

/// A verdict as a line of the log and a decision of the replay have it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Verdict {
    decision: String,
    /// What the replay did not find in the log.
    missing: Vec<String>,
    limit: Option<String>,
    remaining: Option<u64>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_of_the_own_log_decides_what_the_proxy_decided() {
    let (mut verdicts, mut refused, mut differing) = (0, 0, Vec::new());
    for seed in seeds() {
        let (folder, log) = drive(seed).await;
        let before = differing.len();
        let live = live_verdicts(&log);
        let replayed = replay(folder.path(), &log);
        assert_eq!(live.len(), replayed.len(), "seed {seed}: a request is missing");
        for (at, live) in live {
            verdicts += live.len();
            refused += live.iter().filter(|verdict| verdict.decision == "limited").count();
            if replayed.get(&at) != Some(&live) {
                differing
                    .push(format!("seed {seed}, {at}: {live:?}, replayed {:?}", replayed.get(&at)));
            }
        }
        if differing.len() > before {
            let text = std::fs::read_to_string(folder.path().join("tollgate.yaml")).unwrap();
            println!("{}\n{text}", differing[before..].join("\n"));
            if let Some(kept) = std::env::var_os("TOLLGATE_TRUTH_KEEP") {
                let kept = Path::new(&kept).join(seed.to_string());
                std::process::Command::new("cp")
                    .arg("-a")
                    .arg(folder.path())
                    .arg(kept)
                    .status()
                    .unwrap();
            }
        }
    }
    println!("{verdicts} verdicts, {refused} refused, {} differ", differing.len());
    assert!(refused > verdicts / 10, "too few requests were refused: {refused} of {verdicts}");
    assert!(differing.is_empty(), "{} of {verdicts}:\n{}", differing.len(), differing.join("\n"));
}

/// `TOLLGATE_TRUTH_ROUNDS` asks for more, `TOLLGATE_TRUTH_FIRST` begins with a later one.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let first = number("TOLLGATE_TRUTH_FIRST").unwrap_or(0);
    first..first + number("TOLLGATE_TRUTH_ROUNDS").unwrap_or(ROUNDS)
}

/// The verdicts of one moment, sorted: two threads may judge two requests in one nanosecond.
type Verdicts = HashMap<u64, Vec<Verdict>>;

fn by_moment(verdicts: impl Iterator<Item = (u64, Verdict)>) -> Verdicts {
    let mut all = Verdicts::new();
    for (at, verdict) in verdicts {
        all.entry(at).or_default().push(verdict);
    }
    all.values_mut().for_each(|verdicts| verdicts.sort_unstable());
    all
}

/// Drives a process under random policies. Returns its folder and its log.
async fn drive(seed: u64) -> (std::sync::Arc<tempfile::TempDir>, String) {
    let mut random = fastrand::Rng::with_seed(seed);
    let origin = origin::start().await;
    let folder = tempfile::tempdir().unwrap();
    let secret = include_str!("../policies/keys/secret");
    std::fs::write(folder.path().join("secret"), secret).unwrap();
    let policy = format!(
        "store: {{ embedded: {{ state: ./state }} }}\n\
         clients: {{ trusted_proxies: [127.0.0.1/32] }}\n\
         access_log: {{ to: ./access.log, replay: true }}\n\
         origins:\n  site:\n    servers: [\"{origin}\"]\n{}",
        random_policy::policies(&mut random)
    );
    let gate = Gate::start_in(folder, &policy, "").await;
    traffic::send(gate.port, seed).await;
    gate.signal("TERM");
    let mut gate = gate;
    let ended = gate.ended(std::time::Duration::from_secs(20)).await;
    assert!(ended.is_some_and(|status| status.success()), "{}", gate.log());
    let log = std::fs::read_to_string(gate.folder.path().join("access.log")).unwrap();
    (std::sync::Arc::clone(&gate.folder), log)
}

/// The verdicts of the lines, by when the requests were judged.
fn live_verdicts(log: &str) -> Verdicts {
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    by_moment(lines.filter(|line| line["replay"].is_object()).map(|line| {
        let at = line["replay"]["at"]["wall"].as_u64().unwrap();
        let verdict = Verdict {
            decision: line["decision"].as_str().unwrap().to_owned(),
            missing: Vec::new(),
            limit: line["limit"]
                .as_str()
                .map(str::to_owned)
                .filter(|_| line["decision"] != "allowed"),
            remaining: line["remaining"].as_u64().filter(|_| line["decision"] == "limited"),
        };
        (at, verdict)
    }))
}

fn replay(folder: &Path, log: &str) -> Verdicts {
    let loaded = config::load(&folder.join("tollgate.yaml")).unwrap();
    let secret = KeySecrets::of(&loaded.config.store);
    let mut policy = ReplayedPolicy::new(loaded.config, secret);
    let input = std::io::Cursor::new(log.to_owned().into_bytes());
    let settings = ReadSettings::default();
    let mut log = Log::read("access.log", input, SourceIndex(0), &settings).unwrap().unwrap();
    let coverage = log.coverage();
    let mut order = Ordering::new(MAX_WAITING);
    while let Some(entry) = log.next_entry() {
        assert!(order.push(entry).is_none(), "all requests fit");
    }
    let mut verdicts = Vec::new();
    while let Some(entry) = order.pop() {
        let verdict = policy
            .judge(&entry, &coverage, |judgment, _, policy| {
                let decision = &judgment.decision;
                let deciding = decision.deciding();
                let without_key = decision.outcome.limit_without_key();
                let limit = without_key.or(deciding.map(|verdict| verdict.limit));
                Verdict {
                    decision: match decision.outcome {
                        Outcome::Allowed => "allowed",
                        Outcome::Limited => "limited",
                        _ => "rejected",
                    }
                    .to_owned(),
                    missing: judgment.missing.iter().map(|found| format!("{found:?}")).collect(),
                    limit: limit
                        .filter(|_| decision.outcome != Outcome::Allowed)
                        .map(|limit| policy.policy().limit(limit).name.to_string()),
                    // An answer may still change what is left of a request that passes.
                    remaining: deciding
                        .filter(|_| decision.outcome == Outcome::Limited)
                        .map(|verdict| u64::from(verdict.verdict.remaining)),
                }
            })
            .unwrap();
        verdicts.push((entry.at.wall.get(), verdict));
    }
    by_moment(verdicts.into_iter())
}
