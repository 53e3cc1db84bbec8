//! Reports say what is true of a log, or that it is not known.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::logs::{Asked, bounds, combined, limit, report};

fn one_limit(limit: &str) -> String {
    format!(
        "limits: {{ l: {{ tier: exact, key: client_ip, {limit} }} }}\nroutes: [{{ name: r, limits: [l] }}]\n"
    )
}

fn at(second: u32) -> String {
    let (hours, minutes, seconds) = (second / 3_600, second / 60 % 60, second % 60);
    format!("24/Nov/2026:{hours:02}:{minutes:02}:{seconds:02} +0000")
}

fn notes(report: &Value) -> String {
    report["notes"].to_string()
}

/// A line of tollgate's own log, of a process, at a place in its order and a time in milliseconds.
fn own(run: &str, order: u64, millis: u64, duration: u64, more: Value) -> String {
    let begin = 1_795_500_000_000 + millis;
    let nanos = begin * 1_000_000;
    let mut replay = json!({
        "run": run, "order": order, "at": { "mono": millis * 1_000_000 + 5, "wall": nanos + order },
    });
    replay.as_object_mut().unwrap().extend(more["replay"].as_object().cloned().unwrap_or_default());
    let line = json!({
        "time": (begin + duration) as f64 / 1_000.0, "client_ip": "192.0.2.1", "method": "GET",
        "host": "a.test", "path": "/", "status": more["status"].as_u64().unwrap_or(200),
        "decision": "allowed", "duration_us": duration * 1_000, "replay": replay,
    });
    format!("{line}\n")
}

#[test]
fn a_suggested_rate_has_room_for_requests_that_wait_for_their_answers() {
    // One 401 counts for each of 100 keys, and one 200 holds a unit until it is answered.
    let mut log = String::new();
    for key in 0..100 {
        log += &combined(key, &at(u32::from(key)), "GET /", 401);
        log += &combined(key, &at(u32::from(key) + 1_000), "GET /", 200);
    }
    let policy = one_limit("algorithm: fixed_window, rate: 9/1h, count: { status: [401] }");
    let found = report(&Asked { policy: &policy, suggest: Some(0), ..Asked::default() }, &[&log]);
    let rate = found["suggest"][0]["rate"].as_str().unwrap();
    assert_eq!(rate, "2/1h");
    let policy = policy.replace("9/1h", rate);
    let again = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert_eq!(again["refused"], 0, "{again}");
}

#[test]
fn a_cost_that_an_answer_names_is_what_a_suggestion_counts() {
    let named = json!({ "header x-used": { "units": 500 } });
    let lines = (0..20).map(|n| {
        let answer =
            json!({ "after": 1_000_000, "order": 2 * n + 2, "status": 200, "by": "origin", "costs": named });
        own("a", 2 * n + 1, n * 10, 2, json!({ "replay": { "answer": answer } }))
    });
    let log: String = lines.collect();
    let policy = one_limit(
        "algorithm: fixed_window, rate: 100000/1h, cost: { response_header: x-used, reserve: 10, max: 1000 }",
    );
    let found = report(&Asked { policy: &policy, suggest: Some(0), ..Asked::default() }, &[&log]);
    assert_eq!(limit(&found, "l")["units"], 10_000);
    let rate = found["suggest"][0]["rate"].as_str().unwrap();
    let policy = policy.replace("100000/1h", rate);
    let again = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert_eq!(again["refused"], 0, "{rate}: {again}");
}

