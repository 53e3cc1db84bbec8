//! `explain`: the listener that a request comes to, the keys that it lacks, and what a process says of those that it has.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use support::servers::{Gate, Origin, client, eventually, origin_yaml, read};

/// Two listeners with names, one that redirects, and one for services that show certificates.
const LISTENERS: &str = "version: 1
listeners:
  - { name: plain, address: 127.0.0.1:8080 }
  - { name: old, address: 127.0.0.1:80, redirect: { scheme: https, port: 8443 } }
  - { name: public, address: 127.0.0.1:8443, tls: { certificate: TLS/edge.pem, private_key: TLS/edge.key } }
  - { name: services, address: 127.0.0.1:9443, tls: { certificate: TLS/edge.pem, private_key: TLS/edge.key, client_ca: TLS/ca.pem } }
origins: { site: { servers: [127.0.0.1:1] } }
limits:
  calls: { tier: exact, rate: 9/1h, key: [tls_client, \"header:x-tenant\"], missing_key: { deny: 403 } }
  tokens: { tier: exact, rate: 9/1h, key: { jwt: { jwks_file: KEYS, claim: sub, audience: api } }, missing_key: { deny: 401 } }
routes:
  - { name: services, match: { listener: services }, limits: [calls] }
  - { name: public, match: { listener: public } }
  - { name: tokens, match: { path: /tokens }, limits: [tokens] }
  - { name: plain }
";

fn tollgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).output().unwrap()
}

fn explained(file: &Path, args: &[&str]) -> String {
    let output = tollgate(&[&["explain", "-c", file.to_str().unwrap()], args].concat());
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn policy() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let root = env!("CARGO_MANIFEST_DIR");
    let text = LISTENERS
        .replace("TLS", &format!("{root}/conf/examples/tls"))
        .replace("KEYS", &format!("{root}/tests/policies/keys/jwks.json"));
    std::fs::write(&file, text).unwrap();
    (folder, file)
}

/// What asks for a condition that cannot be known, which one, and whether the values or their amount are the reason.
#[test]
fn a_condition_that_cannot_be_known_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let policy = "version: 1
listeners: [{ address: 127.0.0.1:8080 }]
origins: { site: { servers: [127.0.0.1:1] } }
classes:
  beta: { cookie: { channel: beta } }
  costly: { header: { user-agent: { regex: '(a|b)[^;]{0,300}x[0-9]' } } }
limits:
  l: { tier: exact, rate: 9/1h, key: client_ip, overrides: [{ class: beta, rate: 2/1h }, { class: costly, rate: 3/1h }] }
routes:
  - { name: traced, match: { path: /t, query: { trace: a } } }
  - { name: rest, limits: [l] }
";
    std::fs::write(&file, policy).unwrap();
    let explained = |args: &[&str]| explained(&file, args);
    let decision = "decision   a condition that cannot be known\nstatus     400\n";
    let text = explained(&["-H", "cookie: channel=%zz", "GET", "http://a/"]);
    let expected = "           limit l, overrides[0] of class beta: origins may read cookie channel in different ways\n";
    assert!(text.contains(&format!("{decision}{expected}")), "{text}");
    let text = explained(&["GET", "http://a/t?trace=%zz"]);
    let expected = "           route traced: origins may read ?trace in different ways\n";
    assert!(text.contains(&format!("{decision}{expected}")), "{text}");
    let agent = format!("user-agent: x7{}", "abbaabxabaxb".repeat(2_400));
    let text = explained(&["-H", &agent, "GET", "http://a/"]);
    let expected = "           limit l, overrides[1] of class costly: the conditions of the request are more than about a \
                    million steps of work; this one reads user-agent\n";
    assert!(text.contains(&format!("{decision}{expected}")), "{text}");
}

