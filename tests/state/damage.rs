//! Files that are damaged, cut, foreign or hostile.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tollgate::clock::{ManualClock, Nanos};
use tollgate::state::{
    FoundLogs, OtherSecret, Recovery, StateDirectory, StateDisk as _, StateError,
};

use crate::disk::SimulatedDisk;
use crate::node::{EPOCH, FINGERPRINT, Node};

const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: sliding_log, rate: 100/1h, key: header:x-key, missing_key: deny }
routes: [{ name: all, limits: [writes] }]
";

fn key(n: u32) -> String {
    format!("k{n}")
}

/// A disk on which 50 keys have spent 2 units each: two complete rounds, and changes after them.
fn written(clock: &Arc<ManualClock>) -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let mut node = Node::start(POLICY, clock, &disk);
    node.saver = node.saver.with_min_round(1);
    for _ in 0..2 {
        for n in 0..50 {
            assert!(node.is_allowed("", &key(n)));
            if n % 10 == 0 {
                node.saver.step(true);
            }
        }
        for _ in 0..4 {
            clock.advance(Nanos::from_millis(500));
            node.saver.step(true);
        }
    }
    assert!(node.saver.finish());
    disk
}

#[test]
fn a_damaged_byte_costs_at_most_what_its_frame_says_and_never_a_panic() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let whole = written(&clock);
    let names = whole.names().unwrap();
    assert!(names.len() >= 2, "{names:?}");
    let mut damaged_inside = 0;
    for name in &names {
        let bytes = whole.content(name).len();
        for at in (0..bytes).step_by(7) {
            let disk = whole.after_kill();
            disk.damage(name, at);
            let node = Node::start(POLICY, &clock, &disk);
            assert!(!node.found.damage.is_empty(), "{name} {at}");
            damaged_inside += u32::from(node.found.damage.iter().any(|damage| !damage.is_tail));
            // Every key was written in two rounds, so that one damaged frame leaves its older count.
            for n in 0..50 {
                let spent = node.spent("writes", &key(n));
                assert!((1..=2).contains(&spent), "{name} {at}: {n} has {spent}");
            }
        }
    }
    assert!(damaged_inside > 100, "{damaged_inside}");
}

/// Cells can be read only with the quotas that they name, which are written twice: a damaged byte in the only log costs the keys of
/// one frame at most, also where a reload has changed the quotas.
#[test]
fn a_damaged_byte_in_the_only_log_does_not_cost_the_quotas() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let whole = SimulatedDisk::new(1);
    let mut node = Node::start(POLICY, &clock, &whole);
    for n in 0..50 {
        assert!(node.is_allowed("", &key(n)));
        if n == 25 {
            node.reload(&POLICY.replace("100/1h", "200/1h"));
        }
        if n % 5 == 4 {
            clock.advance(Nanos::from_millis(100));
            node.saver.step(true);
        }
    }
    let names = whole.names().unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    let mut lost_somewhere = 0;
    for at in (0..whole.content(&names[0]).len()).step_by(3) {
        let disk = whole.after_kill();
        disk.damage(&names[0], at);
        let node = Node::start(POLICY, &clock, &disk);
        let lost = (0..50).filter(|n| node.spent("writes", &key(*n)) == 0).count();
        assert!(lost <= 5, "{at}: {lost} keys are lost");
        assert_eq!(node.unreadable, 0, "{at}");
        lost_somewhere += lost;
    }
    assert!(lost_somewhere > 5, "damage costs something");
}

#[test]
fn a_cut_file_is_read_to_its_last_whole_frame() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let whole = written(&clock);
    let names = whole.names().unwrap();
    let last = names.last().unwrap();
    let content = whole.content(last);
    let mut before = 0;
    for length in (0..content.len()).step_by(5) {
        let disk = whole.after_kill();
        disk.put(last, content[..length].to_vec());
        let node = Node::start(POLICY, &clock, &disk);
        assert!(!node.found.is_clean && node.unreadable == 0, "{length}");
        let spent: u32 = (0..50).map(|n| node.spent("writes", &key(n))).sum();
        assert!(spent >= before, "{length}: more of the file, and {spent} after {before}");
        before = spent;
    }
    assert_eq!(before, 100);
}