#[test]
fn a_limit_that_was_not_judged_may_refuse_first() {
    let log: String = (0..20).map(|_| combined(1, &at(7), "GET /", 200)).collect();
    let policy = "limits:\n  slots: { tier: exact, key: client_ip, max_in_flight: 1 }\n  \
                  l: { tier: exact, key: client_ip, algorithm: fixed_window, rate: 5/1m }\n\
                  routes: [{ name: r, limits: [slots, l] }]\n";
    let asked = Asked { policy, format: "apache: combined", ..Asked::default() };
    assert_eq!(bounds(&report(&asked, &[&log]), "l"), Some((0, 15)));
    let alone = policy.replace("[slots, l]", "[l]");
    let asked = Asked { policy: &alone, format: "apache: combined", ..Asked::default() };
    assert_eq!(bounds(&report(&asked, &[&log]), "l"), Some((15, 15)));
    // A limit in shadow mode refuses nothing, judged or not.
    let shadow = policy.replace("max_in_flight: 1", "max_in_flight: 1, mode: shadow");
    let asked = Asked { policy: &shadow, format: "apache: combined", ..Asked::default() };
    assert_eq!(bounds(&report(&asked, &[&log]), "l"), Some((15, 15)));
}

#[test]
fn a_duration_is_as_exact_as_its_last_digit() {
    let line = |_| "192.0.2.1 [24/Nov/2026:06:46:30 +0000] \"GET / HTTP/1.1\" 200 0\n";
    let log: String = (0..3).map(line).collect();
    let policy = one_limit("algorithm: fixed_window, rate: 1/10s");
    let format = "apache: %h [%{end:%d/%b/%Y:%H:%M:%S %z}t] \"%r\" %>s %T";
    let found = report(&Asked { policy: &policy, format, ..Asked::default() }, &[&log]);
    // Begun at 29.5, 30.0 and 30.1, only one of them is refused.
    let (lower, upper) = bounds(&found, "l").unwrap();
    assert!(lower <= 1 && upper >= 2, "{lower} {upper}");
}

#[test]
fn options_are_counted_as_assumed_preflights() {
    let log: String = (0..6).map(|n| combined(1, &at(n), "OPTIONS /", 204)).collect();
    let policy = one_limit("algorithm: fixed_window, rate: 2/1h");
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert_eq!(found["assumed"]["preflight:OPTIONS"], 6);
    assert!(notes(&found).contains("CORS preflights"), "{found}");
}

#[test]
fn the_other_policy_sees_what_the_first_cannot_judge() {
    let nobody = |n| combined(1, &at(n), "GET /", 200).replace("192.0.2.1", "-");
    let mut log: String = (0..5).map(nobody).collect();
    (5..10).for_each(|n| log += &combined(1, &at(n), "GET /", 200));
    let policy = one_limit("algorithm: fixed_window, rate: 100/1h");
    let other = policy.replace("client_ip", "path").replace("100/1h", "5/1h");
    let asked = Asked { policy: &policy, other: Some(&other), ..Asked::default() };
    let found = report(&asked, &[&log]);
    assert_eq!(found["compare"]["newly_refused"], 5, "{}", found["compare"]);
    assert_eq!(found["not_judged"]["no_client"], 5);
    assert_eq!(
        (&found["compare"]["only_policy"], &found["compare"]["only_other"]),
        (&json!(0), &json!(5))
    );
    // The other way round.
    let asked = Asked { policy: &other, other: Some(&policy), ..Asked::default() };
    let found = report(&asked, &[&log]);
    assert_eq!(
        (&found["compare"]["only_policy"], &found["compare"]["only_other"]),
        (&json!(5), &json!(0))
    );
}

#[test]
fn an_hour_that_comes_twice_has_no_bounds() {
    let time = |minute: u32| format!("25/Oct/2026:02:{minute:02}:00");
    let log: String = (0..60).map(|minute| combined(1, &time(minute), "GET /", 200)).collect();
    let policy = one_limit("algorithm: fixed_window, rate: 60/1h");
    let asked = Asked { policy: &policy, zone: "Europe/Berlin", ..Asked::default() };
    let found = report(&asked, &[&log]);
    assert_eq!(bounds(&found, "l"), None);
    assert!(notes(&found).contains("twice"), "{found}");
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert!(bounds(&found, "l").is_some());
    assert!(!notes(&found).contains("twice"), "{found}");
}

