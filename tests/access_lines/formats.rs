//! What is read of each log.

use std::borrow::Cow;

use tollgate::access_lines::{Format, LineError, LineParser, LineReader, Zone, detect};

use crate::expected::EXPECTED;
use crate::fixtures::{FIXTURES, named, show};

#[test]
fn every_field_of_a_line_is_read() {
    for (file, number, expected) in EXPECTED {
        let fixture = named(file);
        let bytes = fixture.bytes();
        let mut parser = fixture.parser();
        let mut shown = None;
        for line in bytes.split(|byte| *byte == b'\n').take(*number) {
            shown = parser.parse(line).ok().map(|record| show(&record));
        }
        let shown = shown.unwrap().replace('\u{1b}', "\u{241b}");
        assert_eq!(shown.trim_end(), *expected, "{file}, line {number}");
    }
}

#[test]
fn every_log_has_an_expected_line() {
    for fixture in FIXTURES {
        assert!(EXPECTED.iter().any(|(file, _, _)| *file == fixture.file), "{}", fixture.file);
    }
}

#[test]
fn no_line_is_lost() {
    for fixture in FIXTURES {
        let mut parser = fixture.parser();
        let bytes = fixture.bytes();
        let mut reader = LineReader::open(fixture.file, bytes.as_slice());
        let mut records = 0;
        while let Some(line) = reader.next_line() {
            match parser.parse(line.bytes) {
                Ok(_) => records += 1,
                Err(error) => reader.reject(error),
            }
        }
        let comments = reader.broken().of(LineError::NoRequest).count;
        assert_eq!(reader.broken().total(), 0, "{}: {:?}", fixture.file, reader.broken());
        assert_eq!(records + comments, reader.lines(), "{}", fixture.file);
        assert!(records > 1 && reader.warning().is_none(), "{}", fixture.file);
    }
}

#[test]
fn the_format_is_detected() {
    for fixture in FIXTURES.iter().filter(|fixture| fixture.detected.is_some()) {
        let bytes = fixture.bytes();
        let sample: Vec<_> = bytes.split(|byte| *byte == b'\n').collect();
        let detected = detect(&sample);
        assert_eq!(detected.map(|format| format.name()), fixture.detected, "{}", fixture.file);
    }
}

#[test]
fn nothing_is_detected_in_other_texts() {
    let check = |sample: &[&[u8]]| {
        assert!(detect(sample).is_none(), "{sample:?}");
    };
    check(&[]);
    check(&[b""]);
    check(&[b"# a comment"]);
    check(&[b"2026/11/24 06:46:29 [error] 7#7: *1 open() failed"]);
    check(&[b"{\"level\":\"info\",\"msg\":\"started\"}"]);
    let line = br#"10.0.0.1 - - [24/Nov/2026:06:46:29 +0000] "GET / HTTP/1.1" 200 6 "-" "-""#;
    check(&[line, b"x", b"y"]);
    assert_eq!(detect(&[line, line, b"x"]).map(|format| format.name()), Some("combined"));
}

/// A format, a line, and fields that the line is expected to have.
type Case = (&'static str, &'static str, &'static [&'static str]);

#[test]
fn forms_of_fields_are_understood() {
    let cases: &[Case] = &[
        // Lists of upstreams have spaces, also without quotes.
        (
            "nginx: $msec $upstream_response_time $http_x_forwarded_for $status",
            "1795502789.250 0.001, 0.002 : 0.003 203.0.113.7, 10.0.0.1 200",
            &["header x-forwarded-for: 203.0.113.7, 10.0.0.1", "status: 200"],
        ),
        // The local time has a space, and needs no brackets.
        (
            "nginx: $time_local $host $uri$is_args$args $https",
            "24/Nov/2026:06:46:29 +0000 a.example.com /x?y=1 on",
            &["time: 1795502789000000000 +1000000000 End", "target: /x?y=1", "tls: true"],
        ),
        (
            "nginx: $time_iso8601|$scheme|$http_host|$server_name|$bytes_sent|$body_bytes_sent|$realip_remote_addr|$remote_addr",
            "2026-11-24T07:46:29+01:00|https|a:8443|b|700|612|10.0.0.1|203.0.113.7",
            &["host: a:8443", "bytes: 612", "client: 203.0.113.7", "tls: true"],
        ),
        ("nginx: $msec ${host}$uri", "1795502789.250 a.example.com/x", &["host: a.example.com"]),
        (
            "apache: %{sec}t%{usec_frac}t %{X}e %h %{ms}T %{Host}i",
            "1795502789250000 - 10.0.0.1 12 a.example.com:80",
            &[
                "time: 1795502789250000000 +1000 Start",
                "duration: 12000000",
                "host: a.example.com:80",
            ],
        ),
        (
            "apache: %{begin:%F %T}t %{end:msec}t %>s %I %O %T",
            "2026-11-24 06:46:29 1795502790000 200 1 2 3",
            &["time: 1795502790000000000 +1000000 End", "bytes: 2", "duration: 3000000000"],
        ),
        (
            "apache: %{c}a %a %t %{cookie}i|%V",
            "10.0.0.1 203.0.113.7 [24/Nov/2026:06:46:29 +0000] a=b; c=d|h",
            &["client: 203.0.113.7", "header cookie: a=b; c=d"],
        ),
        (
            "haproxy",
            "Nov 24 06:46:29 lb1 haproxy[14389]: 2001:db8::1:33317 [24/Nov/2026:06:46:29.655] in~ app/srv1 10/0/30/69/+109 200 +2750 - - ---- 1/1/1/1/0 0/0 {a|b} {c} \"GET /index.html HTTP/1.1\" 0/0",
            &["client: 2001:db8::1", "duration: 109000000", "bytes: 2750", "tls: true"],
        ),
        (
            "json",
            r#"{"time":1795502789.25,"ip":"10.0.0.1","url":"http://a.example.com/x?y","duration":"12ms"}"#,
            &["target: /x?y", "host: a.example.com", "duration: 12000000"],
        ),
        // Text is unescaped, and what is not a time or a text is left out.
        (
            "json",
            r#"{"time":"2026-11-24T06:46:29Z","path":"\/a\u00e4","status":null,"method":{"x":1}}"#,
            &["target: /a\u{e4}"],
        ),
        (
            "combined",
            "a.example.com:443 10.0.0.1 - - [24/Nov/2026:06:46:29 +0000] \"GET / HTTP/1.1\" 200 6 \"-\" \"-\"",
            &["host: a.example.com:443", "client: 10.0.0.1"],
        ),
        // Syslog writes a prefix.
        (
            "combined",
            "<134>Nov 24 06:46:29 web1 nginx[7]: 10.0.0.1 - bob [24/Nov/2026:06:46:29 +0000] \"GET / HTTP/1.1\" 200 6 \"-\" \"-\"",
            &["client: 10.0.0.1", "user: bob"],
        ),
        (
            "combined",
            "2001:db8:: - ops: bob [24/Nov/2026:06:46:29 +0000] \"GET / HTTP/1.1\" 200 6 \"-\" \"-\"",
            &["client: 2001:db8::", "user: ops: bob"],
        ),
        (
            "json",
            "Nov 24 06:46:29 web1 nginx: {\"time\":\"2026-11-24T06:46:29Z\",\"ip\":\"10.0.0.1\"}",
            &["client: 10.0.0.1"],
        ),
    ];
    for (format, line, expected) in cases {
        let mut parser = LineParser::new(Format::parse(format).unwrap(), Zone::UTC);
        let shown = show(&parser.parse(line.as_bytes()).unwrap());
        for field in *expected {
            assert!(shown.lines().any(|shown| shown == *field), "{format}: {field} in {shown}");
        }
    }
}

