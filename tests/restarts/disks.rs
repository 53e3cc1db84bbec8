//! Disks of the running binary: full, read-only, broken, and a directory that somebody removes. Requests go on, everybody is
//! told, and when the disk is well again, so is the state, without a restart.
//!
//! The file systems are mounted in a name space of their own, for which the tests need to be root.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::servers::{Gate, eventually, metric};

use crate::node::{LIMIT, Node, ask, end, until};

const FULL: &str = "tollgate_state_writes_total{outcome=\"full\"}";
const ERROR: &str = "tollgate_state_writes_total{outcome=\"error\"}";
const AGE: &str = "tollgate_state_age_seconds";

const MOUNTED: &str = "/mnt";

/// A name space of mounts, as long as this exists.
struct Mounts {
    holder: Child,
    pid: String,
}

impl Mounts {
    /// `None`, and loudly: it is not permitted.
    fn new() -> Option<Self> {
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
        let holder = unshare.spawn().and_then(|mut holder| {
            use std::io::Read as _;
            let mut line = [0];
            // It is in its name space when it says something.
            let said = holder.stdout.take().map(|mut out| out.read_exact(&mut line));
            said.unwrap_or(Ok(())).map(|()| holder)
        });
        match holder {
            Ok(holder) => {
                let pid = holder.id().to_string();
                Some(Self { holder, pid })
            }
            Err(error) => {
                eprintln!(
                    "SKIPPED: name spaces of mounts are not permitted here ({error}); run this as root"
                );
                None
            }
        }
    }

    fn enter(&self) -> [&str; 4] {
        ["nsenter", "-m", "-t", &self.pid]
    }

    fn is_done(&self, script: &str) -> bool {
        let [program, words @ ..] = self.enter();
        let status = Command::new(program).args(words).args(["sh", "-c", script]).status();
        status.is_ok_and(|status| status.success())
    }

    fn run(&self, script: &str) {
        assert!(self.is_done(script), "{script}");
    }

    /// Mounts a file system of its own. Returns its image, and the script that mounts it again; `None`, and loudly: it is
    /// not permitted.
    fn file_system(&self) -> Option<(tempfile::NamedTempFile, String)> {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path().display();
        // A device of its own each time: otherwise a file system that failed would be mounted again. It ends with its mount.
        let mount = format!(
            "device=$(losetup -f --show {path}) && mount $device {MOUNTED} && losetup -d $device"
        );
        if !self.is_done(&format!("truncate -s 16M {path} && mkfs.ext4 -q {path} && {mount}")) {
            eprintln!("SKIPPED: loop devices are not permitted here");
            return None;
        }
        Some((image, mount))
    }
}

/// A file system that takes nothing, until this is dropped. Reading goes on.
struct Frozen<'m>(&'m Mounts);

