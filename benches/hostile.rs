//! What hostile clients take of a proxy, printed as a table: `make hostile-figures`. The clients are those of the soak.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that meets what it does not expect shall fail"
)]
#![expect(unreachable_pub, reason = "a program exports nothing")]

#[path = "../tests/support/certificates.rs"]
#[expect(dead_code, reason = "the soak uses the rest")]
mod certificates;
#[path = "../tests/soak/figures.rs"]
mod figures;
#[path = "../tests/support/frames.rs"]
#[expect(dead_code, reason = "the end-to-end tests use the rest")]
mod frames;
#[path = "../tests/soak/hostile/mod.rs"]
#[expect(dead_code, reason = "the soak uses the rest")]
mod hostile;
#[path = "../tests/soak/origin.rs"]
mod origin;
#[path = "../tests/end_to_end/servers.rs"]
#[expect(dead_code, reason = "the end-to-end tests use the rest")]
mod servers;
#[path = "../tests/soak/site.rs"]
#[expect(dead_code, reason = "the soak uses the rest")]
mod site;
#[path = "../tests/soak/threads.rs"]
mod threads;
#[path = "../tests/soak/watch.rs"]
#[expect(dead_code, reason = "the soak uses the rest")]
mod watch;

fn main() {
    // `cargo test --benches` runs it without a word: it is no test.
    if std::env::args().any(|argument| argument == "--bench") {
        figures::print();
    }
}
