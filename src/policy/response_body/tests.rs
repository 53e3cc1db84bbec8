use super::*;

/// What a body says, cut into chunks of `size` bytes.
fn number(
    pointer: &str,
    body: &str,
    is_event_stream: bool,
    is_complete: bool,
    size: usize,
) -> BodyNumber {
    let pointer = JsonPointer::parse(pointer).unwrap();
    let pointers = || std::iter::once(&pointer);
    let mut scan = BodyScan::new(1, is_event_stream);
    body.as_bytes().chunks(size).for_each(|chunk| scan.push(pointers(), chunk));
    scan.finish(pointers(), is_complete)[0]
}

#[track_caller]
fn check(pointer: &str, body: &str, is_event_stream: bool, expected: BodyNumber) {
    for size in 1..=body.len().max(1) {
        assert_eq!(
            number(pointer, body, is_event_stream, true, size),
            expected,
            "{body} by {size}"
        );
    }
}

#[test]
fn the_number_at_the_pointer_is_found() {
    use BodyNumber::{Absent, Final, Invalid, SoFar};
    let tokens = "/usage/total_tokens";
    let rows = [
        (tokens, r#"{"id":"x","usage":{"prompt_tokens":1,"total_tokens":150}}"#, Final(150)),
        (tokens, r#" { "usage" : { "total_tokens" : 150 } } "#, Final(150)),
        (tokens, "\u{feff}{\"usage\":{\"total_tokens\":150}}", Final(150)),
        (tokens, r#"{"usage":{"total_tokens":1.2e1}}"#, Final(12)),
        (tokens, r#"{"usage":{"total_tokens":0.5}}"#, Final(1)),
        (tokens, r#"{"usage":{"total_tokens":"150"}}"#, Final(150)),
        (tokens, r#"{"usage":{"total_tokens":"1\u00350"}}"#, Final(150)),
        (tokens, r#"{"usage":{"total_tokens":99999999999}}"#, Final(u32::MAX)),
        (tokens, r#"{"usage":{"total_tokens":"99999999999"}}"#, Final(u32::MAX)),
        // The last of equal names counts.
        (tokens, r#"{"usage":{"total_tokens":1,"total_tokens":2}}"#, Final(2)),
        (tokens, r#"{"usage":{"total_tokens":1},"usage":{"total_tokens":2}}"#, Final(2)),
        (tokens, r#"{"usage":{"total_tokens":1},"usage":{}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":1},"usage":null}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":1,"total_tokens":null}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":1,"total_tokens":{"total_tokens":3}}}"#, Absent),
        // Names are compared unescaped.
        (tokens, r#"{"us\u0061ge":{"total\u005ftokens":150}}"#, Final(150)),
        ("/\u{1f600}/a", r#"{"\ud83d\ude00":{"a":7}}"#, Final(7)),
        ("/a~1b/~0", r#"{"a/b":{"~":7}}"#, Final(7)),
        // Elsewhere the same names mean nothing.
        (tokens, r#"{"total_tokens":1,"x":{"usage":{"total_tokens":2}}}"#, Absent),
        (tokens, r#"[{"usage":{"total_tokens":2}}]"#, Absent),
        (tokens, r#"{"usage":[{"total_tokens":2}]}"#, Absent),
        (tokens, r#"{"usages":{"total_tokens":2},"usag":{"total_tokens":2}}"#, Absent),
        (tokens, r#"{"x":"{\"usage\":{\"total_tokens\":9}}"}"#, Absent),
        // Elements.
        ("/choices/1/n", r#"{"choices":[{"n":1},{"n":[2,{}]},{"n":3}]}"#, Absent),
        ("/choices/1/n", r#"{"choices":[{"n":1},{"n":2},{"n":3}]}"#, Final(2)),
        ("/choices/1/n", r#"{"choices":[[1,[2,3]],{"n":2},4]}"#, Final(2)),
        ("/choices/1", r#"{"choices":{"1":5}}"#, Final(5)),
        ("/0", "[7]", Final(7)),
        ("/01", "[7,8]", Absent),
        ("/-", "[7]", Absent),
        // What is no number of units.
        (tokens, r#"{"usage":{"total_tokens":-1}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":""}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":" 1"}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":"1.5"}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":true}}"#, Absent),
        (tokens, r#"{"usage":{"total_tokens":[1]}}"#, Absent),
        (tokens, "5", Absent),
        // What is no document. A number that was seen is kept.
        (tokens, "", Absent),
        (tokens, " ", Invalid),
        (tokens, "<html>", Invalid),
        (tokens, r#"{"usage":{"total_tokens":01}}"#, SoFar(0)),
        (tokens, r#"{"usage":{"total_tokens":1.}}"#, Invalid),
        (tokens, r#"{"usage":{"total_tokens":1"#, Invalid),
        (tokens, r#"{"usage":{"total_tokens":1}"#, SoFar(1)),
        (tokens, r#"{"usage":{"total_tokens":1}}}"#, SoFar(1)),
        (tokens, r#"{"usage":{"total_tokens":1}} {}"#, SoFar(1)),
        (tokens, r#"{"usage":{"total_tokens":1},}"#, SoFar(1)),
        (tokens, r#"{"usage":{"total_tokens":1},"x":"\ud800"}"#, SoFar(1)),
        (tokens, "{\"usage\":{\"total_tokens\":1},\"x\":\"\t\"}", SoFar(1)),
    ];
    for (pointer, body, expected) in rows {
        check(pointer, body, false, expected);
    }
}

#[test]
fn the_last_event_that_has_the_number_counts() {
    use BodyNumber::{Absent, Final};
    let rows = [
        ("data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n", Final(2)),
        ("data: {\"n\":null}\n\ndata: {\"n\":7}\r\n\r\ndata: {\"x\":1}\n\n", Final(7)),
        ("data: {\"n\":\ndata: 7}\n\n", Final(7)),
        ("data: {\"n\":7,\"n\":null}\n\n", Absent),
        ("data: {\"n\":7}\n\ndata: {\"n\":9\n\n", Final(7)),
        ("data: {\"n\":7}\n\ndata: {\"n\":9}", Final(9)),
        ("event: done\n\n: {\"n\":7}\n\n", Absent),
        ("", Absent),
    ];
    for (body, expected) in rows {
        check("/n", body, true, expected);
    }
}

#[test]
fn a_body_that_breaks_off_names_at_least_what_it_named() {
    use BodyNumber::{Incomplete, Invalid, SoFar};
    let rows = [
        (false, r#"{"n":7"#, Incomplete),
        (false, r#"{"n":7,"#, SoFar(7)),
        (false, r#"{"n":7}"#, SoFar(7)),
        (false, "<html>", Invalid),
        (true, "data: {\"n\":7}\n\ndata: {\"x\":", SoFar(7)),
        (true, "data: {\"n\":7}\n\ndata: {\"n\":8,", SoFar(8)),
        (true, "data: [DONE]\n\n", Incomplete),
    ];
    for (is_event_stream, body, expected) in rows {
        for size in 1..=body.len() {
            assert_eq!(number("/n", body, is_event_stream, false, size), expected, "{body}");
        }
    }
}

#[test]
fn depth_is_bounded_as_in_the_reference() {
    for depth in [126, 127, 128, 1_000] {
        let body = format!("{{\"n\":7,\"x\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let is_valid = serde_json::from_str::<serde_json::Value>(&body).is_ok();
        assert_eq!(is_valid, depth <= 127);
        let expected = if is_valid { BodyNumber::Final(7) } else { BodyNumber::SoFar(7) };
        check_by("/n", &body, expected, 97);
    }
}

#[track_caller]
fn check_by(pointer: &str, body: &str, expected: BodyNumber, size: usize) {
    assert_eq!(number(pointer, body, false, true, size), expected);
}

/// The memory of a response that is read.
#[test]
fn a_scan_is_small() {
    assert!(size_of::<PointerScan>() <= 160, "{}", size_of::<PointerScan>());
    assert!(size_of::<BodyScan>() <= 256, "{}", size_of::<BodyScan>());
}
