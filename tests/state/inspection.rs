//! Looking into directories without restoring them: what is counted, and bytes that are damaged or hostile.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tollgate::clock::{ManualClock, Nanos};
use tollgate::engine::SavedContents;
use tollgate::state::{
    DirectoryUse, Inspection, SecretFinding, StateDirectory, StateDisk as _, StateError,
    StateMetrics,
};

use crate::disk::SimulatedDisk;
use crate::node::{EPOCH, Node};

const POLICY: &str = "
limits:
  writes: { tier: exact, algorithm: sliding_log, rate: 3/1h, key: header:x-key, missing_key: deny }
  reads: { tier: exact, rate: 100/1h, key: header:x-key, missing_key: deny }
routes:
  - { name: writes, match: { path: /writes }, limits: [writes] }
  - { name: all, limits: [reads] }
";

/// A disk that 20 keys have written to under one limit, and 5 under the other.
fn written() -> SimulatedDisk {
    let clock = Arc::new(ManualClock::new(EPOCH));
    let disk = SimulatedDisk::new(1);
    let mut node = Node::start(POLICY, &clock, &disk);
    node.saver = node.saver.with_min_round(1);
    for n in 0..20 {
        assert!(node.is_allowed("writes", &format!("k{n}")));
        assert!(n % 4 > 0 || node.is_allowed("", &format!("k{n}")));
        clock.advance(Nanos::from_millis(100));
        node.saver.step(true);
    }
    assert!(node.saver.finish());
    disk
}

fn put(folder: &Path, disk: &SimulatedDisk) {
    for name in disk.names().unwrap() {
        fs::write(folder.join(&name), disk.content(&name)).unwrap();
    }
}

fn contents(found: &Inspection, older: bool) -> std::io::Result<SavedContents> {
    let mut contents = SavedContents::default();
    found.recovery().replay(&StateMetrics::default(), |frame| contents.read(&frame))?;
    if older {
        found.recovery().visit_older(|frame| contents.read(&frame))?;
    }
    Ok(contents)
}

fn cells(contents: &SavedContents) -> Vec<(String, u64)> {
    contents.limits().into_iter().map(|limit| (limit.name, limit.cells)).collect()
}

#[test]
fn each_cell_is_counted_once_under_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), &written());
    let looked = Inspection::with(folder.path(), |found| {
        assert!(matches!(found.secret(), SecretFinding::Missing));
        assert_eq!(found.usage(), DirectoryUse::Unused);
        assert!(found.summary().is_clean && found.damage().next().is_none());
        let contents = contents(found, false)?;
        assert_eq!((contents.unreadable(), contents.banned(Nanos::ZERO)), (0, 0));
        Ok(cells(&contents))
    });
    assert_eq!(looked.unwrap(), [("reads".to_owned(), 5), ("writes".to_owned(), 20)]);
}

#[test]
fn a_directory_in_use_is_known_by_its_holder_and_stays_usable() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let open = || StateDirectory::open(&state, false, 1_800_000_000);
    let held = open().unwrap();
    let usage = || Inspection::with(&state, |found| Ok(found.usage())).unwrap();
    assert_eq!(usage(), DirectoryUse::By(std::process::id()));
    // What the lock file says is not believed.
    fs::write(state.join("lock"), "\u{ff}not a number, and far too long to be one").unwrap();
    assert_eq!(usage(), DirectoryUse::By(std::process::id()), "the system knows who holds it");
    drop(held);
    fs::write(state.join("lock"), std::process::id().to_string()).unwrap();
    assert_eq!(usage(), DirectoryUse::Unused, "the process lives, and uses it no more");
    // Looking on never refuses a start.
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            (0..200).map(|_| usage()).filter(|usage| *usage == DirectoryUse::Unknown).count()
        });
        for _ in 0..200 {
            open().unwrap();
        }
        assert_eq!(looking.join().unwrap(), 0);
    });
}

#[test]
fn damage_is_found_wherever_it_is() {
    let whole = written();
    let names = whole.names().unwrap();
    assert!(names.len() >= 2, "{names:?}");
    let folder = tempfile::tempdir().unwrap();
    for name in &names {
        for at in (0..whole.content(name).len()).step_by(11) {
            let disk = whole.after_kill();
            disk.damage(name, at);
            put(folder.path(), &disk);
            let looked = Inspection::with(folder.path(), |found| {
                let counted = cells(&contents(found, true)?);
                Ok((found.damage().count(), counted))
            });
            let (damage, counted) = looked.unwrap();
            assert!(damage > 0, "{name} {at}");
            assert!(counted.iter().all(|(_, cells)| *cells <= 20), "{name} {at}: {counted:?}");
        }
    }
    // A frame that is cut out between two others is missing by its number.
    put(folder.path(), &whole);
    let name = names.last().unwrap();
    let mut bytes = whole.content(name);
    let starts: Vec<usize> =
        (0..bytes.len() - 4).filter(|at| bytes[*at..].starts_with(b"tgs1")).collect();
    bytes.drain(starts[1]..starts[2]);
    fs::write(folder.path().join(name), bytes).unwrap();
    let missing = Inspection::with(folder.path(), |found| {
        assert_eq!(found.damage().count(), 0);
        Ok(found.summary().logs.iter().map(|log| log.missing).sum::<u64>())
    });
    assert_eq!(missing.unwrap(), 1);
}

/// Whole frames, so that their checksums are right, with payloads of random bytes: of every kind, with the numbers that a
/// frame may have at most.
#[test]
fn hostile_frames_are_counted_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let (mut read, mut unreadable) = (0, 0);
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut log, mut sequence) = (Vec::new(), 0);
        for _ in 0..random.usize(1..6) {
            let length = random.usize(..200);
            let payload: Vec<u8> = match random.bool() {
                true => (0..length).map(|_| random.u8(..)).collect(),
                false => vec![if random.bool() { 0xff } else { random.u8(..4) }; length],
            };
            // What does not ascend is skipped.
            sequence = if random.u8(..10) == 0 {
                u64::MAX
            } else {
                u64::saturating_add(sequence, random.u64(..3))
            };
            log.extend(frame(random.u8(1..=11), random.u8(..8), sequence, &payload));
        }
        fs::write(folder.path().join("log.5000000000"), &log).unwrap();
        fs::write(folder.path().join("log.18446744073709551615"), &log).unwrap();
        fs::write(folder.path().join("log.+7"), &log).unwrap();
        let looked = Inspection::with(folder.path(), |found| {
            assert_eq!(found.summary().logs.len(), 1, "other names are no logs");
            contents(found, true)
        });
        match looked {
            Ok(contents) => {
                read += 1;
                unreadable += contents.unreadable();
            }
            Err(error) => assert!(matches!(error, StateError::Io { .. }), "{seed}: {error}"),
        }
    }
    assert!(read > 1_900 && unreadable > 1_000, "{read} {unreadable}");
}

fn frame(kind: u8, group: u8, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = b"tgs1".to_vec();
    frame.extend([kind, group, 1, 0]);
    frame.extend((payload.len() as u32).to_le_bytes());
    frame.extend(sequence.to_le_bytes());
    let checksum = crc32(&[&frame[..], payload].concat());
    frame.extend(checksum.to_le_bytes());
    frame.extend(payload);
    frame
}

/// CRC-32 of IEEE 802.3, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let rest = bytes.iter().fold(u32::MAX, |rest, byte| {
        (0..8).fold(rest ^ u32::from(*byte), |rest, _| {
            (rest >> 1) ^ (0xedb8_8320 & (rest & 1).wrapping_neg())
        })
    });
    !rest
}
