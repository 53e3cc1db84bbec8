//! Every reader of foreign bytes against its oracle, on the inputs that `fuzz/corpus` holds: those
//! that reach different code, and those that once found a mistake. `make fuzz` looks for more.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tollgate_fuzz_targets as targets;

/// The fewest inputs of a corpus: fewer were lost on the way.
const MIN_INPUTS: usize = 10;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Gives a target every input of its corpus.
fn replay(name: &str) {
    let target = targets::ALL.iter().find(|(one, _)| *one == name).unwrap().1;
    let folder = corpus().join(name);
    let inputs = names(&folder);
    assert!(inputs.len() >= MIN_INPUTS, "{} of {name}", inputs.len());
    let fails = |input: &String| {
        let bytes = fs::read(folder.join(input)).unwrap();
        std::panic::catch_unwind(|| target(&bytes)).is_err()
    };
    let failed: Vec<String> = inputs.into_iter().filter(fails).collect();
    assert!(failed.is_empty(), "in fuzz/corpus/{name}: {failed:?}");
}

macro_rules! replays {
    ($($name:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($name)),*];
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*
    };
}

replays! {
    addresses chunks configurations heads hosts keys paths proxy_headers replies response_costs terms tokens
}

#[test]
fn every_target_is_replayed_and_fuzzed() {
    let targets: BTreeSet<String> =
        targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    let replayed: BTreeSet<String> = REPLAYED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(replayed, targets);
    assert_eq!(names(&corpus()), targets);
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let stems = |folder: &str| -> BTreeSet<String> {
        let stem = |name: String| name.split('.').next().unwrap().to_owned();
        names(&fuzz.join(folder)).into_iter().map(stem).collect()
    };
    assert_eq!(stems("src/bin"), targets);
    assert_eq!(stems("dictionaries"), targets);
}

/// Random words of JSON and of event streams: far more of them are nearly valid than random bytes are.
#[test]
fn bodies_of_random_words_are_read_as_the_reference_reads_them() {
    const WORDS: [&str; 48] = [
        "{",
        "}",
        "{",
        "}",
        "[",
        "]",
        ",",
        ",",
        ":",
        "\"a\":",
        "\"a\":",
        "\"b\":",
        "\"\\u0061\":",
        "\"a\"",
        "\"12\"",
        "\"\"",
        "1",
        "0",
        "-",
        "-1",
        "1.5",
        "15e-1",
        "1e2",
        "00",
        "123456789012345678901234567890",
        "true",
        "false",
        "null",
        "nul",
        " ",
        "\n",
        "\r",
        "\t",
        "\\",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\u{feff}",
        "é",
        "\"é\":",
        "data:",
        "data: ",
        "\ndata: ",
        "\n\n",
        "\r\n\r\n",
        "event: x\n",
        ": c\n",
        "[DONE]",
        "{\"a\":{\"b\":7}}",
    ];
    const POINTERS: [&str; 8] = ["/a", "/a/b", "/0", "/a/0/b", "e/a", "e/a/b", "e/0", "e/a/0"];
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20_000 {
        let mut input = format!("{}\n", POINTERS[random.usize(0..POINTERS.len())]);
        for _ in 0..random.usize(0..24) {
            input.push_str(WORDS[random.usize(0..WORDS.len())]);
        }
        targets::response_costs(input.as_bytes());
    }
}
