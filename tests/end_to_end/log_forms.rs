//! The access log in each of its forms, over HTTP/1 and HTTP/2: read by readers that share no code with the writer, with
//! what hostile clients put into lines, and with a marker in every field of a request that must never be seen.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use regex::Regex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::tls::{ONE, folder, trusting};
use support::servers::{
    Gate, Origin, Reloaded, client, eventually, free_port, metric, origin_yaml, read,
};

/// The form's name in a configuration, quoted where YAML asks for it.
const FORMS: [&str; 5] = ["json", "ecs", "otel", "combined", TEMPLATE];

const TEMPLATE: &str = r#"'$time|$request_id|$client_ip|$method|$host|$path|$status|$route|$decision|$reason|$limit|$tier|$remaining|$charged|$retry_after|$authenticated|$tunnel|$degraded|$banned|$waited_us|$generation|$origin|$duration_us|"$user_agent"|$protocol|$request_bytes|$response_bytes|$origin_server|$origin_status|$origin_duration_us|$retries|$failure|$trace_id|$tls_version|$key|$time_local|"$request"'"#;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// The combined format as log readers know it: none of our code.
fn combined() -> Regex {
    Regex::new(concat!(
        r#"^(?<address>\S+) - - "#,
        r#"\[(?<time>\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} \+0000)\] "#,
        r#""(?<request>[^"\\]*(?:\\x[0-9A-F]{2}[^"\\]*)*)" (?<status>\d{1,3}) (?<bytes>\d+) "-" "#,
        r#""(?<agent>[^"\\]*(?:\\x[0-9A-F]{2}[^"\\]*)*)"$"#,
    ))
    .unwrap()
}

