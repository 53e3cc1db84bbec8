//! Threads for each side, so that none waits for another within one runtime.

use tokio::runtime::{Builder, Runtime};

/// The least urgent of all (see nice(1)).
const NICEST: i32 = 19;

/// A runtime with threads of its own, so many steps nicer than this one. Hostile clients stand on other machines
/// in reality: here they yield the processor to the proxy and to the good client.
pub fn runtime(threads: usize, nicer: i32) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .on_thread_start(move || yield_to_others(nicer))
        .build()
        .unwrap()
}

fn yield_to_others(nicer: i32) {
    let own = Some(rustix::thread::gettid());
    let now = rustix::process::getpriority_process(own).unwrap_or(0);
    rustix::process::setpriority_process(own, (now + nicer).min(NICEST)).unwrap();
}

/// As many descriptors as the system allows.
pub fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}
