//! `tollgate check` refuses what `run` refuses, warns of what is not there, and changes nothing.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::certificates::{self, Authority, ONE, dns};
use support::key_server::{KeyServer, Publishes};
use support::servers::{Gate, Origin, eventually, free_port, origin_yaml};
use support::signing::{SigningKey, set_of};

fn tollgate(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .current_dir(folder)
        .env("XDG_RUNTIME_DIR", folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// A policy that only lacks what is under test; `{P}` is a free port.
fn policy(listener: &str, rest: &str) -> String {
    let port = free_port().to_string();
    let listeners = if listener.is_empty() { "{ address: 127.0.0.1:{P} }" } else { listener };
    let origins = match rest.contains("origins:") {
        true => "",
        false => "origins: { s: { servers: [127.0.0.1:1] } }\n",
    };
    let routes = match rest.contains("routes:") {
        true => "",
        false => "routes: [{ name: r }]\n",
    };
    format!("version: 1\nlisteners: [{listeners}]\n{rest}\n{origins}{routes}").replace("{P}", &port)
}

fn write(folder: &Path, text: &str) {
    std::fs::write(folder.join("p.yaml"), text).unwrap();
}

/// What `run` refuses, `check` refuses, in the same words.
#[test]
fn check_refuses_what_run_refuses() {
    let (folder, _) = certificates::folder(&["a", "b"]);
    let folder = folder.path();
    std::fs::write(folder.join("empty"), "").unwrap();
    std::fs::create_dir(folder.join("logs.d")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.join("pipe.log")).status().unwrap().success());
    let keyed = |key: &str| {
        format!(
            "limits: {{ l: {{ tier: exact, rate: 5/s, key: {key}, missing_key: skip }} }}\nroutes: [{{ name: r, limits: [l] }}]"
        )
    };
    let tls = |files: &str| format!("{{ address: 127.0.0.1:{{P}}, tls: {{ {files} }} }}");
    let overridden = "limits: { l: { tier: exact, rate: 5/s, key: client_ip, overrides: [{ key_file: none, action: allow }] } }";
    let cases: [(String, String, &str, &str); 19] = [
        (tls("certificate: a.crt, private_key: b.key"), String::new(), "p.yaml:2:", "listeners[0].tls.private_key: b.key: is not the key of the certificate in a.crt"),
        (tls("certificate: a.crt, private_key: empty"), String::new(), "p.yaml:2:", "listeners[0].tls.private_key: empty: "),
        (tls("certificate: a.crt, private_key: a.key, client_ca: empty"), String::new(), "p.yaml:2:", "listeners[0].tls.client_ca: empty: holds no certificate"),
        (String::new(), "access_log: { to: ./none/access.log }".into(), "p.yaml:3:19: ", "access_log.to: the access log cannot be opened: No such file or directory (os error 2); create the directory"),
        (String::new(), "access_log: { to: ./logs.d }".into(), "p.yaml:3:19: ", "access_log.to: the access log cannot be opened: Is a directory (os error 21); name a file in it"),
        (String::new(), "access_log: { to: ./pipe.log }".into(), "p.yaml:3:19: ", "; start the program that reads this pipe first"),
        ("{ address: 192.0.2.1:{P} }".into(), String::new(), "p.yaml:2:24: ", "listeners[0].address: cannot listen on 192.0.2.1:"),
        ("{ address: 0.0.0.0:{P} }, { address: 127.0.0.1:{P} }".into(), String::new(), "p.yaml:2:", " overlap; leave one of them out, or use another port"),
        ("{ address: \"[::]:{P}\" }, { address: \"[::ffff:127.0.0.1]:{P}\" }".into(), String::new(), "p.yaml:2:", " overlap; "),
        (String::new(), "admin: { address: 127.0.0.1:{P} }".into(), "p.yaml:3:19: ", "is listed twice; leave one of them out, or use another port"),
        (String::new(), "admin: { address: 127.0.0.1:9901, token_file: empty }".into(), "p.yaml:3:", "admin.token_file: empty: a token has at least 16 characters"),
        (String::new(), "store: { redis: { url: redis://127.0.0.1:1, key_secret_file: empty } }".into(), "p.yaml:3:", "store.redis.key_secret_file: empty: has fewer than 16 characters"),
        (String::new(), "store: { redis: { url: rediss://127.0.0.1:1, tls: { ca_file: empty } } }".into(), "p.yaml:3:", "store.redis.tls.ca_file: empty: holds no certificate"),
        (String::new(), "store: { redis: { url: rediss://127.0.0.1:1, tls: { certificate: a.crt, private_key: b.key } } }".into(), "p.yaml:3:", "store.redis.tls.private_key: b.key: is not the key of the certificate in a.crt"),
        (String::new(), "origins: { s: { servers: [127.0.0.1:1], tls: { sni: a, ca_file: empty } } }".into(), "p.yaml:3:", "origins.s.tls.ca_file: empty: holds no certificate"),
        (String::new(), keyed("{ jwt: { secret_file: empty, claim: sub } }"), "p.yaml:3:", "secret_file: empty: "),
        (String::new(), keyed("{ jwt: { jwks_file: empty, claim: sub } }"), "p.yaml:3:", "jwks_file: empty: "),
        (String::new(), "responses: { body: { file: empty, type: text/html } }".into(), "p.yaml:3:", "responses.body.file: empty: is empty"),
        (String::new(), overridden.into(), "p.yaml:3:", "key_file: none: No such file or directory"),
    ];
    for (listener, rest, location, words) in cases {
        write(folder, &policy(&listener, &rest));
        let (check, run) = (tollgate(folder, &["check", "p.yaml"]), ["run", "-c", "p.yaml"]);
        let run = tollgate(folder, &run);
        let (told, refused) = (text(&check.stdout), text(&run.stderr));
        assert_eq!(check.status.code(), Some(1), "{listener} {rest}: {told}");
        assert!(matches!(run.status.code(), Some(1 | 2)), "{listener} {rest}: {refused}");
        let line = told.lines().find(|line| line.contains(words));
        let line = line.unwrap_or_else(|| panic!("{words} is not in\n{told}"));
        assert!(line.contains(location), "{line}");
        assert!(refused.contains(line), "check says\n{line}\nand run says\n{refused}");
        assert!(!refused.contains("panicked"), "{refused}");
    }
    // All that is wrong with this machine is told at once.
    write(folder, &policy("{ address: 192.0.2.1:{P} }", "access_log: { to: ./none/a.log }"));
    let told = text(&tollgate(folder, &["check", "p.yaml"]).stdout);
    assert_eq!(told.lines().count(), 2, "{told}");
    // The same file is valid for another machine.
    let elsewhere = tollgate(folder, &["check", "--elsewhere", "p.yaml"]);
    assert_eq!(elsewhere.status.code(), Some(0), "{}", text(&elsewhere.stdout));
}

/// It may run next to the process that serves the same file.
#[test]
fn check_changes_nothing_and_forgives_what_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    write(
        folder.path(),
        &policy(&format!("{{ address: \"{address}\" }}"), "access_log: { to: ./access.log }"),
    );
    let checked = tollgate(folder.path(), &["check", "--strict", "-c", "p.yaml"]);
    let told = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(0), "{told}");
    assert!(told.contains("in use now: by tollgate itself, or `run` cannot start"), "{told}");
    assert!(!folder.path().join("access.log").exists());
    // `run` refuses it, at the same location.
    let run = tollgate(folder.path(), &["run", "--config", "p.yaml"]);
    let told = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1));
    let expected = format!("p.yaml:2:24: listeners[0].address: cannot listen on {address}: ");
    assert!(told.contains(&expected) && told.contains("; end the program that listens"), "{told}");
    // A log that exists is left as it is.
    std::fs::write(folder.path().join("access.log"), "before\n").unwrap();
    assert!(tollgate(folder.path(), &["check", "p.yaml"]).status.success());
    assert_eq!(std::fs::read_to_string(folder.path().join("access.log")).unwrap(), "before\n");
}