#[test]
fn a_header_that_comes_late_in_the_log_is_a_key() {
    let format = "nginx: $remote_addr [$time_local] \"$request\" $status \"$http_x_api_key\"";
    let line = |n: u32, key: &str| {
        format!("192.0.2.{} [{}] \"GET / HTTP/1.1\" 200 \"{key}\"\n", n % 7, at(n))
    };
    let mut log: String = (0..900).map(|n| line(n, "-")).collect();
    (900..950).for_each(|n| log += &line(n, "K"));
    let policy = "limits: { l: { tier: exact, key: header:x-api-key, missing_key: client_ip, algorithm: fixed_window, rate: 10/1h } }\n\
                  routes: [{ name: r, limits: [l] }]\n";
    let found = report(&Asked { policy, format, show_keys: true, ..Asked::default() }, &[&log]);
    assert_eq!(limit(&found, "l")["judged"], 950);
    assert_eq!(found["refused"], 900 - 70 + 40);
    // A key that is the address in the stead of a missing one is shown as the address.
    let keys: Vec<&str> = limit(&found, "l")["top"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| key["key"].as_str().unwrap())
        .collect();
    assert!(keys.contains(&"192.0.2.3") && keys.contains(&"K"), "{keys:?}");
    // In JSON lines, which have a field only where there is a value, the lines that have it are judged by it.
    let json_line = |n: u32| {
        let mut line = json!({ "time": 1_795_500_000 + n, "client_ip": "192.0.2.1", "method": "GET",
            "path": "/", "status": 200, "headers": {} });
        if n >= 300 {
            line["headers"]["x-api-key"] = "K".into();
        }
        format!("{line}\n")
    };
    let log: String = (0..350).map(json_line).collect();
    let policy = policy.replace("missing_key: client_ip", "missing_key: skip");
    let asked = Asked { policy: &policy, fields: &["headers=headers"], ..Asked::default() };
    let found = report(&asked, &[&log]);
    assert_eq!(limit(&found, "l")["judged"], 50, "{found}");
}

#[test]
fn slots_end_with_their_requests_whatever_process_comes_next() {
    let slot = |order: u64| json!({ "replay": { "ended": order } });
    let mut log = String::new();
    for n in 0..3 {
        log += &own("a", 2 * n + 1, 100 * n, 5, slot(2 * n + 2));
    }
    for n in 0..5 {
        log += &own("b", 2 * n + 1, 1_000 + 100 * n, 5, slot(2 * n + 2));
    }
    let policy = one_limit("max_in_flight: 1");
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert_eq!((&found["requests"], &found["refused"]), (&json!(8), &json!(0)), "{found}");
    assert!(notes(&found).contains("2 processes wrote the log"), "{found}");
}

#[test]
fn own_lines_that_come_too_late_are_counted_and_refill_nothing() {
    use tollgate::replay::Lateness::{InTime, OutOfOrder};
    use tollgate::replay::{Log, OrderCounts, Ordering, ReadSettings, SourceIndex};
    let mut lines = String::new();
    for order in [2, 3, 4, 1] {
        let _ = write!(lines, "{}", own("a", order, order * 10, 5, json!({})));
    }
    let read = std::io::Cursor::new(lines.into_bytes());
    let settings = ReadSettings::default();
    let mut log = Log::read("log", read, SourceIndex(0), &settings).unwrap().unwrap();
    let mut order = Ordering::new(1);
    let mut given = Vec::new();
    while let Some(entry) = log.next_entry() {
        given.extend(order.push(entry));
    }
    given.extend(std::iter::from_fn(|| order.pop()));
    let places: Vec<_> =
        given.iter().map(|entry| (entry.trace.as_ref().unwrap().order, entry.lateness)).collect();
    assert_eq!(places, [(2, InTime), (3, InTime), (1, OutOfOrder), (4, InTime)]);
    assert_eq!(order.counts(), OrderCounts { late: 1, repeated: 0 });
}