#[test]
fn a_request_comes_to_the_listener_that_fits_or_to_the_named_one() {
    let (_folder, file) = policy();
    let services = "listener   services (127.0.0.1:9443)\n";
    for (args, expected) in [
        // The scheme and the port.
        (
            &["GET", "http://a:8080/"][..],
            &["listener   plain (127.0.0.1:8080)\n", "route      plain\n"][..],
        ),
        (
            &["GET", "https://a:8443/"],
            &["listener   public (127.0.0.1:8443)\n", "route      public\n"],
        ),
        (
            &["--tls-client", "dns:a", "GET", "https://a:9443/"],
            &[services, "route      services\n"],
        ),
        // The only listener that asks for certificates, whatever the port is outside.
        (&["--tls-client", "dns:a", "GET", "https://a/"], &[services, "route      services\n"]),
        (
            &["GET", "https://a:9443/"],
            &["without --tls-client, one that names nobody\n", "missing key"],
        ),
        // Several fit.
        (
            &["GET", "https://a/"],
            &["listener   public (127.0.0.1:8443): 2 listeners fit; --listener NAME chooses\n"],
        ),
        (
            &["GET", "/"],
            &["listener   plain (127.0.0.1:8080): 4 listeners fit; --listener NAME chooses\n"],
        ),
        (&["GET", "http://a:7/"], &["listener   plain (127.0.0.1:8080): 2 listeners fit"]),
        // The named one.
        (
            &["--listener", "plain", "GET", "https://a/"],
            &["listener   plain (127.0.0.1:8080)\n", "route      plain\n"],
        ),
        (
            &["--listener", "services", "GET", "https://a/"],
            &["listener   services (127.0.0.1:9443)", "route      services\n"],
        ),
        (
            &["--listener", "servces", "GET", "https://a/"],
            &["no listener has this name; write plain or old or public or services"],
        ),
        (&["--listener", "public", "GET", "http://a/"], &["it speaks TLS; write an https URL"]),
        (
            &["--listener", "plain", "--tls-client", "dns:a", "GET", "https://a/"],
            &["it asks clients for no certificate"],
        ),
        // Redirects.
        (
            &["GET", "http://a/b?c"],
            &[
                "listener   old (127.0.0.1:80)\n",
                "decision   redirected\n",
                "status     301\n",
                "location   https://a:8443/b?c\n",
            ],
        ),
        (&["--listener", "old", "POST", "http://a/"], &["status     308\n"]),
    ] {
        let told = explained(&file, args);
        for line in expected {
            assert!(told.contains(line), "{args:?}: {line} is not in\n{told}");
        }
    }
    let json = explained(&file, &["--json", "GET", "https://a/"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["listener"]["listener"], "public (127.0.0.1:8443)");
    // A file without TLS: what is assumed stands there.
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/keys.yaml");
    let told = explained(&keys, &["GET", "https://a/sni"]);
    let expected = "listener   -: no listener speaks TLS, so it comes to none of them; \
                    if a load balancer ends TLS, add --listener NAME\n";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn a_missing_key_is_named_with_its_limit_and_where_it_was_looked_for() {
    let (_folder, file) = policy();
    let services = &["--listener", "services", "GET", "https://a/"];
    let told = explained(&file, services);
    for line in [
        "decision   missing key\nstatus     403\n",
        "limit      calls (exact, refuses): key [tls_client, header:x-tenant]\n",
        "tls_client = absent (deny (403)): the client shows no certificate with a name",
        "header:x-tenant = absent (deny (403)): there is no field x-tenant\n",
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    let json = explained(&file, &[&["--json"], &services[..]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    let limit = &json["limits"][0];
    assert_eq!((&limit["limit"], &limit["refuses"]), (&"calls".into(), &true.into()));
    assert_eq!(limit["parts"][1]["absent"], "there is no field x-tenant");
    for (field, expected) in [
        ("x-other: 1", "there is no field authorization; looked for authorization: Bearer ..."),
        ("authorization: Basic YTpi", "authorization has the scheme Basic, not Bearer"),
        ("authorization: abc", "authorization has no scheme; write authorization: Bearer ..."),
        ("authorization: Bearer", "nothing follows Bearer in authorization"),
    ] {
        let told = explained(&file, &["-H", field, "GET", "http://a:8080/tokens"]);
        for line in [
            format!("jwt:sub = absent (deny (401)): {expected}\n"),
            format!("token      none in authorization (claim sub): {expected}\n"),
        ] {
            assert!(told.contains(&line), "{field}: {line} is not in\n{told}");
        }
    }
    let forged = ["-H", "authorization: Bearer abc", "GET", "http://a:8080/tokens"];
    let told = explained(&file, &forged);
    assert!(told.contains("its token is not believed: it is no token"), "{told}");
    assert!(!told.contains("token      none"), "{told}");
}

/// A limit that another one stands in for is named, with what the request lacks.
#[test]
fn a_limit_for_a_missing_key_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let text = "version: 1
listeners: [{ address: 127.0.0.1:8080 }]
origins: { site: { servers: [127.0.0.1:1] } }
limits:
  keyed: { tier: exact, rate: 9/1h, key: \"header:x-key\", missing_key: { limit: anon } }
  anon: { tier: exact, rate: 5/1h, key: client_ip }
routes: [{ name: site, limits: [keyed] }]
";
    std::fs::write(&file, text).unwrap();
    let told = explained(&file, &["GET", "http://a:8080/"]);
    let expected = "limit      keyed does not apply: the request has no header:x-key: there is no field x-key; limit anon \
                    applies instead\n";
    assert!(told.contains(expected) && told.contains("limit      anon (exact)"), "{told}");
    let told = explained(&file, &["-H", "x-key: k", "GET", "http://a:8080/"]);
    assert!(!told.contains("anon"), "{told}");
}

/// In each form of the log, without what a key alone has.
#[tokio::test]
async fn the_access_log_names_the_limit_whose_key_is_missing() {
    let origin = Origin::start("site").await;
    for (form, expected, absent) in [
        ("json", "\"limit\":\"calls\",\"tier\":\"exact\",\"remaining\":null", "\"key\""),
        ("ecs", "\"limit\":{\"name\":\"calls\",\"tier\":\"exact\"}", "remaining"),
        ("otel", "\"calls\"", "tollgate.remaining"),
        ("'$reason $limit $tier $remaining $key'", "missing_key calls exact - -", "0"),
    ] {
        let policy = format!(
            "{}limits: {{ calls: {{ tier: exact, rate: 1/1h, key: \"header:x-key\", missing_key: deny }} }}
routes: [{{ name: site, limits: [calls] }}]
access_log: {{ to: ./access.log, format: {form}, log_key: hash }}
",
            origin_yaml(origin.address)
        );
        let gate = Gate::start(&policy).await;
        assert_eq!(client().get(gate.url("/")).send().await.unwrap().status(), 400);
        let file = gate.folder.path().join("access.log");
        let logged = eventually(Duration::from_secs(10), || async { read(&file).contains('\n') });
        assert!(logged.await);
        let line = read(&file);
        assert!(line.contains(expected) && !line.contains(absent), "{form}: {line}");
    }
}

/// With `--admin` the decision is also that of the process, and what the file does not share with it is told.
#[tokio::test]
async fn the_decision_of_a_process_is_told() {
    let origin = Origin::start("site").await;
    let policy = format!(
        "{}limits:
  writes: {{ tier: exact, algorithm: fixed_window, rate: 3/1h, key: \"header:x-key\", missing_key: skip }}
  logins: {{ tier: exact, algorithm: fixed_window, rate: 1/1h, key: client_ip, penalty: {{ after: 1, within: 1h, ban: 1h }} }}
  watched: {{ tier: exact, rate: 1/1h, key: client_ip, mode: shadow }}
routes:
  - {{ name: login, match: {{ path: /login }}, limits: [logins] }}
  - {{ name: site, limits: [writes, watched] }}
check: {{ silence: [spoofable-key] }}
",
        origin_yaml(origin.address)
    );
    let gate = Gate::start(&policy).await;
    let file = gate.folder.path().join("tollgate.yaml");
    let admin = format!("http://127.0.0.1:{}", gate.admin);
    let port = gate.port;
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let told = |file: &Path, path: &str| {
        explained(
            file,
            &["--admin", &admin, "--ip", "127.0.0.1", "-H", "x-key: k1", "GET", &url(path)],
        )
    };
    let before = told(&file, "/");
    assert!(
        before.contains("decision   allowed with nothing spent\nnow        allowed\n"),
        "{before}"
    );
    for _ in 0..3 {
        client().get(gate.url("/")).header("x-key", "k1").send().await.unwrap();
        client().get(gate.url("/login")).send().await.unwrap();
    }
    let spent = "now        limited by writes: 3 of 3 are spent, and it costs 1\n";
    let after = told(&file, "/");
    assert!(
        after.contains("decision   allowed with nothing spent\n") && after.contains(spent),
        "{after}"
    );
    let banned = told(&file, "/login");
    assert!(
        banned.contains("now        limited by logins: the key is banned until 20"),
        "{banned}"
    );
    // A file that was edited and not reloaded.
    let edited = gate.folder.path().join("edited.yaml");
    std::fs::write(&edited, read(&file).replace("rate: 3/1h", "rate: 5/1h")).unwrap();
    let after = told(&edited, "/");
    let other = "limit writes is 3 there and 5 in the file: it has another version of the file";
    assert!(after.contains(spent) && after.contains(other), "{after}");
    let folder = Arc::clone(&gate.folder);
    drop(gate);
    let unknown = told(&edited, "/");
    assert!(unknown.contains("now        unknown for writes: "), "{unknown}");
    drop(folder);
}
