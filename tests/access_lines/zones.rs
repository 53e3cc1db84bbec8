//! Time zones of stamps that name none.

use tollgate::access_lines::{Format, LineParser, Moment, Stamp, Zone};

#[test]
fn a_stamp_without_a_zone_is_in_the_zone_that_is_given() {
    let check = |zone: &str, time: &str, seconds: u64| {
        let format = Format::parse("haproxy").unwrap();
        let mut parser = LineParser::new(format, Zone::parse(zone).unwrap());
        let line = format!(
            "10.0.0.1:1 [{time}] in app/srv1 0/0/0/0/0 200 1 - - ---- 1/1/1/1/0 0/0 \"GET / HTTP/1.1\""
        );
        let expected =
            Stamp { nanos: seconds * 1_000_000_000, resolution: 1_000_000, moment: Moment::Start };
        for _ in 0..2 {
            assert_eq!(parser.parse(line.as_bytes()).unwrap().stamp, expected, "{zone} {time}");
        }
    };
    let at = 1_795_502_789;
    check("UTC", "24/Nov/2026:06:46:29.000", at);
    check("+02:00", "24/Nov/2026:06:46:29.000", at - 7_200);
    check("-0530", "24/Nov/2026:06:46:29.000", at + 19_800);
    check("Europe/Berlin", "24/Nov/2026:06:46:29.000", at - 3_600);
    check("America/New_York", "24/Jul/2026:06:46:29.000", 1_784_889_989);
}

#[test]
fn an_unknown_zone_is_refused_with_a_cure() {
    assert_eq!(
        Zone::parse("Europe/Berln").unwrap_err().to_string(),
        "unknown time zone \"Europe/Berln\"; write UTC, an offset such as +02:00, or a name such as Europe/Berlin"
    );
}
