//! Indexed names against reading every piece for each name, as it was written first.

use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use super::*;
use crate::clock::Nanos;
use crate::policy::ConnectionFacts;
use crate::policy::client::RequestClient;

fn facts<'r>(
    query: &'r str,
    headers: &'r HeaderMap,
    conditions: Option<&'r ConditionResults>,
) -> Facts<'r> {
    Facts {
        client: RequestClient { ip: [192, 0, 2, 1].into(), ipv6_prefix: 64, peer_trusted: false },
        connection: &ConnectionFacts::NONE,
        now: Nanos::ZERO,
        method: "GET",
        host: "a",
        path: "/",
        readings: &[],
        query: Some(query),
        headers,
        conditions,
    }
}

type Read<'r> = Result<Vec<&'r [u8]>, Unreadable>;

/// The first `max` values of a parameter.
fn plain_query<'r>(query: &'r str, name: &str, max: usize) -> Read<'r> {
    let (mut values, name) = (Vec::new(), name.as_bytes());
    for pair in query.as_bytes().split(|byte| *byte == b'&') {
        for (index, piece) in pair.split(|byte| *byte == b';').enumerate() {
            let equals = piece.iter().position(|byte| *byte == b'=');
            let (found, value) = match equals {
                Some(at) => (&piece[..at], &piece[at + 1..]),
                None => (piece, &[][..]),
            };
            if index == 0 && spelling::is_name(found, name) {
                if piece.len() < pair.len() {
                    return Err(Unreadable);
                }
                values.push(value);
                if values.len() == max {
                    return Ok(values);
                }
            } else if spelling::is_like(found, name) {
                return Err(Unreadable);
            }
        }
    }
    Ok(values)
}

fn plain_cookies<'r>(lines: &'r [String], name: &str) -> Read<'r> {
    let (mut values, name) = (Vec::new(), name.as_bytes());
    for pair in lines.iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';')) {
        for (index, piece) in pair.split(|byte| *byte == b',').enumerate() {
            let Some(at) = piece.iter().position(|byte| *byte == b'=') else {
                continue;
            };
            let (found, value) = (piece[..at].trim_ascii(), piece[at + 1..].trim_ascii());
            if value.starts_with(b"\"") && (value.len() == 1 || !value.ends_with(b"\"")) {
                return Err(Unreadable);
            }
            if found == name && index == 0 && piece.len() == pair.len() {
                values.push(value);
            } else if spelling::is_like(found, name) {
                return Err(Unreadable);
            }
        }
    }
    Ok(values)
}

const NAMES: [&str; 18] = [
    "a", "a_b", "a.b", "a b", "a[b", "a]b", "a]", "[a", " a", "", "a%62", "a+b", "A", "aa", "é",
    "b", "_", "a__",
];
const LETTERS: [&str; 30] = [
    "a", "a", "a", "b", "b", "_", ".", "+", " ", "[", "]", "[]", "%", "%61", "%5b", "%5D", "%20",
    "%00", "%2e", "%c1%a1", "%c1%9f", "%c0%80", "é", "%c3%a9", "%a", "=", "=x", "\"", "%62", "A",
];

fn text(draw: &mut fastrand::Rng, separators: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..draw.usize(..14) {
        match draw.u8(..4) {
            0 => text.push_str(draw.choice(separators.iter()).unwrap()),
            1 => text.push_str(draw.choice(NAMES).unwrap()),
            _ => text.push_str(draw.choice(LETTERS).unwrap()),
        }
    }
    text
}

#[test]
fn an_index_of_the_query_reads_what_reading_all_of_it_does() {
    let (mut draw, headers) = (fastrand::Rng::with_seed(3), HeaderMap::new());
    let (mut found, mut unreadable) = (0, 0);
    for round in 0..20_000 {
        let query = text(&mut draw, &["&", "&", "=&", ";"]);
        let known = ConditionResults::default();
        for index in 0..NAMES.len() {
            let (name, max) = (NAMES[(index + round) % NAMES.len()], 1 + round % 3);
            let expected = plain_query(&query, name, max);
            for conditions in [None, Some(&known)] {
                let mut values = Vec::new();
                let read = query::each(&facts(&query, &headers, conditions), name, |value| {
                    values.push(value);
                    values.len() < max
                });
                assert_eq!(read.map(|()| values), expected, "{query:?} {name:?}");
            }
            found += expected.as_ref().map_or(0, Vec::len);
            unreadable += usize::from(expected.is_err());
        }
    }
    assert!(found > 10_000 && unreadable > 10_000, "{found} {unreadable}");
}

#[test]
fn an_index_of_the_cookies_reads_what_reading_all_of_them_does() {
    let mut draw = fastrand::Rng::with_seed(4);
    let (mut found, mut unreadable) = (0, 0);
    for round in 0..20_000 {
        let lines: Vec<String> =
            (0..draw.usize(..4)).map(|_| text(&mut draw, &[";", "; ", "=1; ", ","])).collect();
        let values = lines.iter().map(|line| HeaderValue::from_bytes(line.as_bytes()).unwrap());
        let headers: HeaderMap = values.map(|line| (COOKIE, line)).collect();
        let known = ConditionResults::default();
        for index in 0..NAMES.len() {
            let name = NAMES[(index + round) % NAMES.len()];
            let expected = plain_cookies(&lines, name);
            for conditions in [None, Some(&known)] {
                let mut values = Vec::new();
                let read = cookie::each(&facts("", &headers, conditions), name, |value| {
                    values.push(value.to_vec());
                });
                let expected = expected.clone();
                let expected = expected.map(|found| found.iter().map(|v| v.to_vec()).collect());
                assert_eq!(read.map(|()| values), expected, "{lines:?} {name:?}");
            }
            found += expected.as_ref().map_or(0, Vec::len);
            unreadable += usize::from(expected.is_err());
        }
    }
    assert!(found > 5_000 && unreadable > 5_000, "{found} {unreadable}");
}

/// A thousand names in a query of 30,000 pieces cost hardly more than twenty.
#[test]
fn the_pieces_are_read_once_for_all_names() {
    let (query, headers) = ("&".repeat(30_000), HeaderMap::new());
    let work = |names: usize| {
        let known = ConditionResults::default();
        let facts = facts(&query, &headers, Some(&known));
        for name in 0..names {
            assert_eq!(any_query(&facts, &format!("name{name}"), |_| true), Ok(false));
        }
        known.budget().work()
    };
    assert!(work(1_000) < work(20) + 20_000, "{} {}", work(1_000), work(20));
    assert!(work(20) < 300_000, "{}", work(20));
}

/// What an ordinary request has costs a thousand names little.
#[test]
fn a_thousand_names_are_looked_for_in_an_ordinary_request() {
    let query: String = (0..20).map(|n| format!("name{n}=value{n}&")).collect();
    let cookies: String = (0..12).map(|n| format!("name{n}={}; ", "v".repeat(60))).collect();
    let headers = HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(&cookies).unwrap())]);
    let known = ConditionResults::default();
    let facts = facts(&query, &headers, Some(&known));
    for name in 0..1_000 {
        let found = any_query(&facts, &format!("name{name}"), |_| true);
        assert_eq!(found, Ok(name < 20));
        assert_eq!(any_cookie(&facts, &format!("name{name}"), |_| true), Ok(name < 12));
    }
    assert!(known.budget().work() < 50_000, "{}", known.budget().work());
}
