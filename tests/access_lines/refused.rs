//! Formats, fields and lines that are refused.

use tollgate::access_lines::{Format, LineError, LineParser, MAX_LINE, Zone};

#[test]
fn a_refused_format_names_its_cause_and_its_cure() {
    let check = |format: &str, fields: &[&str], expected: &str| {
        let refused = Format::parse(format).and_then(|format| format.with_fields(fields));
        assert_eq!(refused.unwrap_err().to_string(), expected);
    };
    check("combind", &[], "unknown format \"combind\"; did you mean \"combined\"?");
    check(
        "squid",
        &[],
        "unknown format \"squid\"; known are combined, common, json, tollgate, caddy, traefik, envoy, haproxy, alb, cloudfront, nginx: FORMAT, apache: FORMAT",
    );
    check("nginx: $status", &[], "the format has no time; add $time_iso8601 or $msec");
    check(
        "nginx: $msec $remote_addr$status",
        &[],
        "nothing stands between $remote_addr and $status, so no line can be divided; write a space between them",
    );
    check("json", &["metod=verb"], "unknown field \"metod\"; did you mean \"method\"?");
    check(
        "json",
        &["method"],
        "field \"method\" is not NAME=PATH; write it as in header.x-api-key=request.headers.x-api-key",
    );
    check(
        "haproxy",
        &["user_agent=0"],
        "path \"0\" names no capture; write captures.0 for the first captured request header",
    );
    check(
        "combined",
        &["method=verb"],
        "the format \"combined\" takes no fields; fields are for JSON formats and for the captures of haproxy",
    );
}

#[test]
fn a_refused_line_tells_why() {
    let check = |format: &str, line: &[u8], expected: LineError| {
        let mut parser = LineParser::new(Format::parse(format).unwrap(), Zone::UTC);
        let found = parser.parse(line).err();
        assert_eq!(found, Some(expected), "{format}: {}", String::from_utf8_lossy(line));
    };
    check("combined", b"", LineError::NoRequest);
    check("combined", b"  \r\n", LineError::NoRequest);
    check("combined", b"# comment", LineError::NoRequest);
    check("combined", b"x", LineError::WrongShape);
    check(
        "combined",
        br#"10.0.0.1 - - [24/Nix/2026:06:46:29 +0000] "GET / HTTP/1.1" 200 6 "-" "-""#,
        LineError::BadTime,
    );
    check(
        "combined",
        br#"10.0.0.1 - - [24/Nov/2026:06:46:29 +0000] "GET / HTTP/1.1" 200 6"#,
        LineError::WrongShape,
    );
    check("json", b"10.0.0.1 - -", LineError::NotJson);
    check("json", b"{\"time\":1795502789", LineError::NotJson);
    check("json", b"{\"time\":1795502789} x", LineError::NotJson);
    check("json", b"{\"path\":\"/\"}", LineError::NoTime);
    check("json", b"{\"time\":\"yesterday\"}", LineError::BadTime);
    check("json", &vec![b'x'; MAX_LINE + 1], LineError::TooLong);
    check("haproxy", b"Feb  6 12:14:14 lb haproxy[1]: Proxy web started.", LineError::WrongShape);
    check("nginx: [$msec]", b"1795502789", LineError::WrongShape);
}

#[test]
fn deep_json_is_refused_and_does_not_overflow_the_stack() {
    let mut parser = LineParser::new(Format::parse("caddy").unwrap(), Zone::UTC);
    let mut line = b"{\"ts\":1795502789,\"request\":".to_vec();
    line.resize(60_000, b'[');
    assert_eq!(parser.parse(&line).err(), Some(LineError::NotJson));
}
