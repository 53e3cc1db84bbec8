//! The page of the admin listener in a real browser, served by the binary.
//!
//! `browser.py` drives Chromium; each of its cases is a test here, with a server of its own.
#![expect(clippy::unwrap_used, reason = "a test that meets what it does not expect shall fail")]

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use support::servers::{Gate, Origin, origin_yaml};

const TOKEN: &str = "a-token-of-the-operators";

/// Two requests an hour for each key: what the cases refuse stays refused.
const LIMITS: &str = "limits:
  writes: { tier: exact, rate: 2/1h, key: header:x-api-key, missing_key: skip }
  pageviews: { tier: estimate, rate: 1000/1m, key: client_ip }
";

const ROUTES: &str = "routes: [{ name: site, limits: [writes, pageviews] }]\n";

/// Starts a server and runs one case of `browser.py` against it.
async fn browse(case: &'static str, routes: &str) {
    let origin = Origin::start("site").await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), TOKEN).unwrap();
    let admin = "  token_file: token\n  by_header: x-forwarded-user\n";
    let policy = format!("{admin}{}{LIMITS}{routes}", origin_yaml(origin.address));
    let gate = Gate::start_in(folder, &policy, "").await;
    let (url, admin, pid) = (gate.url(""), gate.admin, gate.pid());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/browser.py");
    let ran = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg(case);
        command.env("TOLLGATE_ADMIN", format!("http://127.0.0.1:{admin}/"));
        command.env("TOLLGATE_PROXY", url).env("TOLLGATE_TOKEN", TOKEN);
        command.env("TOLLGATE_PID", pid.to_string()).output().unwrap()
    });
    let output = ran.await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {said}");
}

macro_rules! cases {
    ($($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                browse(stringify!($case), ROUTES).await;
            }
        )*

        /// A case that is written and never run would show nothing.
        #[test]
        fn every_case_is_run() {
            let mut run = vec![$(stringify!($case)),*, "ten_thousand_routes_stay_quick"];
            let script = include_str!("browser.py");
            let (_, list) = script.split_once("\nCASES = [").unwrap();
            let (list, _) = list.split_once(']').unwrap();
            let mut written: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
            run.sort_unstable();
            written.sort_unstable();
            assert_eq!(run, written);
        }
    };
}

cases! {
    loads_and_updates_by_itself
    explains_a_request_by_its_id
    an_override_from_click_to_effect
    a_ban_and_its_end
    a_wrong_token_is_said_and_not_repeated
    hostile_text_stays_text
    an_override_by_keyboard_alone
    nothing_is_wider_than_a_telephone
    a_server_that_is_gone_is_said
    a_hidden_page_asks_nothing
    a_page_of_another_site_changes_nothing
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_routes_stay_quick() {
    let mut routes = "routes:\n".to_owned();
    for n in 0..10_000 {
        writeln!(routes, "  - {{ name: route-{n:05}, match: {{ path: /{n} }}, limits: [writes] }}")
            .unwrap();
    }
    browse("ten_thousand_routes_stay_quick", &routes).await;
}