#[test]
fn lines_that_two_files_share_are_judged_once() {
    let line = |order: u64| own("a", order, order * 100, 2, json!({}));
    // The second file goes on where the first one ends, and has the last lines of it too: a copy, or what `tollgate ctl log` gave.
    let first: String = (0..40).map(line).collect();
    let second: String = (25..60).map(line).collect();
    let policy = one_limit("algorithm: fixed_window, rate: 50/1h");
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&first, &second]);
    assert_eq!((&found["requests"], &found["refused"]), (&json!(60), &json!(10)), "{found}");
    assert_eq!((&found["lines"], &found["repeated"]), (&json!(75), &json!(15)), "{found}");
    // Equal numbers of another process are other requests.
    let other = first.replace("\"run\":\"a\"", "\"run\":\"b\"");
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&first, &other]);
    assert_eq!((&found["requests"], &found["repeated"]), (&json!(80), &json!(0)), "{found}");
}

/// A second of the day in a combined log, of a client that is one of many.
fn combined_of(client: u32, second: u32, request: &str) -> String {
    let address = std::net::Ipv4Addr::from(0x0a00_0000 + client);
    format!("{address} - - [{}] \"{request} HTTP/1.1\" 200 5 \"-\" \"a\"\n", at(second))
}

#[test]
fn lines_that_come_too_late_are_not_judged_at_another_time() {
    // The file of the day before is behind that of this day, as `cat log.1 log.2` gives them.
    let mut log: String =
        (0..200_050).map(|n| combined_of(n % 9_000, 40_000 + n / 20, "GET /")).collect();
    (0..50).for_each(|n| log += &combined_of(1, n * 60, "GET /"));
    let policy = one_limit("algorithm: fixed_window, rate: 30/1m");
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert_eq!((&found["requests"], &found["refused"]), (&json!(200_050), &json!(0)), "{found}");
    assert_eq!((&found["late"], &found["not_judged"]["late"]), (&json!(50), &json!(50)));
    assert!(notes(&found).contains("an argument of its own"), "{found}");
}

#[test]
fn a_line_from_the_future_does_not_keep_its_log_back() {
    use tollgate::replay::{Log, MergedLogs, ReadSettings, SourceIndex};
    let first: String =
        [1, 90, 2, 3, 4].map(|second| combined(1, &at(second), "GET /", 200)).concat();
    let second: String =
        [1, 2, 3, 4, 5].map(|second| combined(2, &at(second), "GET /", 200)).concat();
    let read = |(index, text): (u32, String)| {
        let input = std::io::Cursor::new(text.into_bytes());
        Log::read("log", input, SourceIndex(index), &ReadSettings::default()).unwrap()
    };
    let mut merged = MergedLogs::new((0..).zip([first, second]).filter_map(read).collect());
    let entries = std::iter::from_fn(|| merged.next_entry());
    let seconds: Vec<u64> = entries.map(|entry| entry.at.wall.secs() % 86_400).collect();
    let in_order: Vec<u64> = seconds.iter().copied().filter(|second| *second != 90).collect();
    assert_eq!(in_order, [1, 1, 2, 2, 3, 3, 4, 4, 5], "{seconds:?}");
}

#[test]
fn keys_that_are_idle_leave_their_room_to_others() {
    let log: String = (0..20_000).map(|n| combined_of(n, n / 10, "GET /")).collect();
    for when_full in ["deny", "allow", "estimate"] {
        let policy = format!(
            "limits_of_this_proxy: {{ max_keys: 1000 }}\n{}",
            one_limit(&format!("algorithm: fixed_window, rate: 5/1s, when_full: {when_full}"))
        );
        let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
        assert_eq!(
            (&found["requests"], &found["refused"]),
            (&json!(20_000), &json!(0)),
            "{when_full}"
        );
    }
}

