//! Debian's own attacker, `slowhttptest`, in each of its four modes.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::NICER;
use crate::wait::eventually_in_thread;

/// Connections of each of the four.
const CONNECTIONS: &str = "100";

/// New ones in a second.
const RATE: &str = "20";

/// Longer than any test lasts, in seconds: they are ended with it.
const LONGEST: &str = "86400";
const LONGEST_SECONDS: u64 = 86_400;

/// Slow heads, slow bodies, ranges, slow reading. (The tool itself stops when its connections have all been
/// closed, so these begin anew.)
const MODES: [&[&str]; 4] = [
    &["-H", "-i", "4"],
    &["-B", "-i", "4", "-s", "8192", "-x", "10"],
    &["-R", "-a", "10", "-b", "3000"],
    &["-X", "-w", "1", "-y", "10", "-n", "2", "-z", "1", "-k", "3"],
];

/// Before one that has ended is started again.
const PAUSE: Duration = Duration::from_millis(200);

/// The running ones; they end when this is dropped.
pub(super) struct Tools {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Tools {
    pub(super) fn start(to: SocketAddr) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let threads = MODES.iter().map(|mode| {
            let ends = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    attack(to, mode, &ends);
                }
            })
        });
        let threads = threads.collect();
        Self { stop, threads }
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// One run of the tool, to its own end or until it is to stop.
fn attack(to: SocketAddr, mode: &[&str], stop: &AtomicBool) {
    let mut child = spawn(to, mode);
    let stopped = || stop.load(Ordering::Relaxed).then_some(());
    eventually_in_thread(Duration::from_secs(LONGEST_SECONDS), || {
        stopped().or(child.try_wait().unwrap().map(drop))
    });
    let _ = child.kill();
    let _ = child.wait();
    eventually_in_thread(PAUSE, stopped);
}

fn spawn(to: SocketAddr, mode: &[&str]) -> Child {
    Command::new("nice")
        .args(["-n", &NICER.to_string(), "slowhttptest"])
        .args(["-c", CONNECTIONS, "-r", RATE, "-l", LONGEST, "-p", "5"])
        .args(["-u", &format!("http://{to}/big")])
        .args(mode)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("slowhttptest is installed by make test")
}
