//! The bounds that are printed for a combined log hold, whatever the policy: they contain what the same policy refuses when it
//! judges the exact times.

use std::fmt::Write as _;

use fastrand::Rng;

use super::logs::{Asked, bounds, config, limit, report};

/// Random policies.
const POLICIES: u64 = 200;

/// Requests of each.
const REQUESTS: usize = 250;

/// Where the fields of the log with exact times stand.
const FIELDS: &[&str] = &["time_start=time_start", "duration_ns=duration_ns"];

/// A request as it was.
struct True {
    /// Nanoseconds since 1970.
    begin: u64,
    duration: u64,
    client: u8,
    method: &'static str,
    target: String,
}

#[test]
fn bounds_contain_the_truth() {
    let (mut checked, mut refused, mut certain) = (0, 0, 0);
    for seed in 0..POLICIES {
        let mut random = Rng::with_seed(seed);
        let policy = policy(&mut random);
        let requests = requests(&mut random);
        let asked = Asked { policy: &policy, ..Asked::default() };
        let truth = report(&Asked { fields: FIELDS, ..asked }, &[&exact(&requests)]);
        let (format, log) = combined(&mut random, &requests);
        let found = report(&Asked { format, ..asked }, &[&log]);
        for (_, of_policy) in config(&policy).policy.indexed_limits() {
            let name = &*of_policy.name;
            let true_limit = limit(&truth, name);
            let kind = if true_limit["shadow"] == true { "shadow_refused" } else { "refused" };
            let truth = true_limit[kind].as_u64().unwrap();
            let Some((lower, upper)) = bounds(&found, name) else {
                continue;
            };
            assert!(
                (lower..=upper).contains(&truth),
                "seed {seed}, {name}: {truth} is not within {lower} and {upper}\n{format}\n{policy}\n{log}"
            );
            checked += 1;
            refused += truth;
            certain += lower;
        }
    }
    println!("{checked} bounds hold: {refused} requests refused, {certain} of them for certain");
    assert!(checked > POLICIES && refused > 10_000 && certain > refused / 20);
}

fn policy(random: &mut Rng) -> String {
    loop {
        let count = random.usize(1..=3);
        let limits: String = (0..count).map(|n| limit_text(random, n)).collect();
        let names: Vec<String> = (0..count).map(|n| format!("l{n}")).collect();
        let names = names.join(", ");
        let condition = ["path: /a/**", "methods: [POST]", "query: { q: a }"][random.usize(..3)];
        let text = format!(
            "limits:\n{limits}routes:\n  - {{ name: s, match: {{ {condition} }}, limits: [{names}] }}\n  \
             - {{ name: r, limits: [{names}] }}\n"
        );
        let whole = format!(
            "version: 1\nlisteners: [{{ address: 127.0.0.1:1 }}]\norigins: {{ s: {{ servers: [\"127.0.0.1:2\"] }} }}\n{text}"
        );
        // What does not go together is refused, and drawn again.
        if tollgate::config::read_text(&whole, "random", std::path::Path::new(".")).is_ok() {
            return text;
        }
    }
}

fn limit_text(random: &mut Rng, number: usize) -> String {
    let key = ["client_ip", "path", "method", "query:q", "[client_ip, path]"][random.usize(..5)];
    let mut keys = vec![format!("key: {key}")];
    if key == "query:q" {
        keys.push("missing_key: client_ip".to_owned());
    }
    let period = ["1s", "3s", "10s", "1m"][random.usize(..4)];
    let algorithm =
        ["token_bucket", "leaky_bucket", "sliding_window", "sliding_log", "fixed_window"]
            [random.usize(..5)];
    if random.u8(..8) == 0 {
        keys.push(format!("max_in_flight: {}", random.u32(1..4)));
    } else {
        keys.push(format!("algorithm: {algorithm}, rate: {}/{period}", random.u32(1..9)));
        match algorithm {
            "leaky_bucket" => keys.push("max_delay: 200ms".to_owned()),
            "token_bucket" if random.bool() => keys.push(format!("burst: {}", random.u32(1..9))),
            _ => {}
        }
        match random.u8(..8) {
            0 => keys.push("count: { status: [200] }".to_owned()),
            1 => keys.push(format!("cost: {}", random.u32(2..4))),
            2 => keys.push(format!("overrides: [{{ network: 192.0.2.1/32, rate: 3/{period} }}]")),
            3 => keys.push("cost: { header: x-weight, default: 1, max: 3 }".to_owned()),
            _ => {}
        }
    }
    if random.u8(..6) == 0 {
        keys.push("mode: shadow".to_owned());
    }
    format!("  l{number}: {{ tier: exact, {} }}\n", keys.join(", "))
}

fn requests(random: &mut Rng) -> Vec<True> {
    let mut at = 1_795_500_000_000_000_000 + random.u64(..60_000_000_000);
    let mut requests: Vec<True> = (0..REQUESTS)
        .map(|_| {
            at += match random.u8(..20) {
                0 => random.u64(..5_000_000_000),
                _ => random.u64(..400_000_000),
            };
            let path = ["/", "/a/b", "/c"][random.usize(..3)];
            let query = ["", "?q=a", "?q=b"][random.usize(..3)];
            True {
                begin: at,
                duration: random.u64(1_000..900_000_000),
                client: random.u8(1..4),
                method: ["GET", "POST"][random.usize(..2)],
                target: format!("{path}{query}"),
            }
        })
        .collect();
    requests.sort_by_key(|request| request.begin);
    requests
}

/// The log with exact times.
fn exact(requests: &[True]) -> String {
    let mut log = String::new();
    for True { begin, duration, client, method, target } in requests {
        let _ = writeln!(
            log,
            "{{\"time_start\":\"{}.{:09}Z\",\"duration_ns\":{duration},\"client_ip\":\"192.0.2.{client}\",\"method\":\"{method}\",\"path\":\"{target}\",\"status\":200}}",
            second(*begin, "%Y-%m-%dT%H:%M:%S"),
            begin % 1_000_000_000
        );
    }
    log
}

/// The same requests as a log with whole seconds, by one of the servers: of their beginnings, or in the order of their ends,
/// with and without their durations.
fn combined(random: &mut Rng, requests: &[True]) -> (&'static str, String) {
    let kind = random.usize(..4);
    let mut lines: Vec<(u64, String)> = requests
        .iter()
        .map(|True { begin, duration, client, method, target }| {
            let end = begin + duration;
            let stamp = if kind == 0 { *begin } else { end };
            let time = second(stamp, "%d/%b/%Y:%H:%M:%S +0000");
            let line = format!(
                "192.0.2.{client} - - [{time}] \"{method} {target} HTTP/1.1\" 200 5 \"-\" \"a\""
            );
            let line = match kind {
                3 => format!(
                    "{line} {}.{:03}",
                    duration / 1_000_000_000,
                    duration / 1_000_000 % 1_000
                ),
                _ => line,
            };
            (end, line)
        })
        .collect();
    lines.sort();
    let log = lines.into_iter().fold(String::new(), |log, (_, line)| log + &line + "\n");
    let format = [
        "apache: combined",
        "nginx: combined",
        "combined",
        "nginx: $remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $request_time",
    ][kind];
    (format, log)
}

fn second(nanos: u64, form: &str) -> String {
    let at = jiff::Timestamp::from_second(i64::try_from(nanos / 1_000_000_000).unwrap()).unwrap();
    at.strftime(form).to_string()
}