/// After a loss of power a file system may show blocks of a removed file behind the end of another, and in holes. Their frames
/// are whole, and say what a key had spent before.
#[test]
fn a_frame_that_is_left_over_from_an_older_log_is_left_out() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let disk = SimulatedDisk::new(1);
    let mut node = Node::start(POLICY, &clock, &disk);
    let mut spend = |units| {
        (0..units).for_each(|_| assert!(node.is_allowed("", "k")));
        node.saver.step(true);
        disk.content(&disk.names().unwrap()[0])
    };
    let (before, after) = (spend(1), spend(2));
    let name = disk.names().unwrap().pop().unwrap();
    for (written, most) in [([&after[..], &before], 3), ([&before[..], &before], 1)] {
        let disk = disk.after_kill();
        disk.put(&name, written.concat());
        let node = Node::start(POLICY, &clock, &disk);
        assert_eq!((node.spent("writes", "k"), node.unreadable), (most, 0));
        let behind = written[0].len() as u64;
        assert!(node.found.damage.iter().all(|damage| damage.at == behind && damage.is_tail));
        assert_eq!(node.found.damage.len(), 1);
    }
    // In the next log too.
    let last = disk.after_kill();
    let mut node = Node::start(POLICY, &clock, &last);
    assert!(node.is_allowed("", "k"));
    assert!(node.saver.finish());
    let name = last.names().unwrap().pop().unwrap();
    last.put(&name, [last.content(&name), before].concat());
    assert_eq!(Node::start(POLICY, &clock, &last).spent("writes", "k"), 4);
}

#[test]
fn hostile_bytes_never_panic() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let whole = written(&clock);
    let name = whole.names().unwrap().pop().unwrap();
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = SimulatedDisk::new(seed);
        let mut content = whole.content(&name);
        match seed % 3 {
            0 => content = (0..random.usize(..5_000)).map(|_| random.u8(..)).collect(),
            1 => content = b"tgs1".iter().copied().cycle().take(random.usize(..5_000)).collect(),
            _ => (0..20).for_each(|_| {
                let at = random.usize(..content.len());
                content[at] = random.u8(..);
            }),
        }
        disk.put(&name, content);
        // Another version and another secret are refused; what is damaged is left out.
        if Recovery::read(Arc::new(disk.clone()), FINGERPRINT).is_ok() {
            assert!(Node::start(POLICY, &clock, &disk).is_allowed("", "new"));
        }
    }
}

fn open(folder: &Path, ignore: bool) -> Result<StateDirectory, StateError> {
    StateDirectory::open(folder, ignore, 1_800_000_000)
}

#[test]
fn a_directory_is_refused_with_its_cure() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let first = open(&state, false).unwrap();
    let text = open(&state, false).err().unwrap().to_string();
    assert!(
        text.contains(&format!(
            "another process uses this state directory (process {})",
            std::process::id()
        )),
        "{text}"
    );
    drop(first);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&state.join("key-secret"))), (0o700, 0o600));

    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o750)).unwrap();
    let text = open(&state, false).err().unwrap().to_string();
    assert!(text.contains("chmod go-rwx"), "{text}");
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();

    // A log of another version, and one of another secret.
    let log = state.join("log.0000000001");
    let mut frame = b"tgs1\x01\x00\x02\x00".to_vec();
    frame.extend([0; 16]);
    std::fs::write(&log, frame).unwrap();
    let text = open(&state, false).err().unwrap().to_string();
    assert!(text.contains("format 2") && text.contains("--ignore-state"), "{text}");
    std::fs::remove_file(state.join("key-secret")).unwrap();
    let text = open(&state, false).err().unwrap().to_string();
    assert!(text.contains("key-secret is missing"), "{text}");
    assert!(log.exists(), "a start that fails changes nothing");

    let anew = open(&state, true).unwrap();
    assert!(anew.summary().logs.is_empty());
    assert!(state.join("ignored-1800000000/log.0000000001").exists(), "the old files are kept");
    drop(anew);
    assert!(open(&state, false).is_ok());
}