#[test]
fn fields_may_be_named_in_formats_that_are_known() {
    let fixture = named("caddy");
    let bytes = fixture.bytes();
    let line = bytes.split(|byte| *byte == b'\n').nth(1).unwrap();
    let fields = [
        "header.x-api-key=request.headers.x-api-key.0",
        "user=$.request.headers.X-Api-Key.0",
        "duration_us=duration",
        "client_ip=request.remote_ip",
    ];
    let format = Format::parse("caddy").unwrap().with_fields(&fields).unwrap();
    let mut parser = LineParser::new(format, Zone::UTC);
    let record = parser.parse(line).unwrap();
    assert_eq!(record.user.as_deref(), Some("k-1234"));
    assert_eq!(record.client, Some([127, 0, 0, 1].into()));
    assert_eq!(record.duration, Some(0), "0.000208598 us");
    let keys = record.headers.iter().filter(|(name, _)| name == "x-api-key").count();
    assert_eq!(keys, 1);
}

#[test]
fn an_ordinary_line_is_borrowed() {
    let check = |format: &str| {
        let line = br#"10.0.0.1 - bob [24/Nov/2026:06:46:29 +0000] "GET /a?b HTTP/1.1" 200 6 "https://a/" "curl/8.5.0""#;
        let mut parser = LineParser::new(Format::parse(format).unwrap(), Zone::UTC);
        let record = parser.parse(line).unwrap();
        let texts = [record.method, record.target, record.user_agent, record.referer, record.user];
        for text in texts {
            assert!(matches!(text, Some(Cow::Borrowed(_))), "{format}: {text:?}");
        }
        assert_eq!(record.headers.capacity(), 0);
    };
    check("combined");
    check(
        r#"nginx: $remote_addr - $remote_user [$time_local] "$request" $status $bytes_sent "$http_referer" "$http_user_agent""#,
    );
    check(r#"apache: %h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#);
}

#[test]
fn every_header_can_be_asked_for() {
    let fixture = named("caddy");
    let bytes = fixture.bytes();
    let line = bytes.split(|byte| *byte == b'\n').nth(1).unwrap();
    let mut parser = fixture.parser();
    let record = parser.parse(line).unwrap();
    assert_eq!(record.header("x-api-key"), Some("k-1234"));
    assert_eq!(record.header("user-agent"), record.user_agent.as_deref());
    assert_eq!(record.header("referer"), Some("https://example.com/from?x=\"1\""));
    assert_eq!(record.header("host"), Some("127.0.0.1:18082"));
    assert_eq!(record.header("cookie"), None);
}

#[test]
fn plain_json_with_the_names_of_tollgate_is_not_its_own() {
    for line in [
        r#"{"time":"2026-11-24T06:46:29Z","client_ip":"192.0.2.1","method":"GET","path":"/a?user=1","status":200,"duration":0.45}"#,
        r#"{ "time": "2026-11-24T06:46:29Z", "client_ip": "192.0.2.1", "method": "GET", "path": "/a?user=1", "status": 200, "duration": 0.45 }"#,
    ] {
        let format = detect(&[line.as_bytes()]).unwrap();
        assert_eq!(format.name(), "json", "{line}");
        let mut parser = LineParser::new(format, Zone::UTC);
        let record = parser.parse(line.as_bytes()).unwrap();
        assert_eq!(record.duration, Some(450_000_000), "{line}");
    }
}