#[test]
fn a_suggestion_is_the_smallest_rate_where_answers_give_units_back() {
    // Each key sends 40 requests that are given back, one after another, and then up to 10 that count.
    let mut log = String::new();
    for key in 1..=100 {
        for second in 0..40 {
            log += &combined(key, &at(u32::from(key) + 2 * second), "GET /", 500);
        }
        for second in 0..u32::from(key % 10 + 1) {
            log += &combined(key, &at(u32::from(key) + 100 + 2 * second), "GET /", 200);
        }
    }
    for algorithm in ["fixed_window", "sliding_window", "sliding_log", "token_bucket"] {
        let limits = |rate: &str| {
            one_limit(&format!("algorithm: {algorithm}, rate: {rate}, refund: {{ status: [500] }}"))
        };
        let policy = limits("100/1h");
        let asked = Asked { policy: &policy, suggest: Some(100_000), ..Asked::default() };
        let found = report(&asked, &[&log]);
        let suggested = &found["suggest"][0];
        assert_eq!(suggested["refuses_keys"], 10, "{found}");
        let (rate, burst) = (suggested["rate"].as_str().unwrap(), suggested["burst"].as_u64());
        let burst_text = burst.map_or_else(String::new, |burst| format!(", burst: {burst}"));
        let again = |rate: &str| {
            let policy = limits(rate);
            limit(&report(&Asked { policy: &policy, ..Asked::default() }, &[&log]), "l")["keys_refused"].clone()
        };
        let refused = again(&format!("{rate}{burst_text}"));
        if burst.is_some() {
            // A bucket may give a little less back, for which the suggestion has room.
            assert!(refused.as_u64().unwrap() <= 10, "{rate} {burst:?}");
            continue;
        }
        assert_eq!(refused, 10, "{algorithm}: {rate}");
        let less = rate.strip_suffix("/1h").unwrap().parse::<u32>().unwrap() - 1;
        let less = format!("{less}/1h");
        assert!(again(&less).as_u64().unwrap() > 10, "{algorithm}: {less}");
    }
}

#[test]
fn a_limit_beside_a_cost_of_answers_holds_nothing_for_it() {
    let log: String = (0..30).map(|n| combined(1, &at(n / 10), "GET /", 200)).collect();
    let policy = "limits:\n  ip: { tier: exact, key: client_ip, algorithm: fixed_window, rate: 100/1h }\n  \
                  work: { tier: exact, key: client_ip, algorithm: fixed_window, rate: 1000/1h }\n\
                  routes: [{ name: r, limits: [ip, { limit: work, cost: { response_header: x-used, reserve: 1, max: 9 } }] }]\n";
    let found = report(&Asked { policy, suggest: Some(0), ..Asked::default() }, &[&log]);
    assert_eq!(found["suggest"][0]["rate"], "30/1h", "{found}");
}

#[test]
fn what_has_no_suggestion_is_said() {
    let log: String = (0..3).map(|n| combined(1, &at(n), "GET /", 200)).collect();
    let policy = "limits:\n  slots: { tier: exact, key: client_ip, max_in_flight: 2 }\n  \
                  unused: { tier: exact, key: client_ip, algorithm: fixed_window, rate: 5/1h }\n\
                  routes: [{ name: r, limits: [slots] }, { name: o, match: { path: /never }, limits: [unused] }]\n";
    let found = report(&Asked { policy, suggest: Some(0), ..Asked::default() }, &[&log]);
    assert_eq!(found["suggest"], json!([]), "{found}");
    for limit in ["nothing is suggested for slots", "nothing is suggested for unused"] {
        assert!(notes(&found).contains(limit), "{found}");
    }
}

#[test]
fn a_user_in_a_line_of_another_server_tells_no_cost() {
    let policy = "limits: { l: { tier: exact, key: client_ip, algorithm: fixed_window, rate: 20/1h } }\n\
                  routes: [{ name: r, limits: [{ limit: l, cost: { header: x-weight, max: 5 } }] }]\n";
    for user in ["-", "bob"] {
        let log: String = (0..30)
            .map(|n| combined(1, &at(n), "GET /", 200).replace(" - - ", &format!(" - {user} ")))
            .collect();
        let found = report(&Asked { policy, ..Asked::default() }, &[&log]);
        assert_eq!(found["assumed"]["default_cost:x-weight"], 30, "{user}: {found}");
        assert_eq!(bounds(&found, "l"), Some((0, 26)), "{user}: {found}");
    }
}

