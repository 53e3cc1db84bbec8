//! Lines that were cut or changed: no panic, and a record or an error.

use std::hint::black_box;

use tollgate::access_lines::{Format, LineParser, Zone};

use crate::fixtures::FIXTURES;

/// Parsers of all formats that the fixtures have, so that lines are also read by the wrong one.
fn parsers() -> Vec<LineParser> {
    let names = ["combined", "common", "json", "traefik", "envoy", "haproxy", "alb", "cloudfront"];
    let formats = names.iter().map(|name| Format::parse(name).unwrap());
    formats.map(|format| LineParser::new(format, Zone::UTC)).collect()
}

/// Bytes that mean something in some format, and bytes that no format has.
const SPECIAL: [u8; 12] = [0x00, b' ', b'"', b'\\', b'[', b']', b'{', b'-', b'9', b'#', 0x80, 0xff];

/// Characters that mean something in the text of a format.
const SPECIAL_CHARACTERS: [char; 14] =
    ['%', '$', '{', '}', '^', '<', '>', '!', ',', 't', ' ', '"', '\\', '\u{fc}'];

#[test]
fn a_line_that_is_cut_anywhere_does_not_panic() {
    let mut wrong = parsers();
    for fixture in FIXTURES {
        let mut parser = fixture.parser();
        for line in fixture.bytes().split(|byte| *byte == b'\n') {
            for end in 0..=line.len() {
                let _ = black_box(parser.parse(&line[..end]));
                let _ = black_box(parser.parse(&line[end..]));
            }
            for parser in &mut wrong {
                let _ = black_box(parser.parse(line));
            }
        }
    }
}

#[test]
fn a_line_with_other_bytes_does_not_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    for fixture in FIXTURES {
        let mut parser = fixture.parser();
        for line in fixture.bytes().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let mut changed = line.to_vec();
            for at in 0..line.len() {
                for _ in 0..2 {
                    changed[at] = random.choice(SPECIAL).unwrap();
                    let _ = black_box(parser.parse(&changed));
                }
                changed[at] = line[at];
            }
            for _ in 0..50 {
                for _ in 0..random.usize(1..8) {
                    let at = random.usize(..changed.len());
                    changed[at] = random.u8(..);
                }
                let _ = black_box(parser.parse(&changed));
                changed.copy_from_slice(line);
            }
        }
    }
}

#[test]
fn a_format_that_is_cut_or_changed_does_not_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    for fixture in FIXTURES {
        let characters: Vec<char> = fixture.format.chars().collect();
        for end in 0..=characters.len() {
            let cut: String = characters[..end].iter().collect();
            let _ = black_box(Format::parse(&cut));
            let mut changed = characters.clone();
            for _ in 0..3.min(end) {
                changed[random.usize(..end)] = random.choice(SPECIAL_CHARACTERS).unwrap();
            }
            let changed: String = changed.iter().collect();
            if let Ok(format) = Format::parse(&changed) {
                let mut parser = LineParser::new(format, Zone::UTC);
                for line in fixture.bytes().split(|byte| *byte == b'\n').take(3) {
                    let _ = black_box(parser.parse(line));
                }
            }
        }
    }
}
