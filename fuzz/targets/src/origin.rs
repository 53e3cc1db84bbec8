//! Origins that read paths as real ones do, written without a look at how tollgate does it: an origin
//! decodes a path some times, takes it apart into segments, and puts it together again.

use percent_encoding::percent_decode;

/// What an origin does to a path.
#[derive(Clone, Copy, Debug)]
struct Habits {
    /// How often it decodes.
    decodes: usize,
    /// Takes a decoded `?` or `#` for the end of the path.
    ends: bool,
    /// Takes `\` for `/`.
    backslashes: bool,
    /// Cuts `;parameters` off each segment.
    parameters: bool,
    /// Takes several `/` for one.
    merges: bool,
    /// Resolves `.` and `..`.
    dots: bool,
}

impl Habits {
    /// Every origin there can be.
    fn all() -> impl Iterator<Item = Self> {
        (0..3 * 32_usize).map(|n| Self {
            decodes: n / 32,
            ends: n & 1 != 0,
            backslashes: n & 2 != 0,
            parameters: n & 4 != 0,
            merges: n & 8 != 0,
            dots: n & 16 != 0,
        })
    }

    /// What it serves for a path, as bytes; `None`: the path climbs above the root.
    fn read(self, path: &str) -> Option<Vec<u8>> {
        let mut path = path.as_bytes().to_vec();
        for _ in 0..self.decodes {
            path = decoded(&path);
        }
        if self.ends && self.decodes > 0 {
            let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
            path.truncate(end.unwrap_or(path.len()));
        }
        let is_slash = |byte: &u8| *byte == b'/' || self.backslashes && *byte == b'\\';
        let mut segments: Vec<&[u8]> = path.split(is_slash).skip(1).collect();
        if self.parameters {
            for segment in &mut segments {
                *segment = segment.split(|byte| *byte == b';').next().unwrap_or_default();
            }
        }
        let last = segments.len().saturating_sub(1);
        let mut read: Vec<&[u8]> = Vec::new();
        for (n, segment) in segments.iter().enumerate() {
            match *segment {
                b"." | b".." if self.dots => {
                    if *segment == b".." {
                        read.pop()?;
                    }
                    // What was a directory stays one.
                    if n == last {
                        read.push(b"");
                    }
                }
                b"" if self.merges && n < last => {}
                other => read.push(other),
            }
        }
        let joined = [b"/", read.join(&b'/').as_slice()].concat();
        Some(joined)
    }
}

fn decoded(path: &[u8]) -> Vec<u8> {
    percent_decode(path).collect()
}

/// Whatever an origin takes an accepted path for is the path or one of its other readings.
pub(super) fn finds_its_reading(path: &str, readings: &[String]) {
    let known: Vec<String> = [path]
        .into_iter()
        .chain(readings.iter().map(String::as_str))
        .map(|one| written(one.as_bytes()))
        .collect();
    for origin in Habits::all() {
        let Some(read) = origin.read(path) else {
            panic!("{path}: {origin:?} climbs above the root");
        };
        let read = written(&read);
        assert!(known.contains(&read), "{path}: {origin:?} reads {read}: {readings:?}");
    }
}

/// A path as it is written in a request: what cannot stand bare is escaped, in upper case.
fn written(path: &[u8]) -> String {
    let mut text = String::new();
    let mut digits = 0;
    for (at, &byte) in path.iter().enumerate() {
        let is_escape = byte == b'%' && path[at + 1..].iter().take(2).all(u8::is_ascii_hexdigit);
        if is_escape && path.len() > at + 2 {
            digits = 3;
        }
        match byte {
            b'?' | b'#' | 0..=b' ' | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
            _ if digits > 0 => text.push(char::from(byte.to_ascii_uppercase())),
            _ => text.push(char::from(byte)),
        }
        digits = usize::saturating_sub(digits, 1);
    }
    text
}