#[test]
fn an_override_without_keys_and_a_listener_without_ipv4_have_warnings() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("keys"), "# none yet\n").unwrap();
    let rest = "limits: { l: { tier: exact, rate: 5/s, key: client_ip, overrides: [{ key_file: keys, action: allow }] } }
routes: [{ name: r, limits: [l] }]
admin: { address: 127.0.0.1:{P} }";
    write(folder.path(), &policy("{ address: \"[::]:{P}\" }", rest));
    let told = text(&tollgate(folder.path(), &["check", "--elsewhere", "p.yaml"]).stdout);
    for words in [
        "p.yaml:2:12: warning[ipv4-not-served]: listeners: [::]:",
        "warning[empty-key-file]: limits.l: override 1 never applies: its key_file has no key; ",
    ] {
        assert!(told.contains(words), "{words} is not in\n{told}");
    }
    write(folder.path(), &policy("{ address: \"[::]:{P}\" }, { address: 0.0.0.0:{P} }", ""));
    let told = text(&tollgate(folder.path(), &["check", "--elsewhere", "p.yaml"]).stdout);
    assert!(!told.contains("warning"), "{told}");
}

/// As NGINX, HAProxy and Envoy: a certificate that has expired is served, and everybody is told.
#[tokio::test]
async fn the_dates_of_certificates_are_warnings() {
    let authority = Authority::new("ca");
    let folder = tempfile::tempdir().unwrap();
    let dated = |from: i32, to: i32| {
        authority.sign_with(vec![dns("one.example")], |params| {
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
        })
    };
    dated(2020, 2021).write(folder.path(), "one.example");
    dated(2090, 2091).write(folder.path(), "later");
    let origin = "origins: { s: { servers: [127.0.0.1:1], tls: { sni: a, certificate: later.crt, private_key: later.key } } }";
    let listener = format!("{{ address: 127.0.0.1:{{P}}, {ONE} }}");
    write(folder.path(), &policy(&listener, origin));
    let checked = tollgate(folder.path(), &["check", "p.yaml"]);
    let told = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(0), "{told}");
    for words in [
        "warning[certificate-expired]: listeners[0].tls.certificate: one.example.crt: the certificate expired ",
        " days ago, at 2021-01-01T00:00:00Z: peers refuse it; renew it, and reload",
        "p.yaml:3:69: warning[certificate-not-yet-valid]: origins.s.tls.certificate: later.crt: the certificate is valid in ",
    ] {
        assert!(told.contains(words), "{words} is not in\n{told}");
    }
    assert_eq!(tollgate(folder.path(), &["check", "--strict", "p.yaml"]).status.code(), Some(1));
    let silenced =
        format!("{origin}\ncheck: {{ silence: [certificate-expired, certificate-not-yet-valid] }}");
    write(folder.path(), &policy(&listener, &silenced));
    assert_eq!(tollgate(folder.path(), &["check", "--strict", "p.yaml"]).status.code(), Some(0));
    // It starts, and says so, also when it is reloaded.
    let (port, admin) =
        Gate::prepare(&folder, &format!("{origin}\nroutes: [{{ name: r }}]\n"), ONE);
    let mut gate = Gate::run(std::sync::Arc::new(folder), port, admin, &[]);
    gate.wait_admin().await;
    let warned = |gate: &Gate| gate.log().matches("warning[certificate-expired]").count();
    assert!(eventually(Duration::from_secs(5), || async { warned(&gate) == 1 }).await);
    gate.hup().await;
    assert!(eventually(Duration::from_secs(5), || async { warned(&gate) == 2 }).await);
}

struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The codes, paths and messages of the warnings of `check --connect`.
fn connected(folder: &Path, rest: &str) -> Vec<(String, String, String)> {
    write(folder, &policy("", rest));
    let checked = tollgate(folder, &["check", "--json", "--connect", "p.yaml"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stdout));
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let warnings = report["files"][0]["warnings"].as_array().unwrap();
    let word = |warning: &Value, name: &str| warning[name].as_str().unwrap().to_owned();
    let warnings = warnings.iter().filter(|warning| warning["code"] != "fixed-key-secret");
    warnings
        .map(|warning| {
            let message = word(warning, "message") + "; " + &word(warning, "cure");
            (word(warning, "code"), word(warning, "path"), message)
        })
        .collect()
}

/// By the same code as the server, and each failure with its cure.
#[tokio::test(flavor = "multi_thread")]
async fn the_publishers_of_keys_are_asked_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let origin = Origin::start("site").await;
    let set = set_of(&[&SigningKey::new("a")]);
    let server = KeyServer::start(Publishes::Set(set.clone(), "")).await;
    std::fs::write(folder.join("ca.pem"), &server.certificate.pem).unwrap();
    let rest = |url: &str| {
        format!(
            "{}limits: {{ users: {{ tier: exact, rate: 5/s, key: [client_ip, {{ jwt: {{ jwks_url: \"{url}\", jwks_ca_file: ca.pem, claim: sub, audience: a }} }}], missing_key: skip }}, addresses: {{ tier: estimate, rate: 50/s, key: client_ip }} }}
routes: [{{ name: r, limits: [users, addresses] }}]
",
            origin_yaml(origin.address)
        )
    };
    let own = rest(&server.url());
    assert_eq!(connected(folder, &own), []);
    assert_eq!(server.asked(), 1);
    for (publishes, words) in [
        (
            Publishes::Set("{\"issuer\": \"a\"}".to_owned(), ""),
            "jwks_uri in .well-known/openid-configuration",
        ),
        (Publishes::Set("{\"keys\": []}".to_owned(), ""), "has no key for"),
        (Publishes::Status(404, String::new()), "the answer has status 404"),
        (Publishes::Closed, "correct the URL, jwks_ca_file, or the way to its server"),
    ] {
        server.publish(publishes);
        let found = connected(folder, &own);
        let [(code, path, message)] = &found[..] else { panic!("{words}: {found:?}") };
        assert_eq!((&**code, &**path), ("keys-unreachable", "limits.users.key[1].jwt.jwks_url"));
        let url = server.url();
        let shown = url.trim_start_matches("https://");
        assert!(message.contains(words) && message.contains(shown), "{words}: {message}");
    }
    let found = connected(folder, &rest(&format!("https://localhost:{}/", free_port())));
    assert!(found.len() == 1 && found[0].0 == "keys-unreachable", "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_and_the_origins_are_asked_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let origin = Origin::start("site").await;
    let good = origin_yaml(origin.address);
    assert_eq!(connected(folder, &good), []);
    assert_eq!(origin.count(), 0, "no request is sent");
    let closed = free_port();
    let servers = format!(
        "origins: {{ s: {{ servers: [\"{}\", 127.0.0.1:{closed}, nowhere.invalid:80] }} }}",
        origin.address
    );
    let found = connected(folder, &servers);
    let paths: Vec<_> = found.iter().map(|(code, path, _)| (&**code, &**path)).collect();
    let expected = ["origins.s.servers[1]", "origins.s.servers[2]"];
    assert_eq!(paths, expected.map(|path| ("origin-unreachable", path)));
    assert!(found[0].2.contains("the connection is refused"), "{found:?}");
    assert!(found[1].2.contains("resolve nowhere.invalid:80"), "{found:?}");
    let tls =
        format!("origins: {{ s: {{ servers: [\"{}\"], tls: {{ sni: a }} }} }}", origin.address);
    let found = connected(folder, &tls);
    assert!(found.len() == 1 && found[0].2.contains("the TLS handshake fails"), "{found:?}");

    let port = free_port();
    let redis = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--requirepass", "right"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _redis = Redis(redis);
    let up = eventually(Duration::from_secs(10), || async {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
    });
    assert!(up.await);
    std::fs::write(folder.join("right"), "right").unwrap();
    std::fs::write(folder.join("wrong"), "wrong").unwrap();
    let url = |scheme: &str| format!("{scheme}://127.0.0.1:{port}");
    for (store, words) in [
        (format!("url: \"{}\", password_file: right", url("redis")), None),
        (format!("url: \"{}\"", url("redis")), Some("correct username and password_file")),
        (
            format!("url: \"{}\", password_file: wrong", url("redis")),
            Some("correct username and password_file"),
        ),
        (format!("url: \"{}\"", url("rediss")), Some("or write redis:// if it speaks no TLS")),
        (format!("url: \"redis://127.0.0.1:{closed}\""), Some("start the store")),
        (format!("cluster: [\"{}\"], password_file: right", url("redis")), Some("is no Cluster")),
        (
            format!(
                "sentinel: {{ urls: [\"{}\"], master: m, password_file: right }}",
                url("redis")
            ),
            Some("start the store, correct its address"),
        ),
    ] {
        let found = connected(folder, &format!("{good}store: {{ redis: {{ {store} }} }}"));
        match words {
            None => assert_eq!(found, [], "{store}"),
            Some(words) => {
                let [(code, path, message)] = &found[..] else { panic!("{store}: {found:?}") };
                let key = store.split(':').next().unwrap();
                assert_eq!(
                    (&**code, &**path),
                    ("store-unreachable", &*format!("store.redis.{key}"))
                );
                assert!(message.contains(words), "{store}: {message}");
            }
        }
    }
}

