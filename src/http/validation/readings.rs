//! Every path that an origin may read a canonical path as.
//!
//! A reading is a number of decoding steps (none, one, two) and a choice among five habits of readers. A path is scanned
//! once for each number of steps. A reading is then written from the few marks that the scan found; everything between
//! the marks is copied. It knows no routes: the policy decides whether all readings match alike.

use memchr::{memchr, memchr2};

use super::path::{escape, escaped, is_bad_ascii};
use super::reject_reason::RejectReason;

/// Readings of one path, at most. Escaped escapes together with parameters and double slashes have twelve; a path with more
/// mixes habits that no site has together.
const MAX_READINGS: usize = 24;

/// What some readers do to a path and others do not: a set of bits.
type Habits = u8;

/// Reads `\` as `/`.
const BACKSLASHES: Habits = 1;
/// Cuts `;` and what follows it off a segment.
const PARAMETERS: Habits = 1 << 1;
/// Reads several `/` as one.
const RUNS: Habits = 1 << 2;
/// Resolves `.` and `..` (RFC 3986, section 5.2.4).
const DOTS: Habits = 1 << 3;
/// Reads a decoded `?` or `#` as the end of the path.
const ENDS: Habits = 1 << 4;
const ALL: Habits = (1 << 5) - 1;

/// Every other path that an origin may read a canonical path as.
///
/// # Errors
/// [`RejectReason::Path`] when a reading has a control byte or a bad encoding, climbs above the root, or when there are
/// more than [`MAX_READINGS`].
pub(crate) fn readings(canonical: &str) -> Result<Vec<String>, RejectReason> {
    let mut all = Vec::new();
    let once = decode(canonical)?;
    let is_decoded = once.path == canonical;
    let end = if is_decoded { once.end } else { None };
    MarkedPath::new(canonical, end).read(&mut all, 0)?;
    if is_decoded {
        return Ok(all);
    }
    let twice = decode(&once.path)?;
    MarkedPath::new(&once.path, once.end).read(&mut all, 0)?;
    if twice.path != once.path {
        MarkedPath::new(&twice.path, twice.end).read(&mut all, 0)?;
        all.push(twice.path);
    } else if twice.end != once.end {
        // The same text ends at another position.
        MarkedPath::new(&twice.path, twice.end).read(&mut all, ENDS)?;
    }
    all.push(once.path);
    Ok(all)
}

/// A path after a decoding step.
struct DecodedPath {
    path: String,
    /// The position of the first `?` or `#` that was decoded, in this step or before. A `%3F` elsewhere in the path is an
    /// escaped one: it came from `%253F`.
    end: Option<usize>,
}

/// Decodes escapes of characters that are valid without an escape, and of `%`. Remaining escapes are written as in canonical
/// paths. `?` and `#` stay escaped, since bare they would end the path.
fn decode(path: &str) -> Result<DecodedPath, RejectReason> {
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(path.len());
    let (mut copied, mut end) = (0, None);
    while let Some(found) = memchr(b'%', &bytes[copied..]) {
        let at = copied + found;
        decoded.extend_from_slice(&bytes[copied..at]);
        copied = at + 3;
        match escape(bytes, at) {
            Some(b'%') => match escape(bytes, at + 2) {
                // An escape that was escaped.
                Some(inner) => {
                    decoded.extend_from_slice(&escaped(inner));
                    copied = at + 5;
                }
                None => decoded.push(b'%'),
            },
            Some(0..=0x1f | 0x7f) => return Err(RejectReason::Path),
            Some(byte) if byte < 0x80 && !matches!(byte, b' ' | b'?' | b'#') => decoded.push(byte),
            Some(byte) => {
                if matches!(byte, b'?' | b'#') {
                    end = end.or(Some(decoded.len()));
                }
                decoded.extend_from_slice(&escaped(byte));
            }
            // A decoded `%` that begins no escape.
            None => {
                decoded.push(b'%');
                copied = at + 1;
            }
        }
    }
    decoded.extend_from_slice(&bytes[copied..]);
    if has_bad_ascii(&decoded) {
        return Err(RejectReason::Path);
    }
    let path = String::from_utf8(decoded).map_err(|_| RejectReason::Path)?;
    Ok(DecodedPath { path, end })
}

/// Whether decoding has revealed an overlong encoding of ASCII or an escaped control byte.
fn has_bad_ascii(path: &[u8]) -> bool {
    memchr::memchr_iter(b'%', path).any(|at| {
        escape(path, at)
            .is_some_and(|byte| matches!(byte, 0..=0x1f | 0x7f) || is_bad_ascii(path, at, byte))
    })
}