#[test]
fn a_path_that_holds_a_key_of_one_policy_is_hidden_in_changes() {
    let log: String = (0..9).map(|n| combined(1, &at(n), "GET /t/SECRET", 200)).collect();
    let by_path = "limits: { l: { tier: exact, key: 'path_segment:2', missing_key: deny, algorithm: fixed_window, rate: 100/1h } }\n\
                   routes: [{ name: r, match: { path: /t/** }, limits: [l] }]\n";
    let by_address = one_limit("algorithm: fixed_window, rate: 2/1h");
    for (policy, other) in [(by_path, &*by_address), (&*by_address, by_path)] {
        let found = report(&Asked { policy, other: Some(other), ..Asked::default() }, &[&log]);
        assert!(!found["compare"].to_string().contains("SECRET"), "{found}");
        assert!(found["compare"].to_string().contains("(hidden)"), "{found}");
    }
}

#[test]
fn a_long_request_is_judged_though_its_line_comes_late() {
    use tollgate::replay::Lateness::{InTime, Long, OutOfOrder};
    use tollgate::replay::{Log, OrderCounts, Ordering, ReadSettings, SourceIndex};
    // The third took a minute and ended with the fifth; the fourth is of another file that ended before.
    let lines: String =
        [(2, 60_000, 5), (3, 60_100, 5), (1, 200, 60_100), (0, 100, 5), (4, 60_300, 5)]
            .map(|(order, millis, duration)| own("a", order, millis, duration, json!({})))
            .concat();
    let read = std::io::Cursor::new(lines.into_bytes());
    let mut log =
        Log::read("log", read, SourceIndex(0), &ReadSettings::default()).unwrap().unwrap();
    let mut order = Ordering::new(1);
    let mut given = Vec::new();
    while let Some(entry) = log.next_entry() {
        given.extend(order.push(entry));
    }
    given.extend(std::iter::from_fn(|| order.pop()));
    let found: Vec<_> =
        given.iter().map(|entry| (entry.trace.as_ref().unwrap().order, entry.lateness)).collect();
    assert_eq!(found, [(2, InTime), (1, Long), (0, OutOfOrder), (3, InTime), (4, InTime)]);
    assert_eq!(order.counts(), OrderCounts { late: 2, repeated: 0 });
}

#[test]
fn verdicts_without_room_for_keys_are_said_to_be_assumed() {
    let log: String = (0..2_000).map(|n| combined_of(n, 7, "GET /")).collect();
    let policy = format!(
        "limits_of_this_proxy: {{ max_keys: 1000 }}\n{}",
        one_limit("algorithm: fixed_window, rate: 5/1h, when_full: deny")
    );
    let found = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
    assert_eq!((&found["refused"], &found["assumed"]["room:l"]), (&json!(1_000), &json!(1_000)));
    assert!(notes(&found).contains("max_keys"), "{found}");
}

/// A log without the secret of its hashes does not tell which plan a client has, nor whom an override names. The first is not judged,
/// the second is judged by the rate of all, and both are said.
#[test]
fn plans_and_overrides_behind_unknown_hashes_are_not_guessed_in_silence() {
    let hash = |n: u64| format!("#{n:032x}");
    let lines = |values: Value| -> String {
        (1..=8)
            .map(|n| {
                own("a", n, n * 10, 2, json!({ "replay": { "values": values, "trusted": true } }))
            })
            .collect()
    };
    let plans = one_limit(
        "algorithm: fixed_window, rate: 2/1h, plans: { by: header:x-plan, rates: { gold: 1000/1h } }",
    );
    let log = lines(json!({ "header:x-plan": hash(7) }));
    let found = report(&Asked { policy: &plans, ..Asked::default() }, &[&log]);
    assert_eq!(
        (&found["refused"], &found["not_judged"]["plan:header:x-plan"]),
        (&json!(0), &json!(8))
    );
    assert!(notes(&found).contains("whose plan a request names"), "{found}");
    // Whoever names no plan has none.
    let log = lines(json!({ "header:x-plan": "absent" }));
    let found = report(&Asked { policy: &plans, ..Asked::default() }, &[&log]);
    assert_eq!((&found["refused"], &found["not_judged"]), (&json!(6), &json!({})));
    let overrides = "limits: { l: { tier: exact, key: header:x-key, missing_key: deny, algorithm: fixed_window, rate: 2/1h, \
                     overrides: [{ key: vip, rate: 1000/1h }] } }\nroutes: [{ name: r, limits: [l] }]\n";
    let log = lines(json!({ "header:x-key": hash(9) }));
    let found = report(&Asked { policy: overrides, ..Asked::default() }, &[&log]);
    assert_eq!(
        (&found["refused"], &found["assumed"]["override:header:x-key"]),
        (&json!(6), &json!(8))
    );
    assert!(notes(&found).contains("overrides name keys"), "{found}");
}