/// The shape that docs/src/commands.md promises.
#[test]
fn the_json_report_has_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let rest = "limits: { l: { tier: exact, rate: 5/s, key: client_ip }, unused: { tier: estimate, rate: 5/s, key: client_ip } }
routes: [{ name: r, match: { path: /a/** }, limits: [{ limit: l, cost: 3 }] }]";
    write(folder.path(), &policy("", rest));
    std::fs::write(folder.path().join("bad.yaml"), "version: 2\nlistners: []\n").unwrap();
    let args = ["check", "--json", "--strict", "p.yaml", "bad.yaml", "none.yaml"];
    let checked = tollgate(folder.path(), &args);
    assert_eq!(checked.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(report["accepted"], false);
    let [valid, bad, none] = &report["files"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&valid["file"], &valid["valid"]), (&"p.yaml".into(), &true.into()));
    let warning = &valid["warnings"][0];
    for (name, expected) in [
        ("code", Value::from("unused-limit")),
        ("file", "p.yaml".into()),
        ("line", 3.into()),
        ("path", "limits.unused".into()),
    ] {
        assert_eq!(warning[name], expected, "{warning}");
    }
    assert!(
        warning["column"].is_u64() && warning["message"].is_string() && warning["cure"].is_string()
    );
    let route = serde_json::json!({
        "name": "r", "matches": "/a/** (/a and everything below)", "limits": [{ "limit": "l", "cost": "3" }], "origin": "s",
    });
    assert_eq!(valid["routes"][0], route);
    let limit = &valid["limits"][0];
    assert_eq!(
        (&limit["name"], &limit["tier"], &limit["mode"], &limit["key"]),
        (&"l".into(), &"exact".into(), &"enforce".into(), &"client_ip".into())
    );
    let facts = limit["facts"].as_array().unwrap();
    assert!(facts.iter().any(|fact| fact["fact"] == "promise" && fact["text"].is_string()));
    assert_eq!(valid["addresses"][0]["kind"], "http");
    assert_eq!(valid["addresses"][0]["in_use"], false);
    let error = bad["errors"].as_array().unwrap().iter().find(|error| error["line"] == 2).unwrap();
    assert_eq!((&bad["valid"], &error["file"]), (&false.into(), &"bad.yaml".into()));
    assert_eq!((&error["column"], &error["path"]), (&1.into(), &"listners".into()));
    assert_eq!(error["cure"], "did you mean \"listeners\"?");
    assert!(none["errors"][0]["line"].is_null() && none["routes"] == serde_json::json!([]));
}

/// Not a warning: the machine that serves the file may allow more.
#[test]
fn check_says_how_many_connections_the_descriptors_of_this_machine_suffice_for() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "version: 1\nlisteners: [{ address: \"127.0.0.1:0\" }]\norigins: { s: { servers: [\"127.0.0.1:1\"] } }\n\
                  routes: [{ name: r }]\nlimits_of_this_proxy: { max_connections: 500 }\n";
    std::fs::write(folder.path().join("p.yaml"), policy).unwrap();
    let binary = env!("CARGO_BIN_EXE_tollgate");
    let run = |allowed: u32, options: &str| {
        let command = format!("ulimit -n {allowed}; exec {binary} check --strict {options} p.yaml");
        let checked = Command::new("sh").args(["-c", &command]).current_dir(folder.path()).output();
        let checked = checked.unwrap();
        assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stdout));
        String::from_utf8(checked.stdout).unwrap()
    };
    // 500 connections, 500 to origins, 1,024 idle ones and 256 others.
    let sentence = "max_connections: 500 need 2280 descriptors and the system allows 600";
    assert!(run(600, "").contains(sentence), "{}", run(600, ""));
    assert!(!run(2_280, "").contains("descriptors"), "{}", run(2_280, ""));
    assert!(!run(600, "--elsewhere").contains("descriptors"));
    let report: Value = serde_json::from_str(&run(600, "--json")).unwrap();
    // 600 without the 256 and 75 idle ones; the half of that for connections of clients.
    let expected = serde_json::json!({
        "max_connections": 500, "needed": 2280, "allowed": 600, "connections": 134, "exchanges": 135,
    });
    assert_eq!(report["files"][0]["descriptors"], expected);
}