impl<'m> Frozen<'m> {
    fn new(mounts: &'m Mounts) -> Self {
        mounts.run(&format!("fsfreeze -f {MOUNTED}"));
        Self(mounts)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // Without that, nobody could unmount it.
        let _is_done = self.0.is_done(&format!("fsfreeze -u {MOUNTED}"));
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

const LIMITS: [(&str, &str); 2] = [
    ("allow", "rate: 24/366d, algorithm: fixed_window"),
    ("deny", "rate: 24/366d, algorithm: fixed_window, after_crash: deny"),
];

async fn node(mounts: &Mounts) -> (Node, Gate) {
    let node = Node::new(Some(&format!("{MOUNTED}/state")), &LIMITS).await;
    let gate = node.start(&mounts.enter()).await;
    (node, gate)
}

/// Asks so many times more, and checks that every request is judged as ever.
async fn spend(gate: &Gate, key: &str, before: u32, times: u32) -> u32 {
    for spent in before..before + times {
        for (limit, _) in LIMITS {
            let expected = match LIMIT.checked_sub(spent + 1) {
                Some(left) => (200, left),
                None => (429, 0),
            };
            assert_eq!(ask(gate, limit, key).await, expected, "{limit}: {}", gate.log());
        }
    }
    before + times
}

async fn check_well(gate: &Gate) {
    let is_said = || async { gate.log().contains("the state is saved again") };
    assert!(eventually(Duration::from_secs(30), is_said).await, "{}", gate.log());
    until(gate, AGE, |age| age < 0.5).await;
    assert_eq!(gate.log().matches("the state is saved again").count(), 1, "{}", gate.log());
    let failures = gate.log().matches("the state cannot be saved").count();
    assert!((1..=2).contains(&failures), "{}", gate.log());
}

/// A kill after the recovery: everything that was spent is there, that of the time of the failure too.
async fn check_kept(node: &Node, mounts: &Mounts, gate: Gate, key: &str, spent: u32) {
    // Written, and on the disk.
    let writes = "tollgate_state_writes_total{outcome=\"ok\"}";
    let before = metric(&gate.metrics().await, writes);
    ask(&gate, "allow", "another").await;
    until(&gate, writes, |now| now > before).await;
    // A log may grow between the two readings.
    let are_equal = eventually(Duration::from_secs(10), || async {
        let bytes = metric(&gate.metrics().await, "tollgate_state_bytes");
        mounts.is_done(&format!("test $(cat {MOUNTED}/state/log.* | wc -c) = {bytes}"))
    });
    assert!(are_equal.await, "the metric and the files differ");
    drop(gate);
    let gate = node.start(&mounts.enter()).await;
    assert_eq!(ask(&gate, "allow", key).await, (200, LIMIT - spent - 1), "{}", gate.log());
    let (status, left) = ask(&gate, "deny", key).await;
    assert!(
        status == 200 && (LIMIT - spent - 1 - LIMIT / 8..LIMIT - spent).contains(&left),
        "{left}"
    );
    end(gate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_changes_no_decision_and_recovers_by_itself() {
    let Some(mounts) = Mounts::new() else { return };
    mounts.run(&format!("mount -t tmpfs -o size=512k none {MOUNTED}"));
    let (node, gate) = node(&mounts).await;
    let spent = spend(&gate, "a", 0, 2).await;
    until(&gate, AGE, |age| age < 0.5).await;
    mounts.run(&format!("cat /dev/zero >{MOUNTED}/ballast 2>/dev/null; true"));
    let mut spent = spent;
    // The last bytes of the log's last page are still free.
    for round in 0.. {
        assert!(round < 2_000, "the disk does not become full");
        if metric(&gate.metrics().await, FULL) > 0.0 {
            break;
        }
        ask(&gate, "allow", &format!("k{round}")).await;
    }
    spent = spend(&gate, "a", spent, 3).await;
    until(&gate, FULL, |full| full >= 2.0).await;
    until(&gate, AGE, |age| age > 1.0).await;
    assert!(gate.log().contains("No space left on device"), "{}", gate.log());
    spent = spend(&gate, "a", spent, 3).await;
    mounts.run(&format!("rm {MOUNTED}/ballast"));
    check_well(&gate).await;
    assert_eq!(metric(&gate.metrics().await, ERROR), 0.0);
    check_kept(&node, &mounts, gate, "a", spent).await;
}

/// Everything is written again before the logs have taken the volume, so nothing but somebody else's files can fill it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_volume_is_not_filled_by_its_own_logs() {
    const KEYS: u32 = 50;
    let Some(mounts) = Mounts::new() else { return };
    mounts.run(&format!("mount -t tmpfs -o size=128k none {MOUNTED}"));
    let limits = [("allow", "rate: 1000000/366d, algorithm: fixed_window")];
    let node = Node::new(Some(&format!("{MOUNTED}/state")), &limits).await;
    let gate = node.start(&mounts.enter()).await;
    for round in 1..=40 {
        for key in 0..KEYS {
            let left = 1_000_000 - round;
            assert_eq!(ask(&gate, "allow", &key.to_string()).await, (200, left), "{}", gate.log());
        }
    }
    assert_eq!(metric(&gate.metrics().await, FULL), 0.0, "{}", gate.log());
    end(gate).await;
    let gate = node.start(&mounts.enter()).await;
    assert!(!gate.log().contains("orderly"), "{}", gate.log());
    for key in 0..KEYS {
        assert_eq!(ask(&gate, "allow", &key.to_string()).await, (200, 1_000_000 - 41));
    }
    end(gate).await;
}

/// A file system that fails becomes read-only under its open files, and is mounted anew when it is repaired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_that_becomes_read_only_is_told_and_used_again_when_it_is_repaired() {
    let Some(mounts) = Mounts::new() else { return };
    let Some((_image, mount)) = mounts.file_system() else { return };
    let (node, gate) = node(&mounts).await;
    let spent = spend(&gate, "a", 0, 2).await;
    until(&gate, AGE, |age| age < 0.5).await;
    mounts.run(&format!("mount -o remount,abort {MOUNTED}"));
    let spent = spend(&gate, "a", spent, 3).await;
    until(&gate, ERROR, |errors| errors >= 2.0).await;
    until(&gate, AGE, |age| age > 1.0).await;
    let spent = spend(&gate, "a", spent, 3).await;
    mounts.run(&format!("umount -l {MOUNTED}; {mount}"));
    check_well(&gate).await;
    check_kept(&node, &mounts, gate, "a", spent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_removed_is_made_again_with_its_secret_and_its_lock() {
    let Some(mounts) = Mounts::new() else { return };
    mounts.run(&format!("mount -t tmpfs -o size=16m none {MOUNTED}"));
    let (node, gate) = node(&mounts).await;
    let spent = spend(&gate, "a", 0, 2).await;
    until(&gate, AGE, |age| age < 0.5).await;
    mounts.run(&format!("rm -r {MOUNTED}/state"));
    let spent = spend(&gate, "a", spent, 3).await;
    until(&gate, ERROR, |errors| errors >= 1.0).await;
    check_well(&gate).await;
    mounts.run(&format!("test \"$(stat -c %a {MOUNTED}/state/key-secret)\" = 600"));
    mounts.run(&format!("! flock -n {MOUNTED}/state/lock true"));
    check_kept(&node, &mounts, gate, "a", spent).await;
}

async fn logged(gate: &Gate, text: &str) {
    let is_said = eventually(Duration::from_secs(20), || async { gate.log().contains(text) });
    assert!(is_said.await, "{text}: {}", gate.log());
}

async fn check_closed(gate: &Gate) {
    let is_closed =
        || async { tokio::net::TcpStream::connect(("127.0.0.1", gate.port)).await.is_err() };
    assert!(eventually(Duration::from_secs(3), is_closed).await, "{}", gate.log());
}

/// What follows after a first signal does not cut the last save: it is waited for, as long as for a single signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_does_not_cut_the_last_save() {
    for (first, second) in [("TERM", "TERM"), ("TERM", "INT"), ("INT", "INT"), ("INT", "TERM")] {
        let Some(mounts) = Mounts::new() else { return };
        let Some(_image) = mounts.file_system() else { return };
        let (node, mut gate) = node(&mounts).await;
        spend(&gate, "a", 0, 2).await;
        until(&gate, AGE, |age| age < 0.5).await;
        let frozen = Frozen::new(&mounts);
        // Nothing of this is written before the end.
        let spent = spend(&gate, "a", 2, 3).await;
        gate.signal(first);
        check_closed(&gate).await;
        assert!(gate.ended(Duration::from_millis(300)).await.is_none(), "it saves");
        gate.signal(second);
        assert!(gate.ended(Duration::from_millis(500)).await.is_none(), "{first} {second}");
        drop(frozen);
        gate.ended(Duration::from_secs(10)).await.unwrap();
        assert!(!gate.log().contains("is not saved"), "{}", gate.log());
        let gate = node.start(&mounts.enter()).await;
        assert!(!gate.log().contains("orderly"), "{first} {second}: {}", gate.log());
        spend(&gate, "a", spent, LIMIT - spent + 1).await;
        end(gate).await;
    }
}

/// A disk that does not answer keeps no process: the end comes, says what is lost, and no new connection is accepted
/// meanwhile. Nor does it keep an upgrade waiting: that is refused with its reason, and the process serves on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_keeps_neither_the_end_nor_a_successor() {
    let Some(mounts) = Mounts::new() else { return };
    let Some(_image) = mounts.file_system() else { return };
    let (node, mut gate) = node(&mounts).await;
    spend(&gate, "a", 0, 2).await;
    until(&gate, AGE, |age| age < 0.5).await;
    let frozen = Frozen::new(&mounts);
    let spent = spend(&gate, "a", 2, 3).await;
    // The thread that saves waits in a write now.
    until(&gate, AGE, |age| age > 0.5).await;
    // Nobody can wait for a process that has a thread in such a call, so nobody does before the disk is well again.
    let frozen = (frozen, node.start_unready(&mounts.enter(), &["--upgrade"]));
    logged(&gate, "a successor is waiting").await;
    gate.signal("QUIT");
    logged(&frozen.1, "its log says why").await;
    assert!(gate.log().contains("a write to it does not end; serving on"), "{}", gate.log());
    node.edit(|text| {
        text.replace(&format!("state: {MOUNTED}/state"), &format!("state: {MOUNTED}/new"))
    });
    let frozen = (frozen, node.start_unready(&mounts.enter(), &["--upgrade"]));
    logged(&frozen.1, "does not answer: the disk hangs").await;
    spend(&gate, "a", spent, 1).await;
    gate.signal("INT");
    check_closed(&gate).await;
    assert!(gate.ended(Duration::ZERO).await.is_none(), "it still waits for the disk");
    logged(&gate, "the end of the state is not saved").await;
    drop(frozen);
    assert!(gate.ended(Duration::from_secs(10)).await.is_some(), "{}", gate.log());
}