/// Limits beside one with a penalty do not see what it bans: a suggestion for them says so.
#[test]
fn a_suggestion_says_what_bans_have_hidden() {
    let policy = "limits:\n  a: { tier: exact, algorithm: fixed_window, rate: 2/10s, key: client_ip, penalty: { after: 3, within: 5s, ban: 8s } }\n  \
                  b: { tier: exact, algorithm: fixed_window, rate: 100/10s, key: client_ip }\n\
                  routes: [{ name: r, limits: [a, b] }]\n";
    let log: String = (0..30).map(|n| combined(1, &at(n), "GET /", 200)).collect();
    let found = report(&Asked { policy, suggest: Some(50_000), ..Asked::default() }, &[&log]);
    let sentence = |name: &str| {
        let all = found["suggest"].as_array().unwrap();
        all.iter().find(|one| one["limit"] == name).unwrap()["sentence"].to_string()
    };
    assert!(sentence("b").contains("a penalty had banned"), "{found}");
}

/// Units that an answer will give back hold their place no longer than the window counts.
#[test]
fn held_units_leave_with_their_window() {
    let lines = (0..40).map(|n| own("a", 2 * n + 1, n * 1_000, 20_000, json!({ "status": 200 })));
    let log: String = lines.collect();
    for (algorithm, most) in [("fixed_window", 1), ("sliding_log", 1), ("sliding_window", 3)] {
        let policy =
            one_limit(&format!("algorithm: {algorithm}, rate: 5/1s, count: {{ status: [401] }}"));
        let asked = Asked { policy: &policy, suggest: Some(0), ..Asked::default() };
        let found = report(&asked, &[&log]);
        let rate = found["suggest"][0]["rate"].as_str().unwrap();
        let units: u32 = rate.split('/').next().unwrap().parse().unwrap();
        assert!(units <= most, "{algorithm}: {rate}");
        let policy = policy.replace("5/1s", rate);
        let again = report(&Asked { policy: &policy, ..Asked::default() }, &[&log]);
        assert_eq!(again["refused"], 0, "{algorithm} {rate}");
    }
}

/// A slot is free again at the instant in which its request ends.
#[test]
fn slots_that_are_free_at_once_are_suggested_as_few_as_they_are() {
    let lines = (0..3).map(|n| own("a", 2 * n + 1, n * 500, 500, json!({})));
    let log: String = lines.collect();
    let policy = "limits: { l: { tier: exact, key: client_ip, max_in_flight: 5 } }\nroutes: [{ name: r, limits: [l] }]\n";
    let found = report(&Asked { policy, suggest: Some(0), ..Asked::default() }, &[&log]);
    assert_eq!(found["suggest"][0]["rate"], "1 at once", "{found}");
}

/// A host that is a key is hidden as every other key is.
#[test]
fn a_host_that_is_a_key_is_hidden() {
    let log: String = (0..4).map(|n| own("a", n + 1, n * 10, 2, json!({}))).collect();
    let policy = "limits: { l: { tier: exact, key: host, missing_key: deny, algorithm: fixed_window, rate: 1/1h } }\nroutes: [{ name: r, limits: [l] }]\n";
    let found = report(&Asked { policy, ..Asked::default() }, &[&log]);
    assert_eq!(found["refused"], 3);
    assert!(!found.to_string().contains("a.test"), "{found}");
    let found = report(&Asked { policy, show_keys: true, ..Asked::default() }, &[&log]);
    assert!(found.to_string().contains("a.test"), "{found}");
}