/// Frames are numbered, so the next start misses what a removed or cut file held.
#[test]
fn a_log_that_was_removed_is_missed() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let mut disk = SimulatedDisk::new(1);
    for run in 0..4 {
        let mut node = Node::start(POLICY, &clock, &disk);
        node.saver = node.saver.with_min_round(u64::MAX);
        (0..if run == 0 { 40 } else { 1 }).for_each(|n| assert!(node.is_allowed("", &key(n))));
        node.saver.step(true);
        assert!(node.saver.finish());
        disk = disk.after_kill();
    }
    let read = |disk: &SimulatedDisk| Recovery::read(Arc::new(disk.clone()), FINGERPRINT).unwrap();
    let recovery = read(&disk);
    assert!(!recovery.summary().is_incomplete(), "{:?}", recovery.summary());
    let mut names = disk.names().unwrap();
    names.sort();
    let first = format!("log.{:010}", recovery.first_replayed().unwrap().max(1));
    names.retain(|name| *name >= first);
    assert!(names.len() >= 3, "{names:?}");
    // Nothing follows the last one, so nothing can tell that it was there.
    for name in &names[..names.len() - 1] {
        let left = disk.after_kill();
        left.remove(name).unwrap();
        let recovery = read(&left);
        assert!(recovery.summary().is_incomplete(), "{name}: {:?}", recovery.summary());
    }
}

#[test]
fn a_directory_of_something_else_is_no_place_for_the_state() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("passwd"), "root").unwrap();
    let text = open(folder.path(), false).err().unwrap().to_string();
    assert!(text.contains("name a directory of its own") && !text.contains("chmod"), "{text}");
}

/// Somebody removes the directory, and a successor that fails has written into a new one before its process notices. What the
/// process saves afterwards is believed, whatever the numbers of logs and frames there are.
#[test]
fn a_directory_that_somebody_else_has_written_to_is_gone_on_with() {
    const DATE: u64 = 1_800_000_000;
    for others in 1..6 {
        let clock = Arc::new(ManualClock::new(EPOCH));
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let directory = open(&state, false).unwrap();
        let secret = *directory.secret();
        let (mut node, lock) = Node::start_holding(POLICY, &clock, directory);
        assert!(node.is_allowed("", "k"));
        node.saver.step(true);
        std::fs::remove_dir_all(&state).unwrap();

        let open = || {
            let found = (FoundLogs::AreMoved, OtherSecret::IsRefused);
            StateDirectory::open_for_handover(&state, &secret, found, DATE).unwrap()
        };
        let (mut other, its_lock) = Node::start_holding(POLICY, &clock, open());
        other.saver = other.saver.with_min_round(1).that_lacks_cells();
        for _ in 0..others {
            assert!(other.is_allowed("", "k"));
            (0..3).for_each(|_| other.saver.step(true));
        }
        drop((other, its_lock));

        assert!(node.is_allowed("", "k"));
        for _ in 0..20 {
            node.saver.step(true);
            clock.advance(Nanos::from_secs(20));
        }
        let next = StateDirectory::open(&state, false, DATE);
        assert!(matches!(next, Err(StateError::InUse { .. })), "its lock is taken again");
        drop(lock);
        drop(node);
        let next =
            Node::start_in(POLICY, &clock, StateDirectory::open(&state, false, DATE).unwrap());
        assert_eq!(next.spent("writes", "k"), 2, "{others}");
        assert!(!next.found.is_incomplete(), "{others}");
    }
}

/// Starts within one second, as a service manager tries them again: what the first has put aside is what matters.
#[test]
fn what_was_put_aside_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let clock = Arc::new(ManualClock::new(EPOCH));
    let mut node = Node::start_in(POLICY, &clock, open(&state, false).unwrap());
    assert!(node.is_allowed("", "k"));
    assert!(node.saver.finish());
    drop(node);
    let read = |name: &str| std::fs::read(state.join(name)).unwrap();
    let (secret, log) = (read("key-secret"), read("log.0000000001"));
    for _ in 0..3 {
        drop(open(&state, true).unwrap());
    }
    assert_eq!(read("ignored-1800000000/key-secret"), secret);
    assert_eq!(read("ignored-1800000000/log.0000000001"), log);
    assert!(state.join("ignored-1800000000-3").is_dir(), "each start has one of its own");
}

