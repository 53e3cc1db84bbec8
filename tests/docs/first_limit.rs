//! The guide `first-limit.md`, run from its first block to its last: each policy is saved, each command is run in one
//! folder, and what the guide shows is what was printed.
//!
//! Ports of the guide are replaced by free ones, and `pidof` by the process that the guide has started. A block of text
//! follows the commands that print it. Its lines stand in the output in the same order; `..` stands for lines that are left
//! out. In `text,varies` numbers are not compared, because they depend on when the test runs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::servers::{Origin, client, eventually, free_port, metric};
use support::wait::stands_still;

use super::pages::{self, Block};

/// Longer than a slow machine needs to start or to reload.
const PATIENCE: Duration = Duration::from_secs(30);

/// A policy is saved, commands are run.
struct Walk {
    folder: tempfile::TempDir,
    /// Texts of the guide, and what stands for them here.
    replaced: Vec<(String, String)>,
    admin: u16,
    server: Option<Child>,
    printed: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_the_guide_does_what_it_says() {
    let all = pages::all();
    let guide = all.iter().find(|page| page.file.ends_with("first-limit.md")).unwrap();
    let origin = Origin::start("shop").await;
    let mut walk = Walk::new(&origin);
    let mut compared = 0;
    for block in guide.blocks() {
        match block.language.as_str() {
            "yaml" => walk.save(&block),
            "sh" => walk.run(&block).await,
            "text" | "text,varies" => {
                walk.compare(&block);
                compared += 1;
            }
            other => panic!("line {}: {other:?} is no kind of step", block.line),
        }
    }
    assert!(compared >= 5, "{compared} outputs are shown");
    assert!(walk.server.is_some(), "the guide starts tollgate");
    assert!(origin.count() > 0, "the guide sends requests");
}

impl Walk {
    fn new(origin: &Origin) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = pages::root().join("tests/fixtures/replay/yesterday.log");
        std::fs::copy(log, folder.path().join("yesterday.log")).unwrap();
        let (port, admin) = (free_port(), free_port());
        let replaced = [
            ("127.0.0.1:8080", format!("127.0.0.1:{port}")),
            ("127.0.0.1:9900", format!("127.0.0.1:{admin}")),
            ("127.0.0.1:9000", origin.address.to_string()),
        ];
        let replaced = replaced.map(|(text, here)| (text.to_owned(), here)).to_vec();
        Self { folder, replaced, admin, server: None, printed: String::new() }
    }

    /// The text of a block, as it is here.
    fn here(&self, text: &str) -> String {
        let replaced = self.replaced.iter();
        replaced.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    fn save(&self, block: &Block) {
        std::fs::write(self.folder.path().join("policy.yaml"), self.here(&block.text)).unwrap();
    }

    async fn run(&mut self, block: &Block) {
        let text = self.here(&block.text);
        if let Some(words) = text.strip_prefix("tollgate run ") {
            self.serve(words.trim()).await;
            return;
        }
        if text.contains("access.log") {
            self.wait_for_log().await;
        }
        let reloads = text.contains("kill -HUP");
        let before = if reloads { self.reloads().await } else { 0.0 };
        let output = self.command("sh").args(["-euc", &text]).output().unwrap();
        self.printed = String::from_utf8(output.stdout).unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "line {}: {}{complaints}", block.line, self.printed);
        if reloads {
            self.wait_for_reload(before).await;
        }
    }

    /// A command in the folder, which finds the program by its name.
    fn command(&self, name: &str) -> Command {
        let folder = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(name);
        command.current_dir(self.folder.path()).env("PATH", format!("{}:{path}", folder.display()));
        command
    }

    /// Starts tollgate, which runs until the walk ends.
    async fn serve(&mut self, words: &str) {
        let complaints = std::fs::File::create(self.folder.path().join("stderr")).unwrap();
        let mut command = self.command(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("run").args(words.split(' ')).env("XDG_RUNTIME_DIR", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
        let server = command.spawn().unwrap();
        self.replaced.push(("\"$(pidof tollgate)\"".to_owned(), server.id().to_string()));
        self.server = Some(server);
        let url = format!("http://127.0.0.1:{}/ready", self.admin);
        let up = eventually(PATIENCE, || async {
            client().get(&url).send().await.is_ok_and(|answer| answer.status() == 200)
        });
        assert!(up.await, "tollgate did not start: {}", self.complaints());
    }

    fn complaints(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Lines are written after the answers to their requests.
    async fn wait_for_log(&self) {
        let log = self.folder.path().join("access.log");
        let length = || std::fs::metadata(&log).map_or(0, |log| log.len());
        assert!(stands_still(PATIENCE, 10, length).await, "the log is still written");
    }

    async fn reloads(&self) -> f64 {
        let url = format!("http://127.0.0.1:{}/metrics", self.admin);
        let text = client().get(url).send().await.unwrap().text().await.unwrap();
        metric(&text, "tollgate_config_reloads_total{outcome=\"applied\"}")
    }

    async fn wait_for_reload(&self, before: f64) {
        let applied = eventually(PATIENCE, || async { self.reloads().await > before });
        assert!(applied.await, "the reload was not applied: {}", self.complaints());
    }

    fn compare(&self, block: &Block) {
        let varies = block.language == "text,varies";
        let line_of = |line: &str| if varies { without_numbers(line) } else { line.to_owned() };
        let mut printed = self.printed.lines().map(line_of);
        for line in block.text.lines().filter(|line| line.trim() != "..") {
            let line = line_of(line);
            let is_there = printed.any(|other| other == line);
            assert!(is_there, "line {}: {line:?} is not in\n{}", block.line, self.printed);
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The words of a line with `0` for each number: columns are as wide as their numbers, and bars as high.
fn without_numbers(line: &str) -> String {
    let is_bar = |c: char| c == '·' || ('▁'..='█').contains(&c);
    let words = line.split_whitespace().map(|word| {
        let mut text = String::new();
        for letter in word.chars() {
            let shown = if is_bar(letter) || letter.is_ascii_digit() { '0' } else { letter };
            let goes_on = matches!(shown, '0' | ',' | '.') && text.ends_with('0');
            if !goes_on {
                text.push(shown);
            }
        }
        text
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn numbers_are_left_out_and_nothing_else() {
    let check = |line: &str, expected: &str| assert_eq!(without_numbers(line), expected);
    check("  pages  60/1m     1,234  5.50 %", "pages 0/0m 0 0 %");
    check("over time   ·▁█  up to 7 in 2 s", "over time 0 up to 0 in 0 s");
    check("between 0 and 12 requests.", "between 0 and 0 requests.");
}
