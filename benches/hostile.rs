//! What hostile clients take of a proxy, printed as a table: `make hostile-figures`. The clients are those of the soak.

use support::soak::figures;

fn main() {
    // `cargo test --benches` runs it without a word: it is no test.
    if std::env::args().any(|argument| argument == "--bench") {
        figures::print();
    }
}