/// The bytes of a log at which its frames of cells begin, and how many follow the head of each.
fn frames_of_cells(content: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut found) = (0, Vec::new());
    while content.len() >= at + 24 {
        let length = content[at + 8..at + 12].try_into().map(u32::from_le_bytes).unwrap() as usize;
        if content[at + 4] == 4 {
            found.push((at, length));
        }
        at += 24 + length;
    }
    found
}

/// The last complete round is damaged, so a start needs the one before. On a full disk that one stays until there is another.
#[test]
fn a_full_disk_keeps_the_round_that_stands_for_a_damaged_one() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let whole = written(&clock);
    let complete = Recovery::read(Arc::new(whole.after_kill()), FINGERPRINT).unwrap();
    let complete = format!("log.{:010}", complete.summary().complete.unwrap());
    for (at, length) in frames_of_cells(&whole.content(&complete)) {
        let disk = whole.after_kill();
        disk.damage(&complete, at + 24 + length / 2);
        let mut node = Node::start(POLICY, &clock, &disk);
        assert!(node.found.is_incomplete());
        disk.set_room(Some(100));
        for _ in 0..3 {
            assert!(node.is_allowed("", "new"));
            clock.advance(Nanos::from_secs(1));
            node.saver.step(true);
        }
        assert!(node.metrics.is_failing());
        let node = Node::start(POLICY, &clock, &disk.after_kill());
        for n in 0..50 {
            assert!(node.spent("writes", &key(n)) >= 1, "{at}: {n} is lost");
        }
    }
}

/// More damage than any crash leaves, and whole frames behind it.
#[test]
fn what_is_behind_many_damaged_frames_is_read() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let disk = SimulatedDisk::new(1);
    let mut node = Node::start(POLICY, &clock, &disk);
    node.saver = node.saver.with_min_round(u64::MAX);
    (0..20).for_each(|_| node.saver.step(true));
    for n in 0..600 {
        assert!(node.is_allowed("", &key(n)));
        node.saver.step(true);
    }
    assert!(node.saver.finish());
    let name = disk.names().unwrap().pop().unwrap();
    let frames = frames_of_cells(&disk.content(&name));
    assert!(frames.len() >= 600);
    let damaged = &frames[frames.len() - 550..frames.len() - 50];
    damaged.iter().for_each(|(at, _)| disk.damage(&name, at + 30));
    let node = Node::start(POLICY, &clock, &disk);
    assert!(node.found.damage.iter().all(|damage| !damage.is_tail), "{:?}", node.found.damage);
    for n in (0..50).chain(550..600) {
        assert_eq!(node.spent("writes", &key(n)), 1, "{n}");
    }
}

/// Heads of frames as large as frames may be, none of them whole: looking for the next whole one takes no longer than
/// reading the file a few times.
#[test]
#[expect(clippy::disallowed_methods, reason = "the time that it takes is what is tested")]
fn a_log_of_heads_is_read_in_bounded_time() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let whole = written(&clock);
    let name = whole.names().unwrap().pop().unwrap();
    let mut head = b"tgs1\x04\x00\x01\x00".to_vec();
    head.extend((tollgate::state::MAX_PAYLOAD as u32).to_le_bytes());
    head.extend([0; 12]);
    let behind = whole.content(&name);
    let mut content = head.repeat(8 * 1024 * 1024 / head.len());
    content.extend(&behind);
    let disk = whole.after_kill();
    disk.put(&name, content);
    let began = Instant::now();
    let node = Node::start(POLICY, &clock, &disk);
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    assert_eq!(node.spent("writes", "k1"), 2, "what is behind is found");
}

