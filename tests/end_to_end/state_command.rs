//! `tollgate state` on directories that running processes wrote: whole ones, ones in use, damaged and hostile ones.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use support::servers::{Gate, Origin, client, eventually, origin_yaml};

const TOKEN: &str = "0123456789abcdef";

const POLICY: &str = "
store: { embedded: { state: state, flush: 10ms, sync: 20ms } }
limits:
  writes: { tier: exact, algorithm: fixed_window, rate: 5/30d, key: header:x-key, missing_key: skip, after_crash: deny }
  logins:
    { tier: exact, algorithm: token_bucket, rate: 1/1h, burst: 1, key: header:x-user, missing_key: skip,
      penalty: { after: 2, within: 1h, ban: 2h } }
routes: [{ name: all, limits: [writes, logins] }]
";

async fn gate(origin: &Origin) -> Gate {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("token"), TOKEN).unwrap();
    let policy = format!("  token_file: token\n{}{POLICY}", origin_yaml(origin.address));
    Gate::start_in(folder, &policy, "").await
}

fn state(folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("state").arg(folder).args(more).output().unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Names, contents, modes and times of everything in a folder.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u32, i64, i64)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let seen = files.filter(|path| path.is_file()).map(|path| {
        let metadata = fs::metadata(&path).unwrap();
        let seen = (metadata.mode(), metadata.mtime(), metadata.mtime_nsec());
        (path.clone(), (fs::read(&path).unwrap(), seen.0, seen.1, seen.2))
    });
    seen.collect()
}

/// Three keys with counts, one of them with a ban, and an operator's rule.
async fn spend(gate: &Gate) {
    for key in ["a", "b"] {
        let sent = client().get(gate.url("/")).header("x-key", key).send().await;
        assert_eq!(sent.unwrap().status(), 200);
    }
    for status in [200, 429, 429] {
        let sent = client().get(gate.url("/")).header("x-user", "eve").send().await;
        assert_eq!(sent.unwrap().status(), status);
    }
    let url = format!("http://127.0.0.1:{}/keys/override", gate.admin);
    let body =
        r#"{ "limit": "writes", "key": "c", "rate": "9/30d", "for": "1h", "reason": "load test" }"#;
    let made = client().post(url).bearer_auth(TOKEN).body(body).send().await.unwrap();
    assert_eq!(made.status(), 200, "{}", made.text().await.unwrap());
}

#[tokio::test]
async fn a_directory_is_shown_while_it_is_used_and_afterwards() {
    let origin = Origin::start("site").await;
    let mut gate = gate(&origin).await;
    let folder = gate.folder.path().join("state");
    spend(&gate).await;
    let secret = fs::read_to_string(folder.join("key-secret")).unwrap();
    let shown = || {
        let output = state(&folder, &["--verify"]);
        let told = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{told}{}", text(&output.stderr));
        assert!(!told.contains(secret.trim()) && text(&output.stderr).is_empty(), "{told}");
        told
    };
    let expected = [
        "  writes  2      fixed_window 5/30d  deny\n",
        "  logins  1      token_bucket 1/1h   allow\n",
        "  1 key banned, 1 key with denials\n",
        "  9/30d  ",
        "  load test\n",
        "  key-secret   the logs were written with it\n",
        "nothing is damaged\n",
    ];
    let is_shown = |told: &str| expected.iter().all(|line| told.contains(line));
    let saved = eventually(Duration::from_secs(10), || async { is_shown(&shown()) });
    assert!(saved.await, "{}", shown());
    let told = shown();
    assert!(told.contains(&format!("  in use       by process {}\n", gate.pid())), "{told}");
    assert!(told.contains("  last end     it runs\n"), "{told}");
    // Another start beside it is still refused by the lock, and the directory is as it was.
    assert!(text(&fs::read(folder.join("lock")).unwrap()).contains(&gate.pid().to_string()));

    gate.signal("TERM");
    assert!(gate.ended(Duration::from_secs(20)).await.is_some());
    let before = snapshot(&folder);
    let told = shown();
    assert!(is_shown(&told), "{told}");
    assert!(told.contains("  in use       by no process that can be seen\n"), "{told}");
    assert!(told.contains("  last end     orderly: nothing is lost\n"), "{told}");
    assert_eq!(snapshot(&folder), before, "nothing was written");

    // The next process has the directory, whatever looks into it while it starts.
    let (port, admin) = (gate.port, gate.admin);
    let mut next = Gate::run(Arc::clone(&gate.folder), port, admin, &[]);
    for _ in 0..20 {
        assert_eq!(state(&folder, &[]).status.code(), Some(0));
    }
    next.wait_ready().await;
    next.signal("KILL");
    assert!(next.ended(Duration::from_secs(5)).await.is_some());
    let told = shown();
    assert!(told.contains("  last end     a crash, a kill or a loss of power"), "{told}");
    assert!(is_shown(&told), "{told}");
}