/// A gate with a limit of one request by `x-api-key`, whose log has this form.
async fn gate(origin: &Origin, form: &str, more: &str, tls: Option<tempfile::TempDir>) -> Gate {
    let policy = format!(
        "{}limits: {{ one: {{ tier: exact, rate: 1/1h, key: header:x-api-key, missing_key: skip }} }}
routes:
  - {{ name: limited, match: {{ path: /limited/** }}, limits: [one] }}
  - {{ name: site }}
access_log: {{ to: ./access.log, format: {form}{more} }}
",
        origin_yaml(origin.address)
    );
    match tls {
        Some(folder) => Gate::start_in(folder, &policy, ONE).await,
        None => Gate::start(&policy).await,
    }
}

fn file(gate: &Gate) -> PathBuf {
    gate.folder.path().join("access.log")
}

/// The lines, once there are so many.
async fn lines(gate: &Gate, count: usize) -> Vec<String> {
    let read_lines = || read(&file(gate)).lines().map(str::to_owned).collect::<Vec<_>>();
    let all = eventually(Duration::from_secs(10), || async { read_lines().len() >= count });
    assert!(all.await, "{count} lines: {:?}", read_lines());
    read_lines()
}

/// Every name in an object, with those of the objects inside, joined by dots.
fn names(prefix: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let dot = if prefix.is_empty() { "" } else { "." };
                names(&format!("{prefix}{dot}{name}"), value, found);
            }
        }
        _ => found.push(prefix.to_owned()),
    }
}

/// Checks that every name is in a committed list, or is our own below `tollgate`.
fn check_names(list: &str, value: &Value) {
    let path = format!("{}/tests/end_to_end/{list}", env!("CARGO_MANIFEST_DIR"));
    let known = std::fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    names("", value, &mut found);
    assert!(found.len() > 10, "{value}");
    for name in found {
        let own = name.starts_with("tollgate.") || name.contains(".tollgate.");
        assert!(own || known.lines().any(|line| line == name), "{name} is not in {list}");
    }
}

#[tokio::test]
async fn each_form_says_the_same_of_requests_over_http1_and_http2() {
    let origin = Origin::with(|_| {
        let mut answer = hyper::Response::new(Full::new(Bytes::from_static(b"created")));
        *answer.status_mut() = hyper::StatusCode::CREATED;
        answer
    })
    .await;
    for form in FORMS {
        let (folder, pairs) = folder(&["one.example"]);
        let gate = gate(&origin, form, ", log_key: hash", Some(folder)).await;
        let to = std::net::SocketAddr::from(([127, 0, 0, 1], gate.port));
        let url = format!("https://one.example:{}/limited/a?query=hidden", gate.port);
        let http2 = trusting(&pairs[0], "one.example", to).build().unwrap();
        let http1 = trusting(&pairs[0], "one.example", to).http1_only().build().unwrap();
        for (client, status, written) in [(http2, 201, 1), (http1, 429, 2)] {
            let request = client.post(&url).body("x".repeat(1_000)).header("x-api-key", "k1");
            let request = request.header("user-agent", "probe/1.0");
            let trace = format!("00-{TRACE}-00f067aa0ba902b7-01");
            let answer = request.header("traceparent", trace).send().await.unwrap();
            assert_eq!(answer.status(), status, "{form}");
            answer.bytes().await.unwrap();
            // A client may have its answer before the line is written, and the lines are told apart by their order.
            lines(&gate, written).await;
        }
        let server = origin.address.to_string();
        let lines = lines(&gate, 2).await;
        let json = || lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        match form {
            "json" => {
                let all: Vec<Value> = json().collect();
                let forwarded = &all[0];
                assert_eq!(forwarded["user_agent"], "probe/1.0");
                assert_eq!(forwarded["protocol"], "HTTP/2.0");
                assert_eq!(forwarded["request_bytes"], 1_000);
                assert_eq!(forwarded["response_bytes"], 7);
                assert_eq!(forwarded["origin_server"], server);
                assert_eq!(forwarded["origin_status"], 201);
                let (asked, all_of_it) =
                    (&forwarded["origin_duration_us"], &forwarded["duration_us"]);
                assert!(asked.as_u64().unwrap() <= all_of_it.as_u64().unwrap());
                assert_eq!(forwarded["trace_id"], TRACE);
                assert_eq!(forwarded["tls_version"], "TLSv1.3");
                assert_eq!(forwarded["key"].as_str().unwrap().len(), 32);
                for absent in ["retries", "failure", "reason", "tunnel"] {
                    assert!(forwarded.get(absent).is_none(), "{absent}: {forwarded}");
                }
                let refused = &all[1];
                assert_eq!(
                    (&refused["protocol"], &refused["status"]),
                    (&"HTTP/1.1".into(), &429.into())
                );
                assert_eq!(refused["key"], forwarded["key"], "the same key");
                assert!(refused["response_bytes"].as_u64().unwrap() > 100, "{refused}");
                assert!(refused.get("origin_server").is_none());
            }
            "ecs" => {
                for line in json() {
                    check_names("ecs_names.txt", &line);
                }
                let line = json().next().unwrap();
                assert_eq!(line["http"]["response"]["status_code"], 201);
                assert_eq!(line["http"]["request"]["method"], "POST");
                assert_eq!(line["http"]["request"]["body"]["bytes"], 1_000);
                assert_eq!(line["url"]["domain"], "one.example");
                assert_eq!(line["url"]["path"], "/limited/a");
                assert_eq!(line["user_agent"]["original"], "probe/1.0");
                assert_eq!(line["client"]["ip"], "127.0.0.1");
                assert_eq!(line["trace"]["id"], TRACE);
                assert_eq!(line["tls"]["version"], "1.3");
                assert_eq!(line["event"]["outcome"], "success");
                assert_eq!(line["tollgate"]["origin"]["server"], server);
                assert_eq!(json().nth(1).unwrap()["event"]["outcome"], "failure");
            }
            "otel" => {
                for line in json() {
                    let top = line.as_object().unwrap().keys();
                    let top: Vec<&str> = top.map(String::as_str).collect();
                    let expected = [
                        "Timestamp",
                        "TraceId",
                        "SeverityText",
                        "SeverityNumber",
                        "EventName",
                        "Resource",
                        "Attributes",
                    ];
                    assert!(expected.iter().all(|name| top.contains(name)) && top.len() == 7);
                    check_names("otel_names.txt", &line["Attributes"]);
                }
                let line = json().next().unwrap();
                assert!(line["Timestamp"].as_str().unwrap().parse::<u64>().unwrap() > 1 << 60);
                assert_eq!(line["TraceId"], TRACE);
                assert_eq!(line["Attributes"]["http.response.status_code"], 201);
                assert_eq!(line["Attributes"]["network.protocol.version"], "2");
                assert_eq!(line["Attributes"]["url.path"], "/limited/a");
            }
            "combined" => {
                let (first, second) = (&lines[0], &lines[1]);
                let first = combined().captures(first).unwrap_or_else(|| panic!("{first}"));
                assert_eq!(&first["address"], "127.0.0.1");
                assert_eq!(&first["request"], "POST /limited/a HTTP/2.0");
                assert_eq!((&first["status"], &first["bytes"]), ("201", "7"));
                assert_eq!(&first["agent"], "probe/1.0");
                let second = combined().captures(second).unwrap_or_else(|| panic!("{second}"));
                assert_eq!(
                    (&second["request"], &second["status"]),
                    ("POST /limited/a HTTP/1.1", "429")
                );
            }
            _ => {
                let parts: Vec<&str> = lines[0].split('|').collect();
                assert_eq!(parts.len(), 37, "{}", lines[0]);
                assert_eq!(
                    (parts[3], parts[5], parts[6], parts[7]),
                    ("POST", "/limited/a", "201", "limited")
                );
                assert_eq!((parts[9], parts[23], parts[24]), ("-", "\"probe/1.0\"", "HTTP/2.0"));
                assert_eq!((parts[27], parts[28]), (&*server, "201"));
                assert_eq!(parts[36], "\"POST /limited/a HTTP/2.0\"");
            }
        }
    }
}

/// Whatever is in a field, a request is one line, nothing in it is a control character, and no quote ends early.
#[tokio::test]
async fn hostile_texts_stay_inside_of_their_line() {
    let origin = Origin::start("site").await;
    let agents: [&[u8]; 6] = [
        b"a\" 200 0 \"-\" \"forged",
        b"back\\slash\\x22 \\\" \\n $status",
        b"\xff\xfe\xc3\x28 invalid",
        "\u{9b}2J \u{2028} \u{202e} \u{1f600}".as_bytes(),
        b"\ttab\tand {\"json\":true}",
        &[b'A'; 30_000],
    ];
    for form in FORMS {
        let gate = gate(&origin, form, "", None).await;
        for agent in agents {
            let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
            let head =
                b"GET /a\"b|c HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\nUser-Agent: ";
            let request = [head.as_slice(), agent, b"\r\n\r\n"].concat();
            stream.write_all(&request).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 "), "{}", answer.escape_ascii());
        }
        // Heads that no parser reads: nothing of them is known.
        for broken in [&b"\x00\x01\x02\r\n\r\n"[..], b"GET /x\x1b[2J HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let mut stream = TcpStream::connect(("127.0.0.1", gate.port)).await.unwrap();
            stream.write_all(broken).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
        }
        let lines = lines(&gate, agents.len() + 2).await;
        assert_eq!(lines.len(), agents.len() + 2, "{form}");
        for line in &lines {
            assert!(line.len() < 9_000, "{form}: {} bytes", line.len());
            assert!(!line.chars().any(|c| c.is_control() || c == '\u{2028}'), "{form}: {line:?}");
            match form {
                "json" | "ecs" | "otel" => {
                    serde_json::from_str::<Value>(line).unwrap();
                }
                "combined" => assert!(combined().is_match(line), "{line}"),
                _ => {
                    assert!(line.is_ascii(), "{line}");
                    assert_eq!(line.matches('"').count(), 4, "{line}");
                }
            }
        }
    }
}

/// A marker in every field of a request; none is in a log, in whatever form, whoever refuses it.
#[tokio::test]
async fn no_secret_is_in_any_form() {
    let origin = Origin::start("site").await;
    for form in FORMS {
        for key in ["none", "hash", "prefix"] {
            let policy = format!(
                "{}limits:
  agents: {{ tier: exact, rate: 1/1h, key: header:user-agent, missing_key: skip }}
  traces: {{ tier: exact, rate: 5/1h, key: header:traceparent, missing_key: skip }}
routes: [{{ name: site, limits: [agents, traces] }}]
access_log: {{ to: ./access.log, format: {form}, log_key: {key} }}
",
                origin_yaml(origin.address)
            );
            let gate = Gate::start(&policy).await;
            for _ in 0..2 {
                let request = client().post(gate.url("/path?q=MARKQUERY&MARKNAME=1"));
                let request = request.header("user-agent", "MARKAGENT");
                let trace = format!("00-{TRACE}-00f067aa0ba902b7-01");
                let request = request.header("traceparent", trace);
                let request = request.header("x-api-key", "MARKKEY").bearer_auth("MARKBEARER");
                let request = request.header("cookie", "session=MARKCOOKIE");
                let request = request.header("referer", "https://x.example/?MARKREFERER");
                let request = request.header("x-forwarded-for", "203.0.113.99");
                request.body("MARKBODY").send().await.unwrap();
            }
            let text = lines(&gate, 2).await.join("\n");
            for secret in ["MARK", TRACE, "203.0.113.99"] {
                assert!(!text.contains(secret), "{form} {key}: {secret} in {text}");
            }
            assert!(!gate.log().contains("MARK"), "{}", gate.log());
            if form == "json" {
                let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
                let digits = line["key"].as_str().map_or(0, str::len);
                assert_eq!(
                    digits,
                    match key {
                        "none" => 0,
                        "hash" => 32,
                        _ => 8,
                    },
                    "{line}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_failure_says_why_and_how_often_it_was_tried() {
    let living = Origin::start("site").await;
    let dead = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let policy = format!(
        "origins:
  dead: {{ servers: [\"{dead}\"] }}
  half: {{ servers: [\"{dead}\", \"{}\"] }}
routes:
  - {{ name: dead, match: {{ path: /dead }}, origin: dead }}
  - {{ name: half, origin: half }}
access_log: {{ to: ./access.log }}
",
        living.address
    );
    let gate = Gate::start(&policy).await;
    assert_eq!(client().get(gate.url("/dead")).send().await.unwrap().status(), 502);
    for _ in 0..4 {
        assert_eq!(client().get(gate.url("/half")).send().await.unwrap().status(), 200);
    }
    let lines = lines(&gate, 5).await;
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["failure"], "origin_unreachable");
    assert_eq!(lines[0]["origin_server"], dead.to_string());
    assert!(lines[0].get("origin_status").is_none(), "{}", lines[0]);
    let retried = lines[1..].iter().filter_map(|line| line["retries"].as_u64()).sum::<u64>();
    assert!(retried >= 1, "{lines:?}");
    assert!(lines[1..].iter().all(|line| line.get("failure").is_none()), "{lines:?}");
    assert!(lines[1..].iter().all(|line| line["origin_server"] == living.address.to_string()));
    let metrics = gate.metrics().await;
    assert_eq!(metric(&metrics, "tollgate_origin_retries_total{origin=\"half\"}"), retried as f64);
}

/// In each form a rotated file is let go at HUP, and a reload changes the form between two whole lines.
#[tokio::test]
async fn a_reload_opens_the_file_again_and_changes_the_form() {
    let origin = Origin::start("site").await;
    let policy = |form: &str| {
        let origins = origin_yaml(origin.address);
        format!(
            "{origins}routes: [{{ name: site }}]\naccess_log: {{ to: ./access.log, format: {form} }}\n"
        )
    };
    let gate = Gate::start(&policy("json")).await;
    for (index, form) in FORMS.into_iter().enumerate() {
        assert_eq!(gate.reload(&policy(form), "").await, Reloaded::Applied, "{}", gate.log());
        let rotated = file(&gate).with_extension(format!("{index}"));
        assert_eq!(client().get(gate.url("/before")).send().await.unwrap().status(), 200);
        assert!(lines(&gate, 1).await[0].contains("/before"), "{form}");
        std::fs::rename(file(&gate), &rotated).unwrap();
        assert_eq!(gate.hup().await, Reloaded::Applied);
        assert_eq!(client().get(gate.url("/after")).send().await.unwrap().status(), 200);
        assert!(lines(&gate, 1).await[0].contains("/after"), "{form}");
        assert_eq!(read(&rotated).lines().count(), 1, "{form}");
        std::fs::remove_file(file(&gate)).unwrap();
        assert_eq!(gate.hup().await, Reloaded::Applied, "an absent file is made again");
    }
}

/// A device that is full: every line is counted, no request fails.
#[tokio::test]
async fn a_full_device_drops_the_lines_of_every_form() {
    let origin = Origin::start("site").await;
    for form in FORMS {
        let origins = origin_yaml(origin.address);
        let policy = format!(
            "{origins}routes: [{{ name: site }}]\naccess_log: {{ to: /dev/full, format: {form} }}\n"
        );
        let gate = Gate::start(&policy).await;
        for _ in 0..5 {
            assert_eq!(client().get(gate.url("/")).send().await.unwrap().status(), 200);
        }
        let counted = eventually(Duration::from_secs(5), || async {
            metric(&gate.metrics().await, "tollgate_log_dropped_total") == 5.0
        });
        assert!(counted.await, "{form}: {}", gate.metrics().await);
    }
}

#[tokio::test]
async fn the_operators_log_is_json_from_its_first_line_to_its_last() {
    let dead = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let folder = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let policy = format!("{}routes: [{{ name: site }}]\n", origin_yaml(dead));
    let (port, admin) = Gate::prepare(&folder, &policy, "");
    let arguments = ["--log-format", "json", "--log-level", "info"];
    let mut gate = Gate::run(folder, port, admin, &arguments);
    gate.wait_ready().await;
    assert_eq!(client().get(gate.url("/?MARK")).send().await.unwrap().status(), 502);
    assert_eq!(gate.reload_text("version: 1\nrubbish: [").await, Reloaded::Refused);
    gate.signal("INT");
    assert!(gate.ended(Duration::from_secs(5)).await.is_some());
    let log = gate.log();
    let mut levels = Vec::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        let names: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(names.len(), 4, "{line}");
        assert!(!line["target"].as_str().unwrap().is_empty() && line["message"].is_string());
        levels.push(line["level"].as_str().unwrap().to_owned());
    }
    assert!(
        levels.iter().any(|level| level == "error") && levels.iter().any(|level| level == "info")
    );
    assert!(!log.contains("MARK"), "{log}");
    // A configuration that is refused at the start is said in the same form; bare words to people.
    std::fs::write(gate.file(), "version: 2\n").unwrap();
    let folder = std::sync::Arc::clone(&gate.folder);
    for (format, is_json) in [("json", true), ("text", false)] {
        let mut refused =
            Gate::run(std::sync::Arc::clone(&folder), port, admin, &["--log-format", format]);
        let status = refused.ended(Duration::from_secs(5)).await.unwrap();
        assert_eq!(status.code(), Some(2), "{}", refused.log());
        let log = refused.log();
        assert!(!log.is_empty());
        for line in log.lines() {
            assert_eq!(serde_json::from_str::<Value>(line).is_ok(), is_json, "{line}");
        }
    }
}