/// No process gets to such a number, and the log after it would have none.
#[test]
fn a_log_whose_number_leaves_none_for_the_next_is_refused_with_its_cure() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    drop(open(&state, false).unwrap());
    let last = state.join("log.9999999999");
    std::fs::write(&last, "").unwrap();
    let text = open(&state, false).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("log.9999999999") && text.contains("move it away"), "{text}");
    assert!(last.exists(), "a start that fails changes nothing");
    let anew = open(&state, true).unwrap();
    assert!(anew.summary().logs.is_empty() && !last.exists());
}

/// A process without a directory has a secret of its own. Whoever gives its successor one of an earlier run may ignore that.
#[test]
fn a_directory_of_another_secret_is_ignored_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let written = |name: &str| std::fs::read(state.join(name)).unwrap();
    drop(open(&state, false).unwrap());
    let secret = written("key-secret");
    let hand_over = |found, other| {
        StateDirectory::open_for_handover(&state, &[9; 16], (found, other), 1_800_000_000)
    };
    for found in [FoundLogs::AreMoved, FoundLogs::Stay] {
        let refused = hand_over(found, OtherSecret::IsRefused);
        assert!(matches!(refused, Err(StateError::Secret { .. })));
        assert_eq!(written("key-secret"), secret, "a refusal changes nothing");
    }
    drop(hand_over(FoundLogs::Stay, OtherSecret::IsIgnored).unwrap());
    assert_eq!(written("ignored-1800000000/key-secret"), secret);
    // From now on it is its own, and stays.
    drop(hand_over(FoundLogs::Stay, OtherSecret::IsIgnored).unwrap());
    assert!(!state.join("ignored-1800000000-2").exists());
    std::fs::write(state.join("key-secret"), "damaged").unwrap();
    assert!(hand_over(FoundLogs::Stay, OtherSecret::IsIgnored).is_ok());
    assert_eq!(written("ignored-1800000000-2/key-secret"), b"damaged");
}

/// The running process would hold a directory with its own secret. One that is held with another secret is that of a third process,
/// whose files stay whatever is asked for.
#[test]
fn a_directory_that_another_process_holds_is_not_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let check = || StateDirectory::check_for(&state, &[9; 16], OtherSecret::IsIgnored);
    let held = open(&state, false).unwrap();
    assert!(matches!(check(), Err(StateError::InUse { .. })));
    drop(held);
    assert!(check().is_ok());
}

/// A disk on which nothing can be written, as a full one, keeps the state that was to be ignored where it is.
#[test]
fn nothing_is_moved_away_if_nothing_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    drop(open(&state, false).unwrap());
    let secret = std::fs::read(state.join("key-secret")).unwrap();
    std::fs::create_dir(state.join("key-secret.new")).unwrap();
    assert!(matches!(open(&state, true), Err(StateError::Io { .. })));
    let handed = ([9; 16], (FoundLogs::Stay, OtherSecret::IsIgnored));
    let refused = StateDirectory::open_for_handover(&state, &handed.0, handed.1, 1_800_000_000);
    assert!(matches!(refused, Err(StateError::Io { .. })));
    assert_eq!(std::fs::read(state.join("key-secret")).unwrap(), secret);
    std::fs::remove_dir(state.join("key-secret.new")).unwrap();
    assert!(open(&state, false).is_ok(), "it is as it was");
}

#[test]
fn a_file_in_the_place_of_a_directory_is_called_one() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::write(&state, "notes").unwrap();
    let refused = open(&state, false).map(drop).unwrap_err().to_string();
    assert!(refused.contains("it is a file; name a directory"), "{refused}");
}

/// A lock that was removed lets another process in, while the first has not noticed yet and writes on. What the second saves is read
/// whatever the first has written beside it.
#[test]
fn who_comes_in_without_a_lock_is_not_taken_for_left_over() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let clock = Arc::new(ManualClock::new(EPOCH));
    let (mut first, _lock) = Node::start_holding(POLICY, &clock, open(&state, false).unwrap());
    let spend = |node: &mut Node, key: &str| {
        assert!(node.is_allowed("", key));
        clock.advance(Nanos::from_millis(100));
        node.saver.step(false);
    };
    spend(&mut first, "before");
    std::fs::remove_file(state.join("lock")).unwrap();
    let (mut second, lock) = Node::start_holding(POLICY, &clock, open(&state, false).unwrap());
    (0..5).for_each(|_| spend(&mut first, "first"));
    (0..3).for_each(|_| spend(&mut second, "second"));
    assert!(second.saver.finish());
    drop((second, lock));
    let next = Node::start_in(POLICY, &clock, open(&state, false).unwrap());
    assert_eq!((next.spent("writes", "second"), next.spent("writes", "before")), (3, 1));
    assert_eq!(next.unreadable, 0);
    assert!(next.found.damage.is_empty(), "{:?}", next.found.damage);
}