#[tokio::test]
async fn what_is_damaged_is_shown_and_verify_fails() {
    let origin = Origin::start("site").await;
    let mut gate = gate(&origin).await;
    let folder = gate.folder.path().join("state");
    spend(&gate).await;
    gate.signal("TERM");
    assert!(gate.ended(Duration::from_secs(20)).await.is_some());
    let log = folder.join("log.0000000001");
    let whole = fs::read(&log).unwrap();
    let verified = |status: i32| {
        let output = state(&folder, &["--verify"]);
        let told = text(&output.stdout);
        assert_eq!(output.status.code(), Some(status), "{told}{}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("panicked"));
        told
    };
    verified(0);
    for at in (0..whole.len()).step_by(whole.len() / 10) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&log, bytes).unwrap();
        let told = verified(1);
        assert!(told.contains("damaged, and left out by a start\n"), "{at}: {told}");
        // Without --verify, the damage is shown, and the answer is no failure.
        let shown = state(&folder, &[]);
        assert_eq!(shown.status.code(), Some(0));
        assert!(text(&shown.stdout).contains("cannot be read\n"), "{}", text(&shown.stdout));
    }
    fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    assert!(verified(1).contains("log 1 ends after "));
    fs::write(&log, &whole).unwrap();
    // Another secret, one that is no secret, one that others may read, and none.
    let secret = folder.join("key-secret");
    let own = fs::read(&secret).unwrap();
    for (bytes, mode, expected) in [
        (&b"00000000000000000000000000000001"[..], 0o600, "with another one"),
        (b"\xff\xfe", 0o600, "key-secret"),
        (&own, 0o644, "others may use it"),
    ] {
        fs::write(&secret, bytes).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(mode)).unwrap();
        let told = verified(1);
        assert!(told.contains(expected), "{expected}: {told}");
    }
    fs::remove_file(&secret).unwrap();
    assert!(verified(1).contains("missing: no key can be found again"));
}

#[test]
fn what_is_no_state_directory_is_refused_with_a_cure() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path, expected: &str| {
        let output = state(path, &["--verify"]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with("tollgate state: ") && told.contains(expected), "{told}");
        assert!(!told.contains("panicked"), "{told}");
    };
    let cure = "name the directory in store.embedded.state";
    refused(&folder.path().join("none"), &format!("there is no such directory; {cure}"));
    refused(folder.path(), &format!("it holds no state: neither logs nor a key-secret; {cure}"));
    let log = folder.path().join("log.0000000001");
    let mut frame = b"tgs1\x01\x00\x02\x00".to_vec();
    frame.extend([0; 16]);
    fs::write(&log, frame).unwrap();
    refused(&log, &format!("this is no directory; {cure}"));
    refused(folder.path(), "written in format 2, and this tollgate reads format 1; start the");
    // A pipe that nobody writes to is not waited for.
    fs::remove_file(&log).unwrap();
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    refused(folder.path(), "is no regular file");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    refused(folder.path(), "is no regular file");
    assert_eq!(state(folder.path(), &["--unknown"]).status.code(), Some(2));
}
