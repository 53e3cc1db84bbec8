//! The last lines of the access log: over the admin API, with `tollgate ctl log`, and from there into `tollgate replay`.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use support::servers::{
    Gate, Origin, Reloaded, client, eventually, origin_yaml, read, resident_kib,
};

const TOKEN: &str = "0123456789abcdef";

const SHOWN: &str = "  show_addresses: true\n";

const LIMITS: &str = "
clients: { trusted_proxies: [127.0.0.0/8] }
limits:
  few: { tier: exact, rate: 3/1h, key: client_ip }
  keyed: { tier: exact, algorithm: token_bucket, rate: 2/1h, burst: 2, key: header:x-api-key, missing_key: skip }
routes:
  - { name: keyed, match: { path: /keyed/** }, limits: [keyed] }
  - { name: few, match: { path: /few/** }, limits: [few] }
  - { name: site }
check: { silence: [spoofable-key] }
";

fn policy(origin: &Origin, admin: &str, log: &str) -> String {
    format!("{admin}{}{LIMITS}access_log: {{ {log} }}\n", origin_yaml(origin.address))
}

const REPLAYED: &str = "to: ./access.log, replay: true";

fn run(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command that refuses reads nothing.
    let written = std::thread::spawn(move || drop(pipe.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    written.join().unwrap();
    output
}

fn ctl(gate: &Gate, args: &[&str]) -> Output {
    let admin = format!("http://127.0.0.1:{}", gate.admin);
    run(&[&["ctl", "--admin", &admin, "log"], args].concat(), b"")
}

/// The lines of the file, once there are so many.
async fn logged(gate: &Gate, count: usize) -> Vec<String> {
    let file = gate.folder.path().join("access.log");
    let all = eventually(Duration::from_secs(20), || async {
        let text = read(&file);
        text.lines().count() >= count && (text.is_empty() || text.ends_with('\n'))
    });
    assert!(all.await, "{count} lines: {}", read(&file).lines().count());
    read(&file).lines().map(str::to_owned).collect()
}

struct Page {
    lines: Vec<String>,
    bytes: usize,
    fields: HeaderMap,
}

impl Page {
    fn number(&self, name: &str) -> u64 {
        self.fields[name].to_str().unwrap().parse().unwrap()
    }
}

async fn page(gate: &Gate, query: &str) -> Page {
    let answer = client().get(format!("http://127.0.0.1:{}/log{query}", gate.admin)).send();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200, "{query}: {:?}", answer.text().await);
    let fields = answer.headers().clone();
    assert_eq!(fields["content-type"], "application/x-ndjson");
    assert_eq!(fields["cache-control"], "no-store");
    let text = answer.text().await.unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    Page { lines: text.lines().map(str::to_owned).collect(), bytes: text.len(), fields }
}

/// All pages, from the first one that a query names.
async fn pages(gate: &Gate, query: &str) -> Vec<Page> {
    let mut pages = vec![page(gate, query).await];
    while let Some(last) = pages.last()
        && last.number("x-tollgate-next") < last.number("x-tollgate-last")
    {
        let next = last.number("x-tollgate-next");
        pages.push(page(gate, &format!("?after={next}")).await);
    }
    pages
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_unstable();
    lines
}

async fn problem(gate: &Gate, query: &str) -> (u16, String) {
    let (status, text) = gate.admin_get(&format!("/log{query}")).await.unwrap();
    let problem: Value = serde_json::from_str(&text).unwrap();
    (status, problem["detail"].as_str().unwrap().to_owned())
}

/// Requests with long lines, several at a time.
async fn send_long(gate: &Gate, count: usize) {
    const AT_ONCE: usize = 8;
    let client = client();
    let senders = (0..AT_ONCE).map(|sender| {
        let (client, url) = (client.clone(), gate.url(&format!("/{}", "p".repeat(900))));
        tokio::spawn(async move {
            for n in (sender..count).step_by(AT_ONCE) {
                let request =
                    client.get(format!("{url}/{n}")).header("user-agent", "a".repeat(900));
                assert_eq!(request.send().await.unwrap().status(), 200);
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_have_the_lines_of_the_log_until_a_reload_gives_their_memory_back() {
    const LINES: usize = 5_000;
    let origin = Origin::start("site").await;
    let with = policy(&origin, SHOWN, REPLAYED);
    let gate = Gate::start(&with).await;
    let before = client().get(gate.url("/before")).send().await.unwrap();
    assert_eq!(before.status(), 200);
    logged(&gate, 1).await;
    let one = page(&gate, "").await;
    let since = one.fields["x-tollgate-kept-since"].to_str().unwrap().to_owned();
    let base = one.number("x-tollgate-next") - 1;
    let end = base + LINES as u64;
    send_long(&gate, LINES - 1).await;
    let logged_lines = sorted(logged(&gate, LINES).await);

    let all = pages(&gate, "").await;
    assert!(all.len() > 8 && all.iter().all(|page| page.bytes <= 1 << 20), "{}", all.len());
    assert!(all[..all.len() - 1].iter().all(|page| page.bytes > (1 << 20) - 4_096));
    let first = &all[0];
    assert_eq!(first.fields["x-tollgate-kept-since"], &*since, "all since the start");
    assert_eq!(first.number("x-tollgate-last"), end);
    assert!(all.iter().all(|page| page.number("x-tollgate-dropped") == 0));
    let read_lines: Vec<String> = all.into_iter().flat_map(|page| page.lines).collect();
    assert!(sorted(read_lines) == logged_lines);
    // A date has the same syntax as at /refusals.
    for query in [format!("?since={since}"), "?since=1h".to_owned(), format!("?after={base}")] {
        let lines: usize = pages(&gate, &query).await.iter().map(|page| page.lines.len()).sum();
        assert_eq!(lines, LINES, "{query}");
    }
    for query in ["?since=2999-01-01T00:00:00Z".to_owned(), format!("?after={end}")] {
        let page = page(&gate, &query).await;
        assert_eq!((page.lines.len(), page.number("x-tollgate-next")), (0, end));
        assert!(page.fields.get("x-tollgate-kept-since").is_none(), "{query}");
    }
    let output = ctl(&gate, &[]);
    assert_eq!(output.status.code(), Some(0));
    let written = String::from_utf8(output.stdout).unwrap();
    assert!(sorted(written.lines().map(str::to_owned).collect()) == logged_lines);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        told,
        format!(
            "tollgate ctl: lines of the access log are kept since {since}; earlier ones are missing\n"
        )
    );

    let full = resident_kib(gate.pid());
    let without = policy(&origin, SHOWN, "to: ./access.log");
    assert_eq!(gate.reload(&without, "").await, Reloaded::Applied);
    let (status, detail) = problem(&gate, "").await;
    assert_eq!((status, detail.contains("access_log: { replay: true }")), (404, true), "{detail}");
    let bytes: usize = logged_lines.iter().map(|line| line.len() + 1).sum();
    assert!(bytes > 8 << 20, "{bytes}");
    let given_back = eventually(Duration::from_secs(30), || async {
        full.saturating_sub(resident_kib(gate.pid())) > bytes as u64 / 1024 / 2
    });
    assert!(given_back.await, "{full} KiB, then {} KiB", resident_kib(gate.pid()));
    assert_eq!(gate.reload(&with, "").await, Reloaded::Applied);
    client().get(gate.url("/again")).send().await.unwrap();
    let is_there = async || page(&gate, "").await.lines.len() == 1;
    assert!(eventually(Duration::from_secs(10), is_there).await);
    let again = page(&gate, &format!("?after={}", end - 2)).await;
    assert!(again.lines[0].contains("/again"), "{:?}", again.lines);
    assert_eq!(again.number("x-tollgate-dropped"), 2, "numbers go on");
}

#[tokio::test]
async fn a_head_request_has_the_fields_of_the_page() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&policy(&origin, SHOWN, REPLAYED)).await;
    for n in 0..3 {
        client().get(gate.url(&format!("/{n}"))).send().await.unwrap();
        logged(&gate, n + 1).await;
    }
    let first = page(&gate, "").await.number("x-tollgate-last") - 2;
    let page = page(&gate, &format!("?after={first}")).await;
    assert_eq!(page.lines, logged(&gate, 3).await[1..], "in the order of the log");
    let url = format!("http://127.0.0.1:{}/log?after={first}", gate.admin);
    let head = client().head(url).send().await.unwrap();
    assert_eq!((head.status().as_u16(), head.version()), (200, reqwest::Version::HTTP_11));
    for name in ["content-type", "content-length", "x-tollgate-next", "x-tollgate-dropped"] {
        assert_eq!(head.headers()[name], page.fields[name], "{name}");
    }
    assert!(head.bytes().await.unwrap().is_empty());
}

#[tokio::test]
async fn lines_are_shown_where_the_configuration_allows_it() {
    let origin = Origin::start("site").await;
    let needs_addresses = "admin: { show_addresses: true }";
    let needs_replay = "write access_log: { replay: true } and reload";
    let needs_log = "write access_log: { to: stdout, replay: true } and reload";
    for (admin, log, status, cure) in [
        ("", REPLAYED, 403, needs_addresses),
        ("", "to: ./access.log", 403, needs_addresses),
        (SHOWN, "to: ./access.log", 404, needs_replay),
        (SHOWN, "to: ./access.log, format: combined", 404, needs_replay),
        (SHOWN, "to: none, replay: true", 404, needs_log),
    ] {
        let gate = Gate::start(&policy(&origin, admin, log)).await;
        client().get(gate.url("/secret-path")).send().await.unwrap();
        let (got, detail) = problem(&gate, "").await;
        assert_eq!((got, detail.contains(cure)), (status, true), "{log}: {detail}");
        let output = ctl(&gate, &[]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{log}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(cure), "{log}: {told}");
        let json: Value = serde_json::from_slice(&ctl(&gate, &["--json"]).stdout).unwrap();
        assert_eq!(json["status"], status);
    }
}

#[tokio::test]
async fn lines_need_the_token_which_ctl_finds_in_the_configuration() {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    let admin = format!("  token_file: token\n{SHOWN}");
    let gate = Gate::start_in(folder, &policy(&origin, &admin, REPLAYED), "").await;
    client().get(gate.url("/")).send().await.unwrap();
    let lines = logged(&gate, 1).await;
    let url = format!("http://127.0.0.1:{}/log", gate.admin);
    for request in [
        client().get(&url),
        client().head(&url),
        client().get(format!("{url}?after=nothing")),
        client().get(&url).bearer_auth("0123456789abcdeg"),
    ] {
        assert_eq!(request.send().await.unwrap().status(), 401);
    }
    let answer = client().get(&url).bearer_auth(TOKEN).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), format!("{}\n", lines[0]));
    let without = ctl(&gate, &[]);
    assert_eq!((without.status.code(), without.stdout.len()), (Some(1), 0));
    let file = gate.file();
    let with = run(&["ctl", "log", "--last", "10s", "-c", file.to_str().unwrap()], b"");
    assert_eq!(with.status.code(), Some(0));
    assert_eq!(String::from_utf8(with.stdout).unwrap(), format!("{}\n", lines[0]));
}

#[tokio::test]
async fn hostile_questions_about_lines_are_refused_by_name() {
    let origin = Origin::start("site").await;
    let gate = Gate::start(&policy(&origin, SHOWN, REPLAYED)).await;
    for (query, expected) in [
        ("?sinse=1m", "unknown parameter \"sinse\"; known are since, after"),
        ("?since=yesterday", "write a date as"),
        ("?since=1m&since=1m", "since comes twice"),
        ("?after=0", "no line of this process has this number"),
        ("?after=18446744073709551615", "no line of this process"),
        ("?after=18446744073709551616", "write a whole number"),
        ("?after=-1", "write a whole number"),
        ("?after=", "write a whole number"),
        ("?after=%1b%5b2J", "write a whole number"),
        ("?after=0&after=0", "after comes twice"),
        ("?count=1", "unknown parameter"),
    ] {
        let (status, detail) = problem(&gate, query).await;
        assert_eq!((status, detail.contains(expected)), (400, true), "{query}: {detail}");
    }
    let long = problem(&gate, &format!("?since={}", "1".repeat(2_000))).await;
    assert!(long.1.contains("more than 1024 bytes"), "{}", long.1);
    let url = format!("http://127.0.0.1:{}/log", gate.admin);
    let posted = client().post(&url).body("{}").send().await.unwrap();
    assert_eq!(
        (posted.status().as_u16(), &posted.headers()["allow"]),
        (405, &"GET, HEAD".parse().unwrap())
    );
    let foreign = client().get(&url).header("host", "attacker.example").send().await.unwrap();
    assert_eq!(foreign.status(), 421);
    assert_eq!(page(&gate, "?since=99999999999d").await.lines.len(), 0);
    for (args, expected) in [
        (&["--last", "yesterday"][..], "yesterday"),
        (&["--last", "0s"], "0s"),
        (&["--last", "5"], "5"),
        (&["now"], "unexpected argument"),
    ] {
        let output = ctl(&gate, args);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.contains(expected)), (Some(2), true), "{told}");
    }
    let empty = ctl(&gate, &["--last", "366d"]);
    assert_eq!((empty.status.code(), empty.stdout.len()), (Some(0), 0));
}

#[tokio::test]
async fn a_replay_of_the_last_lines_is_a_replay_of_the_file() {
    const REQUESTS: usize = 60;
    let origin = Origin::start("site").await;
    let gate = Gate::start(&policy(&origin, SHOWN, REPLAYED)).await;
    for n in 0..REQUESTS {
        let path = ["/keyed/a", "/few/a", "/other", "/a%00b"][n % 4];
        let request = client().get(gate.url(path)).header("x-api-key", format!("k{}", n % 3));
        let request = request.header("x-forwarded-for", format!("192.0.2.{}", n % 5));
        request.send().await.unwrap();
    }
    let lines = logged(&gate, REQUESTS).await;
    let file = gate.file();
    let config = file.to_str().unwrap();
    let output = run(&["ctl", "log", "--last", "5m", "-c", config], b"");
    assert_eq!(output.status.code(), Some(0));
    let written = String::from_utf8(output.stdout).unwrap();
    assert_eq!(sorted(written.lines().map(str::to_owned).collect()), sorted(lines));

    let log = gate.folder.path().join("access.log");
    let of_file = run(&["replay", "-c", config, "--json", log.to_str().unwrap()], b"");
    let of_pages = run(&["replay", "-c", config, "--json", "-"], written.as_bytes());
    let report = |output: &Output| -> Value {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (of_file, of_pages) = (report(&of_file), report(&of_pages));
    assert_eq!(of_file["refused"], 9, "{of_file:#}");
    assert_eq!((&of_file["lines"], &of_file["broken"]), (&REQUESTS.into(), &0.into()));
    assert_eq!(of_file, of_pages);
}
