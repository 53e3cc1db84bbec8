//! The report as text, JSON and HTML.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::clock::Nanos;
use tollgate::replay::compare::Comparison;
use tollgate::replay::judged::{JudgedRequest, KeyResult, KeyVerdict};
use tollgate::replay::names::Names;
use tollgate::replay::report::{
    BrokenLineKind, ComparedPolicy, LineNumber, LogLines, Percentiles, Report, Share, SuggestedRate,
};
use tollgate::replay::suggest::PeakMeasure;
use tollgate::replay::tally::Tally;

use crate::requests::{Shown, names, request, verdict};
use crate::well_formed;

fn empty(names: Arc<Names>) -> Report {
    Report {
        policy: "tollgate.yaml".to_owned(),
        lines: LogLines::default(),
        summary: Tally::new(names).finish(10),
        not_judged: BTreeMap::new(),
        assumed: BTreeMap::new(),
        notes: Vec::new(),
        compare: None,
        suggestions: Vec::new(),
    }
}

/// A report in which everything that the log or a file can say is this text.
fn report_of(text: &'static str, times: &[u64]) -> Report {
    let texts = names(&[text, "second"]);
    let mut labels = (*texts).clone();
    labels.routes = vec![Arc::from(text)];
    for label in &mut labels.limits {
        (label.key, label.rate) = (text.to_owned(), text.to_owned());
        (label.max_delay, label.rollout) = (Some(text.to_owned()), Some(text.to_owned()));
    }
    let labels = Arc::new(labels);
    let mut tally = Tally::new(labels.clone());
    let mut comparison = Comparison::new(&labels, &names(&["second", "third"]));
    let shown = Shown(text);
    for (number, at) in (0..).zip(times) {
        let verdicts = [
            verdict(0, number % 3, KeyResult::Refused),
            KeyVerdict { shadow: true, ..verdict(1, 1, KeyResult::Banned) },
        ];
        let base = request(*at, &verdicts);
        let judged = JudgedRequest { method: text, host: text, path: text, shown: &shown, ..base };
        tally.add(&judged);
        let other = JudgedRequest { refused: false, verdicts: &[], ..judged };
        comparison.add_pair(&judged, &other);
        comparison.add_pair(&other, &JudgedRequest { refused: true, ..other });
    }
    let mut report = empty(labels);
    report.summary = tally.finish(10);
    report.summary.limits[0].bounds = Some((1, 5));
    report.policy = text.to_owned();
    let first = vec![LineNumber { file: text.to_owned(), line: 7 }];
    let broken = vec![BrokenLineKind { kind: text.to_owned(), number: 2, first }];
    report.lines = LogLines { read: 9, broken, late: 1, repeated: 2 };
    report.not_judged.insert(text.to_owned(), 1_000);
    report.assumed.insert(text.to_owned(), 2);
    report.notes.push(text.to_owned());
    report.compare =
        Some(ComparedPolicy { other: text.to_owned(), comparison: comparison.finish() });
    report.suggestions.push(suggestion(text));
    report
}

fn suggestion(text: &str) -> SuggestedRate {
    let share = |number| Share { number, total: 1_000 };
    SuggestedRate {
        limit: Arc::from(text),
        rate: "120/1m".to_owned(),
        burst: Some(20),
        refuses_keys: share(1),
        measure: PeakMeasure::Burst,
        percentiles: Percentiles { p50: 1, p90: 10, p99: 60, p99_9: 110, max: 900 },
        curve: vec![(1, share(1_000)), (10, share(100)), (120, share(1)), (900, share(0))],
        yaml: format!("limits:\n  - name: {text}\n    rate: 120/1m"),
        sentence: text.to_owned(),
    }
}

const HOSTILE: [&str; 9] = [
    "plain",
    "</title></style></script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "\" onload=\"alert(1)\" x='",
    "&lt;&amp;<!--",
    "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}31m\r\n\t\0",
    "a\u{202e}b\u{2066}c\u{200b}d\u{feff}e\u{2028}f",
    "]]>-->%s{}\\",
    "\u{1f980}\u{fffd}\u{10ffff}",
    "",
];

fn check_text(text: &str) {
    for line in text.lines() {
        assert!(!line.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)));
    }
}

#[test]
fn texts_of_the_log_stay_texts() {
    let long: &'static str = "<\u{e4}\u{1b}".repeat(20_000).leak();
    for text in HOSTILE.into_iter().chain([long]) {
        let report = report_of(text, &[1_000, 2_000, 3_000, 400_000]);
        check_text(&report.text());
        check_text(&report.json());
        well_formed::check(&report.html());
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["policy"], text);
        if text.len() < 200 {
            assert_eq!(json["compare"]["examples"][0]["path"], text);
            assert_eq!(json["limits"][0]["top"][0]["key"], text);
        }
        assert!(!report.html().contains("<script") && !report.html().contains("<img"));
        assert!(report.html().len() < 200_000 && report.text().len() < 60_000);
    }
}

