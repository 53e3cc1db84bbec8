//! Real servers: one, one with a replica and sentinels, a Cluster of three with replicas. Started
//! on free ports, ended when dropped.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::FromRedisValue;

use support::servers::{eventually, free_port, signal};

/// One server.
pub struct Redis {
    pub port: u16,
    pub folder: tempfile::TempDir,
    child: Child,
    program: String,
    more: Vec<String>,
}

fn spawn(program: &str, folder: &tempfile::TempDir, port: u16, more: &[String]) -> Child {
    Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .arg("--dir")
        .arg(folder.path())
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Redis {
    pub async fn start(more: &[&str]) -> Self {
        Self::start_on(free_port(), more).await
    }

    pub async fn start_on(port: u16, more: &[&str]) -> Self {
        Self::start_program("redis-server", port, more).await
    }

    /// Another program that takes the same words.
    pub async fn start_as(program: &str) -> Self {
        Self::start_program(program, free_port(), &[]).await
    }

    async fn start_program(program: &str, port: u16, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let child = spawn(program, &folder, port, &more);
        let redis = Self { port, folder, child, program: program.to_owned(), more };
        redis.wait().await;
        redis
    }

    async fn wait(&self) {
        let up = eventually(Duration::from_secs(20), || async {
            let answer = self.try_ask::<String>(&["PING"]);
            answer.is_ok() || answer.is_err_and(|error| error.code().is_some())
        });
        assert!(up.await, "redis-server does not start on {}", self.port);
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `url: ".."`.
    pub fn yaml(&self) -> String {
        format!("url: \"{}\"", self.url())
    }

    pub fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&words[1..]);
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
        cmd.query(&mut connection)
    }

    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap()
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, with what it kept.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.folder, self.port, &self.more);
        self.wait().await;
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three masters, each with a replica.
pub struct Cluster {
    pub servers: Vec<Redis>,
}

impl Cluster {
    pub async fn start() -> Self {
        let mut servers = Vec::new();
        for _ in 0..6 {
            let bus = free_port().to_string();
            let more = [
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-node-timeout",
                "1000",
            ];
            servers.push(Redis::start(&more).await);
        }
        let addresses = servers.iter().map(|one| format!("127.0.0.1:{}", one.port));
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Self { servers };
        let whole = eventually(Duration::from_secs(20), || async {
            cluster.servers.iter().all(|one| {
                let told: String = one.ask(&["CLUSTER", "INFO"]);
                told.contains("cluster_state:ok") && told.contains("cluster_known_nodes:6")
            })
        });
        assert!(whole.await, "the Cluster does not come together");
        let fed = eventually(Duration::from_secs(20), || async {
            cluster.servers.iter().all(|one| {
                let told: String = one.ask(&["INFO", "replication"]);
                told.contains("role:master") || told.contains("master_link_status:up")
            })
        });
        assert!(fed.await, "the replicas do not follow");
        cluster
    }

    /// `cluster: [..]`, of two of them.
    pub fn yaml(&self) -> String {
        format!("cluster: [\"{}\", \"{}\"]", self.servers[0].url(), self.servers[1].url())
    }

    /// The masters, by what they say of themselves.
    pub fn masters(&self) -> Vec<usize> {
        let masters = self.servers.iter().enumerate().filter(|(_, one)| {
            one.try_ask::<Vec<redis::Value>>(&["ROLE"]).is_ok_and(|role| {
                matches!(role.first(), Some(redis::Value::BulkString(word)) if word == b"master")
            })
        });
        masters.map(|(place, _)| place).collect()
    }
}

/// A master, a replica and three sentinels that call the master `edge`.
pub struct Watched {
    pub master: Redis,
    pub replica: Redis,
    pub sentinels: Vec<Redis>,
}

impl Watched {
    pub async fn start() -> Self {
        let master = Redis::start(&[]).await;
        let port = master.port.to_string();
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let folder = tempfile::tempdir().unwrap();
            let own = free_port();
            let file = folder.path().join("sentinel.conf");
            let text = format!(
                "port {own}\nbind 127.0.0.1\nsentinel monitor edge 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds edge 500\nsentinel failover-timeout edge 3000\n"
            );
            std::fs::write(&file, text).unwrap();
            let child = Command::new("redis-server")
                .arg(&file)
                .arg("--sentinel")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let program = "redis-server".to_owned();
            let sentinel = Redis { port: own, folder, child, program, more: Vec::new() };
            sentinel.wait().await;
            sentinels.push(sentinel);
        }
        let watched = Self { master, replica, sentinels };
        let ready = eventually(Duration::from_secs(20), || async {
            let told: String = watched.master.ask(&["INFO", "replication"]);
            let all = watched.sentinels.iter().all(|one| {
                let told: String = one.ask(&["INFO", "sentinel"]);
                told.contains("slaves=1,sentinels=3")
            });
            told.contains("state=online") && all
        });
        assert!(ready.await, "the sentinels do not see each other");
        watched
    }

    pub fn yaml(&self) -> String {
        let urls: Vec<String> =
            self.sentinels.iter().map(|one| format!("\"{}\"", one.url())).collect();
        format!("sentinel: {{ urls: [{}], master: edge }}", urls.join(", "))
    }
}