/// A path with the positions at which habits differ.
struct MarkedPath<'p> {
    path: &'p str,
    marks: Vec<(usize, Mark)>,
    /// Where the path ends for readers with [`ENDS`].
    end: Option<usize>,
    /// The habits that can change it.
    habits: Habits,
}

/// What is at a position at which readers may differ.
#[derive(Clone, Copy)]
enum Mark {
    Backslash,
    Semicolon,
    /// A `/` after another one.
    SecondSlash,
    /// One or two dots at the beginning of a segment, which may be all of it.
    Dots(usize),
}

impl<'p> MarkedPath<'p> {
    fn new(path: &'p str, end: Option<usize>) -> Self {
        let (mut marks, mut habits) = (Vec::new(), if end.is_some() { ENDS } else { 0 });
        let bytes = path.as_bytes();
        for (at, &byte) in bytes.iter().enumerate() {
            let begins = || matches!(bytes[at - 1], b'/' | b'\\');
            let (mark, matters) = match byte {
                b'\\' => (Mark::Backslash, BACKSLASHES | RUNS),
                b';' => (Mark::Semicolon, PARAMETERS | RUNS),
                b'/' if at > 0 && bytes[at - 1] == b'/' => (Mark::SecondSlash, RUNS),
                b'.' if at > 0 && begins() => match dots(&bytes[at..]) {
                    Some(dots) => (Mark::Dots(dots), DOTS),
                    None => continue,
                },
                _ => continue,
            };
            marks.push((at, mark));
            habits |= matters;
        }
        Self { path, marks, end, habits }
    }

    /// Writes a reading for every choice of habits that contains `needed`, except for choices with a habit that changes
    /// nothing.
    fn read(&self, all: &mut Vec<String>, needed: Habits) -> Result<(), RejectReason> {
        let matters = |habits: &Habits| habits & !self.habits == 0 && habits & needed == needed;
        for habits in (1..=ALL).filter(matters) {
            let mut reading = Reading { path: String::new(), habits, used: 0 };
            reading.write(self)?;
            // With a habit that changed nothing, the reading equals the one without that habit.
            if reading.used == habits {
                all.push(reading.path);
            }
            if all.len() > MAX_READINGS {
                return Err(RejectReason::Path);
            }
        }
        Ok(())
    }
}

/// The number of dots that `bytes` begin with, if they may be a complete segment.
fn dots(bytes: &[u8]) -> Option<usize> {
    let dots = if bytes.get(1) == Some(&b'.') { 2 } else { 1 };
    matches!(bytes.get(dots), None | Some(b'/' | b'\\' | b';' | b'%')).then_some(dots)
}

/// A reading that is being written.
struct Reading {
    path: String,
    habits: Habits,
    /// The habits that changed something.
    used: Habits,
}

impl Reading {
    fn has(&self, habit: Habits) -> bool {
        self.habits & habit != 0
    }

    fn write(&mut self, marked: &MarkedPath<'_>) -> Result<(), RejectReason> {
        let path = self.up_to_end(marked);
        let bytes = path.as_bytes();
        self.path.reserve(path.len());
        // The path is read up to here.
        let mut at = 0;
        for &(position, mark) in &marked.marks {
            if position >= path.len() {
                break;
            }
            if position < at {
                continue;
            }
            match mark {
                Mark::Backslash if self.has(BACKSLASHES) => {
                    self.push(&path[at..position]);
                    self.push("/");
                    self.used |= BACKSLASHES;
                    at = position + 1;
                }
                Mark::Semicolon if self.has(PARAMETERS) => {
                    self.push(&path[at..position]);
                    self.used |= PARAMETERS;
                    at = self.segment_end(bytes, position);
                }
                Mark::SecondSlash => {
                    self.push(&path[at..position]);
                    at = position;
                }
                Mark::Dots(dots) if self.has(DOTS) && self.is_segment(bytes, position, dots) => {
                    self.push(&path[at..position]);
                    self.used |= DOTS;
                    if dots == 2 {
                        self.pop()?;
                    }
                    // The slash before the next segment has been written.
                    at = (self.segment_end(bytes, position) + 1).min(bytes.len());
                }
                Mark::Backslash | Mark::Semicolon | Mark::Dots(_) => {}
            }
        }
        self.push(&path[at..]);
        Ok(())
    }

