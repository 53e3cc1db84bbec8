//! What origins may take a path for.
//!
//! A reading is a way of decoding (not at all, once, twice) and a choice among five habits. Each path
//! is scanned once for each way; a reading is then written by the few marks that were found, and all
//! between them is copied.

use memchr::{memchr, memchr2};

use super::RejectReason;
use super::path::{escape, escaped, is_bad_ascii};

/// Most readings of one path. Escapes within escapes beside parameters and double slashes have twelve;
/// what has more mixes habits that no site has together.
const MAX_READINGS: usize = 24;

/// What a reader may do to a path that others do not.
type Habits = u8;

/// Takes `\` for `/`.
const BACKSLASHES: Habits = 1;
/// Cuts what begins with `;` off a segment.
const PARAMETERS: Habits = 1 << 1;
/// Takes several `/` for one.
const RUNS: Habits = 1 << 2;
/// Resolves `.` and `..` (RFC 3986, section 5.2.4).
const DOTS: Habits = 1 << 3;
/// Takes a decoded `?` or `#` for the end of the path.
const ENDS: Habits = 1 << 4;
const ALL: Habits = (1 << 5) - 1;

/// Every other path that an origin may take a canonical one for. `Err` where one of them holds
/// a control byte, a bad encoding or climbs above the root, and where there are too many.
pub(crate) fn readings(canonical: &str) -> Result<Vec<String>, RejectReason> {
    let mut all = Vec::new();
    let once = decode(canonical)?;
    let is_decoded = once.path == canonical;
    let end = if is_decoded { once.end } else { None };
    Marked::new(canonical, end).read(&mut all, 0)?;
    if is_decoded {
        return Ok(all);
    }
    let twice = decode(&once.path)?;
    Marked::new(&once.path, once.end).read(&mut all, 0)?;
    if twice.path != once.path {
        Marked::new(&twice.path, twice.end).read(&mut all, 0)?;
        all.push(twice.path);
    } else if twice.end != once.end {
        // Written alike, it ends elsewhere.
        Marked::new(&twice.path, twice.end).read(&mut all, ENDS)?;
    }
    all.push(once.path);
    Ok(all)
}

/// A path after a step of decoding.
struct Decoded {
    path: String,
    /// Where the first `?` or `#` stands that has been decoded, in this step or before. What is written
    /// `%3F` elsewhere in the path is the escape of one: it came from `%253F`.
    end: Option<usize>,
}

/// Decodes escapes of characters that may also stand bare, and of `%`. What is escaped still is
/// written as canonical paths are; `?` and `#` are left, since they would not be of the path.
fn decode(path: &str) -> Result<Decoded, RejectReason> {
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
            // A `%` that was decoded and begins nothing.
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
    Ok(Decoded { path, end })
}

/// Whether there is an encoding of ASCII, or an escaped control byte, that decoding has brought to light.
fn has_bad_ascii(path: &[u8]) -> bool {
    memchr::memchr_iter(b'%', path).any(|at| {
        escape(path, at)
            .is_some_and(|byte| matches!(byte, 0..=0x1f | 0x7f) || is_bad_ascii(path, at, byte))
    })
}

/// A path with the places where habits differ.
struct Marked<'p> {
    path: &'p str,
    marks: Vec<(usize, Mark)>,
    /// Where it ends for readers that take a decoded `?` or `#` for its end.
    end: Option<usize>,
    /// The habits that can matter.
    habits: Habits,
}

/// Where readers may differ.
#[derive(Clone, Copy)]
enum Mark {
    Backslash,
    Semicolon,
    /// A `/` after another one.
    SecondSlash,
    /// So many dots at the beginning of a segment, which may be all of it.
    Dots(usize),
}

impl<'p> Marked<'p> {
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

