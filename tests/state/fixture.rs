//! A state directory that an earlier binary wrote: this one reads it, or refuses it with the way to go on.
//!
//! `fixtures/write` made it. Whoever changes the format raises its version, keeps this fixture as the one that is converted
//! or refused, and writes one of the new format.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate::clock::{Clock as _, ManualClock, Nanos};
use tollgate::engine::Outcome;
use tollgate::history::{HistoryMinute, HistoryQuery, MINUTES, TrafficTotals};
use tollgate::policy::Ruling;
use tollgate::state::{StateDirectory, StateError};

use crate::node::Node;

/// Limits under which the key `a` has spent three units, and `b` one.
const LIMITS: [&str; 8] = [
    "token-bucket",
    "token-bucket-plans",
    "sliding-window",
    "sliding-window-plans",
    "sliding-log",
    "fixed-window",
    "fixed-window-plans",
    "deny-after-crash",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/state/fixtures")
}

/// A copy with the modes that a state directory has: git does not keep them.
fn copied(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        let copy = folder.path().join(entry.file_name());
        fs::copy(entry.path(), &copy).unwrap();
        fs::set_permissions(&copy, Permissions::from_mode(0o600)).unwrap();
    }
    folder
}

#[test]
fn what_format_1_wrote_is_restored_or_refused_with_the_way_to_go_on() {
    let folder = copied("format-1");
    let directory = match StateDirectory::open(folder.path(), false, 1_800_000_000) {
        Ok(directory) => directory,
        Err(error @ StateError::Version { version: 1, .. }) => {
            let told = error.to_string();
            assert!(told.contains("start the version that wrote it"), "{told}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let summary = directory.summary().clone();
    assert!(summary.is_clean && summary.damage.is_empty(), "{summary:?}");
    // The clock stands at the end of the process that wrote it.
    let clock = Arc::new(ManualClock::at(&summary.mark.unwrap()));
    let policy = fs::read_to_string(fixtures().join("policy.yaml")).unwrap();
    let policy = &policy[policy.find("\nlimits:").unwrap()..];
    let node = Node::start_in(policy, &clock, directory);
    assert_eq!(node.unreadable, 0);
    for limit in LIMITS {
        let b = if limit == "fixed-window" { 2 } else { 1 };
        for (key, spent) in [("a", 3), ("b", b), ("c", 0)] {
            assert_eq!(node.spent(limit, key), spent, "{limit} {key}");
        }
    }
    // It would wait for the slot behind the one that is taken.
    let delayed = node.decide("leaky-bucket", "a");
    assert!(delayed.wait() > Nanos::from_secs(3_600), "{delayed:?}");
    let banned = node.decide("logins", "eve");
    assert!(banned.outcome == Outcome::Limited && banned.is_banned(), "{banned:?}");
    check_rule(&node);
    check_history(&node, &clock);
}

fn check_rule(node: &Node) {
    let rules = node.engine.key_rules();
    let [rule] = &*rules else { panic!("{rules:?}") };
    assert_eq!((&*rule.limit, &*rule.reason), ("fixed-window", "a fixture"));
    assert!(matches!(rule.ruling, Ruling::Rate { rate, burst: None } if rate.count() == 50));
    for n in 0..50 {
        assert!(node.is_allowed("fixed-window", "vip"), "{n}");
    }
    assert!(!node.is_allowed("fixed-window", "vip"));
}

fn check_history(node: &Node, clock: &ManualClock) {
    let now = clock.now();
    let all =
        HistoryQuery { minutes: MINUTES, route: None, has_details: true, max_entries: usize::MAX };
    let minutes = node.history.read(all, now.mono, clock.date(now), &TrafficTotals::default());
    let minutes = minutes.unwrap();
    let sum = |number: usize| minutes.iter().map(|minute| minute.total[number]).sum::<u64>();
    // Eight limits with four requests each, one more under one of them, one delayed, one login; two refused ones.
    assert_eq!((sum(0), sum(1)), (8 * 4 + 1 + 1 + 1, 2), "{minutes:?}");
    let last = minutes.last().unwrap();
    assert_eq!(last.routes, [("fixed-window".into(), [1, 0, 0, 0, 0, 0])], "the present minute");
    let refused = |minute: &HistoryMinute| {
        let logins = minute.limits.iter().find(|(name, _)| &**name == "logins");
        logins.map_or(0, |(_, [_, refused, ..])| *refused)
    };
    assert_eq!(minutes.iter().map(refused).sum::<u32>(), 2);
}
