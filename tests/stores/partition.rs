//! Two nodes and a store on machines of their own (network namespaces), and a link that is cut.

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::charging::spent;
use support::servers::eventually;

/// Namespaces of this process, gone when dropped: `s` with the store, `a` and `b` with a node each,
/// linked to `s`.
struct Machines {
    prefix: String,
    children: Vec<Child>,
    folder: tempfile::TempDir,
}

fn run(words: &[&str]) -> Output {
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let mut command = Command::new(if root { words[0] } else { "sudo" });
    command.args(if root { &words[1..] } else { words });
    command.output().unwrap()
}

fn must(words: &[&str]) {
    let output = run(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Machines {
    fn new() -> Self {
        let prefix = format!("tg{}", std::process::id());
        let (s, a, b) = (format!("{prefix}s"), format!("{prefix}a"), format!("{prefix}b"));
        let folder = tempfile::tempdir().unwrap();
        for name in [&s, &a, &b] {
            must(&["ip", "netns", "add", name]);
            must(&["ip", "-n", name, "link", "set", "lo", "up"]);
        }
        for (n, name) in [(1, &a), (2, &b)] {
            let (far, near) = (format!("l{n}"), "up0");
            must(&[
                "ip", "-n", &s, "link", "add", &far, "type", "veth", "peer", "name", near, "netns",
                name,
            ]);
            let (store, node) = (format!("10.99.{n}.1/24"), format!("10.99.{n}.2/24"));
            must(&["ip", "-n", &s, "addr", "add", &store, "dev", &far]);
            must(&["ip", "-n", &s, "link", "set", &far, "up"]);
            must(&["ip", "-n", name, "addr", "add", &node, "dev", near]);
            must(&["ip", "-n", name, "link", "set", near, "up"]);
        }
        Self { prefix, children: Vec::new(), folder }
    }

    fn spawn(&mut self, machine: &str, words: &[&str], log: &str) {
        let name = format!("{}{machine}", self.prefix);
        let log = std::fs::File::create(self.folder.path().join(log)).unwrap();
        let child = Command::new("ip")
            .args(["netns", "exec", &name])
            .args(words)
            .env("XDG_RUNTIME_DIR", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.push(child);
    }

    fn node(&mut self, machine: &str, number: u8) {
        let file = self.folder.path().join(format!("{machine}.yaml"));
        let text = format!(
            "version: 1
listeners: [{{ address: 127.0.0.1:8080 }}]
admin: {{ address: 127.0.0.1:9900 }}
store: {{ redis: {{ url: redis://10.99.{number}.1:6379 }} }}
origins: {{ site: {{ servers: [127.0.0.1:1] }} }}
limits:
  one: {{ tier: exact, algorithm: fixed_window, rate: 10/30d, key: header:x-api-key, missing_key: deny }}
routes: [{{ name: r, limits: [one] }}]
"
        );
        std::fs::write(&file, text).unwrap();
        let words = [env!("CARGO_BIN_EXE_tollgate"), "run", "--config", file.to_str().unwrap()];
        self.spawn(machine, &words, &format!("{machine}.log"));
    }

    fn curl(&self, machine: &str, more: &[&str]) -> String {
        let name = format!("{}{machine}", self.prefix);
        let mut words = vec!["ip", "netns", "exec", &name, "curl", "-s", "-m", "5"];
        words.extend(more);
        String::from_utf8(run(&words).stdout).unwrap()
    }

    /// Of so many requests: how many were admitted (there is no origin: 502).
    fn admitted(&self, machine: &str, requests: usize) -> usize {
        let ask = |_| {
            let status =
                ["-o", "/dev/null", "-w", "%{http_code}", "-H", "x-api-key: k", "127.0.0.1:8080/"];
            self.curl(machine, &status)
        };
        let statuses: Vec<String> = (0..requests).map(ask).collect();
        assert!(statuses.iter().all(|one| one == "502" || one == "429"), "{statuses:?}");
        statuses.iter().filter(|one| *one == "502").count()
    }

    /// What the store knows to be spent.
    fn units(&self) -> u64 {
        let name = format!("{}s", self.prefix);
        let ask = |question: &[&str]| {
            let mut words = vec!["ip", "netns", "exec", &name, "redis-cli", "--raw"];
            words.extend(question);
            String::from_utf8(run(&words).stdout).unwrap().trim_end().to_owned()
        };
        let answer = |words: &[&str]| match words[0] {
            "TYPE" => redis::Value::SimpleString(ask(words)),
            _ => redis::Value::BulkString(ask(words).into_bytes()),
        };
        let keys = ask(&["KEYS", "tollgate:*"]);
        keys.lines().filter(|key| !key.contains("probe")).map(|cell| spent(&answer, cell)).sum()
    }

    async fn is(&self, machine: &str, word: &str) -> bool {
        let asked = eventually(Duration::from_secs(20), || async {
            self.curl(machine, &["127.0.0.1:9900/ready"]) == word
        });
        asked.await
    }

    fn log(&self, machine: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{machine}.log"))).unwrap()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for machine in ["s", "a", "b"] {
            run(&["ip", "netns", "del", &format!("{}{machine}", self.prefix)]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_judges_alone_and_the_other_goes_on() {
    let _alone = crate::alone().await;
    let mut machines = Machines::new();
    let redis = ["redis-server", "--port", "6379", "--protected-mode", "no", "--save", ""];
    machines.spawn("s", &redis, "s.log");
    machines.node("a", 1);
    machines.node("b", 2);
    assert!(machines.is("a", "ready\n").await && machines.is("b", "ready\n").await);
    assert_eq!(machines.admitted("a", 3) + machines.admitted("b", 3), 6);

    let b = format!("{}b", machines.prefix);
    must(&["ip", "-n", &b, "link", "set", "up0", "down"]);
    assert_eq!(machines.admitted("b", 12), 10, "alone, at the full rate, and not above it");
    assert!(machines.is("b", "degraded\n").await);
    assert!(machines.log("b").contains("is away"), "{}", machines.log("b"));
    assert_eq!(machines.admitted("a", 2), 2, "the other goes on with the one number");
    assert!(machines.is("a", "ready\n").await);

    must(&["ip", "-n", &b, "link", "set", "up0", "up"]);
    assert!(machines.is("b", "ready\n").await);
    // Of the first six, the other's two, and what it tells: more than eight.
    let told = eventually(Duration::from_secs(20), || async { machines.units() > 8 });
    assert!(told.await, "{} units", machines.units());
    assert_eq!(machines.admitted("a", 3), 0, "{}", machines.log("a"));
    assert_eq!(machines.admitted("b", 3), 0);
}