    /// The part that this reader takes for the path.
    fn up_to_end<'p>(&mut self, marked: &MarkedPath<'p>) -> &'p str {
        match marked.end.filter(|_| self.has(ENDS)) {
            Some(end) => {
                self.used |= ENDS;
                &marked.path[..end]
            }
            None => marked.path,
        }
    }

    /// Writes text without a mark that matters.
    fn push(&mut self, text: &str) {
        let text = match text.strip_prefix('/') {
            Some(rest) if self.has(RUNS) && self.path.ends_with('/') => {
                self.used |= RUNS;
                rest
            }
            _ => text,
        };
        self.path.push_str(text);
    }

    /// Removes the last segment.
    fn pop(&mut self) -> Result<(), RejectReason> {
        let without = self.path.strip_suffix('/').ok_or(RejectReason::Path)?;
        let parent = without.rfind('/').ok_or(RejectReason::Path)?;
        self.path.truncate(parent + 1);
        Ok(())
    }

    /// Where the segment at `position` ends.
    fn segment_end(&mut self, bytes: &[u8], position: usize) -> usize {
        let rest = &bytes[position..];
        let end = match self.has(BACKSLASHES) {
            true => memchr2(b'/', b'\\', rest),
            false => memchr(b'/', rest),
        };
        let end = end.map_or(bytes.len(), |end| position + end);
        if bytes.get(end) == Some(&b'\\') {
            self.used |= BACKSLASHES;
        }
        end
    }

    /// Whether dots at `position` are a complete segment for this reader.
    fn is_segment(&mut self, bytes: &[u8], position: usize, dots: usize) -> bool {
        let begins = bytes[position - 1] == b'/' || self.has(BACKSLASHES);
        let ends = match bytes.get(position + dots) {
            Some(b'\\') => self.has(BACKSLASHES),
            Some(b';') => self.has(PARAMETERS),
            // An escaped `?`, which this reader does not decode.
            Some(b'%') => false,
            _ => true,
        };
        if begins && ends && bytes.get(position + dots) == Some(&b';') {
            self.used |= PARAMETERS;
        }
        begins && ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_what_origins_make_of_it() {
        for (path, expected) in [
            ("/a//b", "/a/b"),
            ("/x/../a/b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a;v=1/b;w", "/a/b"),
            ("/a\\b", "/a/b"),
            ("/a%2Fb", "/a/b"),
            ("/a%252Fb", "/a/b"),
            ("/a%255Cb", "/a/b"),
            ("/x/..;/a/b", "/a/b"),
            ("/x%2F..%2Fa/b", "/a/b"),
            ("/a/x//../b", "/a/b"),
            ("/a/x//../b", "/a/x/b"),
            ("/x/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/a\\..\\b", "/b"),
            ("/a/..\\b", "/b"),
            ("/x/..;y\\b", "/b"),
            ("/a/;x/b", "/a/b"),
            ("/a%3Fb", "/a"),
            ("/a%23b", "/a"),
            ("/a%253F/b", "/a"),
            ("/a%2F..%3Fb", "/"),
            ("/caf%25c3%25a9", "/caf%C3%A9"),
            ("/%2561dmin", "/admin"),
            // The escape of an escape ends a path only for readers that decode twice.
            ("/free%253F/../a/b%3Fx", "/a/b"),
            ("/x%253F%3Fy", "/x%3F"),
            ("/x%253F%3Fy", "/x"),
            ("/free%2523/../a/b%23x", "/a/b"),
        ] {
            let found = readings(path).unwrap();
            assert!(found.iter().any(|reading| reading == expected), "{path}: {found:?}");
        }
        for path in [
            "/..",
            "/a/../..",
            "/x%2F..%2F..%2Fa",
            "/x%2500",
            "/x%250a",
            "/a%25c1%25a1",
            "/a%C3%25A9%25e0%2581%25A1",
            "//..",
        ] {
            assert_eq!(readings(path), Err(RejectReason::Path), "{path}");
        }
    }

    #[test]
    fn each_reading_is_written_once() {
        for (path, count) in [
            ("/a%2Fb", 1),
            ("/a%20b%2Fc%2Fd", 1),
            ("/a//b", 1),
            ("/a;b", 1),
            ("/a%3Fb", 1),
            ("/a%252Fb", 2),
            ("/a%2Fb;v=1//c", 7),
        ] {
            let found = readings(path).unwrap();
            let mut distinct = found.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!((found.len(), distinct.len()), (count, count), "{path}: {found:?}");
        }
        // No site has all habits together.
        assert_eq!(readings("/a/../%252F%2F\\;x//./b"), Err(RejectReason::Path));
    }
}