/// A log of the next number, such as one of a backup, does not keep this process from saving.
#[test]
fn a_log_of_somebody_else_in_the_way_is_moved_away() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let clock = Arc::new(ManualClock::new(EPOCH));
    let (mut node, lock) = Node::start_holding(POLICY, &clock, open(&state, false).unwrap());
    assert!(node.is_allowed("", "a"));
    node.saver.step(true);
    std::fs::write(state.join("log.0000000002"), "foreign").unwrap();
    std::fs::remove_file(state.join("log.0000000001")).unwrap();
    for _ in 0..3 {
        assert!(node.is_allowed("", "a"));
        clock.advance(Nanos::from_secs(2));
        node.saver.step(true);
    }
    assert!(node.saver.finish());
    drop((node, lock));
    let next = Node::start_in(POLICY, &clock, open(&state, false).unwrap());
    assert_eq!(next.spent("writes", "a"), 4);
}

/// Somebody removes the secret or the lock while a process runs. With its next sync it has both again: an orderly end leaves a
/// directory that the next start takes, and no other process gets in.
#[test]
fn the_secret_and_the_lock_come_back_while_the_process_runs() {
    for (name, replaced_with_mode) in [
        ("key-secret", None),
        ("key-secret", Some(0o600)),
        // Others can read it: a start would be refused.
        ("key-secret", Some(0o644)),
        ("lock", None),
    ] {
        for is_at_the_end in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let state = folder.path().join("state");
            let clock = Arc::new(ManualClock::new(EPOCH));
            let (mut node, lock) =
                Node::start_holding(POLICY, &clock, open(&state, false).unwrap());
            let spend_and_save = |node: &mut Node| {
                assert!(node.is_allowed("", "a"));
                clock.advance(Nanos::from_secs(2));
                node.saver.step(false);
            };
            spend_and_save(&mut node);
            std::fs::remove_file(state.join(name)).unwrap();
            if let Some(mode) = replaced_with_mode {
                use std::os::unix::fs::OpenOptionsExt as _;
                let mut file = std::fs::OpenOptions::new();
                let file = file.write(true).create_new(true).mode(mode).open(state.join(name));
                std::io::Write::write_all(&mut file.unwrap(), "7".repeat(32).as_bytes()).unwrap();
            }
            if !is_at_the_end {
                // The first finds it, the second makes it again.
                (0..2).for_each(|_| spend_and_save(&mut node));
                assert!(state.join(name).exists(), "{name}");
                assert!(matches!(open(&state, false), Err(StateError::InUse { .. })), "{name}");
            }
            assert!(node.saver.finish(), "{name}");
            let spent = node.spent("writes", "a");
            drop((node, lock));
            let next = Node::start_in(POLICY, &clock, open(&state, false).unwrap());
            assert!(next.found.is_clean, "{name}");
            assert_eq!(next.spent("writes", "a"), spent, "{name}");
        }
    }
}

/// What a process wrote into a log that is empty now is lost, so it is not known what was spent.
#[test]
fn an_empty_newest_log_is_no_orderly_end() {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let disk = written(&clock);
    assert!(Node::start(POLICY, &clock, &disk).found.is_clean);
    let last = disk.names().unwrap().into_iter().max().unwrap();
    let number: u64 = last.strip_prefix("log.").unwrap().parse().unwrap();
    disk.put(&format!("log.{:010}", number + 1), Vec::new());
    let found = Node::start(POLICY, &clock, &disk).found;
    assert!(!found.is_clean && !found.has_orderly_end);
}