    /// Writes the reading of every choice of habits that has these, but none that does nothing.
    fn read(&self, all: &mut Vec<String>, needed: Habits) -> Result<(), RejectReason> {
        let matters = |habits: &Habits| habits & !self.habits == 0 && habits & needed == needed;
        for habits in (1..=ALL).filter(matters) {
            let mut reading = Reading { path: String::new(), habits, used: 0 };
            reading.write(self)?;
            // A habit that found nothing to do leaves what is written without it.
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

/// How many dots these bytes begin with, if they may be a whole segment.
fn dots(bytes: &[u8]) -> Option<usize> {
    let dots = if bytes.get(1) == Some(&b'.') { 2 } else { 1 };
    matches!(bytes.get(dots), None | Some(b'/' | b'\\' | b';' | b'%')).then_some(dots)
}

/// A reading that is being written.
struct Reading {
    path: String,
    habits: Habits,
    /// The habits that had something to do.
    used: Habits,
}

impl Reading {
    fn has(&self, habit: Habits) -> bool {
        self.habits & habit != 0
    }

    fn write(&mut self, marked: &Marked<'_>) -> Result<(), RejectReason> {
        let path = self.up_to_end(marked);
        let bytes = path.as_bytes();
        self.path.reserve(path.len());
        // Up to where the path is read.
        let mut at = 0;
        for &(place, mark) in &marked.marks {
            if place >= path.len() {
                break;
            }
            if place < at {
                continue;
            }
            match mark {
                Mark::Backslash if self.has(BACKSLASHES) => {
                    self.push(&path[at..place]);
                    self.push("/");
                    self.used |= BACKSLASHES;
                    at = place + 1;
                }
                Mark::Semicolon if self.has(PARAMETERS) => {
                    self.push(&path[at..place]);
                    self.used |= PARAMETERS;
                    at = self.segment_end(bytes, place);
                }
                Mark::SecondSlash => {
                    self.push(&path[at..place]);
                    at = place;
                }
                Mark::Dots(dots) if self.has(DOTS) && self.is_segment(bytes, place, dots) => {
                    self.push(&path[at..place]);
                    self.used |= DOTS;
                    if dots == 2 {
                        self.pop()?;
                    }
                    // The next segment follows the slash that is written already.
                    at = (self.segment_end(bytes, place) + 1).min(bytes.len());
                }
                Mark::Backslash | Mark::Semicolon | Mark::Dots(_) => {}
            }
        }
        self.push(&path[at..]);
        Ok(())
    }

    /// What this reader takes for the path.
    fn up_to_end<'p>(&mut self, marked: &Marked<'p>) -> &'p str {
        match marked.end.filter(|_| self.has(ENDS)) {
            Some(end) => {
                self.used |= ENDS;
                &marked.path[..end]
            }
            None => marked.path,
        }
    }

    /// Writes what holds no mark that matters.
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

    /// Takes the last segment back.
    fn pop(&mut self) -> Result<(), RejectReason> {
        let without = self.path.strip_suffix('/').ok_or(RejectReason::Path)?;
        let parent = without.rfind('/').ok_or(RejectReason::Path)?;
        self.path.truncate(parent + 1);
        Ok(())
    }

    /// Where the segment that `place` lies in ends.
    fn segment_end(&mut self, bytes: &[u8], place: usize) -> usize {
        let rest = &bytes[place..];
        let end = match self.has(BACKSLASHES) {
            true => memchr2(b'/', b'\\', rest),
            false => memchr(b'/', rest),
        };
        let end = end.map_or(bytes.len(), |end| place + end);
        if bytes.get(end) == Some(&b'\\') {
            self.used |= BACKSLASHES;
        }
        end
    }

    /// Whether dots at `place` are a whole segment to this reader.
    fn is_segment(&mut self, bytes: &[u8], place: usize, dots: usize) -> bool {
        let begins = bytes[place - 1] == b'/' || self.has(BACKSLASHES);
        let ends = match bytes.get(place + dots) {
            Some(b'\\') => self.has(BACKSLASHES),
            Some(b';') => self.has(PARAMETERS),
            // Of a `?` that this reader does not see.
            Some(b'%') => false,
            _ => true,
        };
        if begins && ends && bytes.get(place + dots) == Some(&b';') {
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