#[test]
fn the_page_loads_nothing() {
    let page = report_of("http://example.com/a.css", &[1_000, 90_000]).html();
    let own = page.replace("http://example.com/a.css", "");
    for foreign in ["http://", "https://", "url(", "@import", "src=", "<script", "style="] {
        let is_markup = own.split('<').any(|tag| tag.split('>').next().unwrap().contains(foreign));
        assert!(!is_markup, "{foreign}");
    }
    assert!(!own.contains("url(") && !own.contains("@import"));
    assert!(own.contains("content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri"));
    assert!(page.contains("<pre tabindex=\"0\">limits:\n  - name: http"), "{page}");
}

#[test]
fn members_of_the_json_are_those_of_the_interface() {
    let report = report_of("x", &[1_000, 2_000, 3_000, 4_500]);
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    for (pointer, expected) in [
        ("/from", json!("1970-01-01T00:00:01.000Z")),
        ("/to", json!("1970-01-01T00:00:04.500Z")),
        ("/lines", json!(9)),
        ("/broken", json!(2)),
        ("/requests", json!(4)),
        ("/refused", json!(4)),
        ("/not_judged", json!({ "x": 1_000 })),
        ("/assumed", json!({ "x": 2 })),
        ("/limits/0/name", json!("x")),
        ("/limits/0/judged", json!(4)),
        ("/limits/0/refused", json!(4)),
        ("/limits/0/keys", json!(3)),
        ("/limits/0/keys_refused", json!(3)),
        ("/limits/0/window_seconds", json!(60)),
        ("/limits/0/bounds", json!({ "lower": 1, "upper": 5 })),
        ("/limits/0/top/0/key", json!("x")),
        ("/limits/0/top/0/requests", json!(2)),
        ("/limits/0/top/0/refused", json!(2)),
        ("/limits/0/top/0/peak_rate", json!(2)),
        ("/limits/1/refused", json!(0)),
        ("/limits/1/shadow_refused", json!(4)),
        ("/compare/newly_refused", json!(4)),
        ("/compare/newly_refused_without_key", json!(4)),
        ("/compare/newly_admitted", json!(4)),
        ("/compare/examples/0/change", json!("newly_refused")),
        ("/suggest/0/limit", json!("x")),
        ("/suggest/0/rate", json!("120/1m")),
        ("/suggest/0/burst", json!(20)),
        ("/suggest/0/refuses_keys_share", json!(0.001)),
        (
            "/suggest/0/percentiles",
            json!({ "p50": 1, "p90": 10, "p99": 60, "p99_9": 110, "max": 900 }),
        ),
    ] {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}");
    }
}

#[test]
fn nothing_at_all_can_be_reported() {
    for names in [names(&[]), names(&["a"])] {
        let report = empty(names);
        assert!(report.text().starts_with("No request could be judged.\n0 lines read.\n"));
        well_formed::check(&report.html());
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let expected = (&Value::Null, &Value::Null, &json!([]));
        assert_eq!((&json["from"], &json["compare"], &json["suggest"]), expected);
    }
}

#[test]
fn the_verdict_comes_first() {
    let admitted = [verdict(0, 1, KeyResult::Admitted)];
    let refused = [verdict(0, 1, KeyResult::Refused)];
    for (requests, expected) in [
        (vec![request(0, &admitted)], "tollgate.yaml would refuse none of 1 request.\n"),
        (
            vec![request(0, &refused)],
            "tollgate.yaml would refuse 1 of 1 request (100 %), 1 of 1 key.\n",
        ),
        (
            vec![request(0, &admitted), request(1, &admitted), request(2, &refused)],
            "tollgate.yaml would refuse 1 of 3 requests (33.33 %), 1 of 1 key.\n",
        ),
    ] {
        let mut tally = Tally::new(names(&["a"]));
        requests.iter().for_each(|request| tally.add(request));
        let report = Report { summary: tally.finish(10), ..empty(names(&["a"])) };
        assert!(report.text().starts_with(expected), "{}", report.text());
        well_formed::check(&report.html());
    }
}

#[test]
fn spans_of_years_are_shown_and_lines_fit() {
    const DAY: u64 = 86_400_000;
    for times in [vec![0], vec![0, 5_000 * DAY], vec![0, 1, 2], vec![20_000 * DAY, 21_000 * DAY]] {
        let report = report_of("a key that is rather long, as those of headers are", &times);
        let text = report.text();
        let longest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(longest.chars().count() <= 100, "{longest}");
        let html = report.html();
        well_formed::check(&html);
        assert_eq!(html.contains("id=\"time-requests-title\""), times.len() == 2, "{times:?}");
    }
}

#[test]
fn the_longest_times_and_numbers_fit_their_types() {
    let mut tally = Tally::new(names(&["a"]));
    for at in [0, u64::MAX] {
        let verdicts = [KeyVerdict { cost: u32::MAX, ..verdict(0, 1, KeyResult::Refused) }];
        let request = JudgedRequest { at: Nanos::new(at), ..request(0, &verdicts) };
        (0..3).for_each(|_| tally.add(&request));
    }
    let report = Report { summary: tally.finish(usize::MAX), ..empty(names(&["a"])) };
    assert_eq!(report.summary.limits[0].top[0].peak_rate, u64::from(u32::MAX));
    assert!(report.text().contains("2554-07-21"));
    well_formed::check(&report.html());
}
