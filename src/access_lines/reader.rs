//! Reads a log line by line, also a compressed log, within bounded memory.

use std::fmt;
use std::io::{self, ErrorKind, Read};

use memchr::memchr;

use super::broken_lines::BrokenLines;
use super::compression::{self, Compression};
use super::record::LineError;

/// The largest number of bytes of a line, without its end. Longer lines are skipped and counted.
pub const MAX_LINE: usize = 64 * 1_024;

/// Bytes that are read at a time: a line of the largest length and its end always fit.
const BUFFER: usize = 2 * MAX_LINE;

/// What some programs write before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads the lines of a log. A log that is cut or corrupt ends where it cannot be read any more, with a warning.
pub struct LineReader<'r> {
    name: String,
    input: Box<dyn Read + Send + 'r>,
    compression: Compression,
    buffer: Vec<u8>,
    /// What is read but not yet given out.
    start: usize,
    end: usize,
    line: u64,
    has_ended: bool,
    is_skipping: bool,
    broken: BrokenLines,
    warning: Option<ReadWarning>,
}

/// A line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedLine<'b> {
    /// Its number in the log, from 1.
    pub number: u64,
    /// Its bytes, without the line's end.
    pub bytes: &'b [u8],
}

/// Why a log was not read to its end. What could be read was given out, except for the line that is cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem} after line {lines}; the lines before it were read")]
pub struct ReadWarning {
    /// The name of the log.
    pub name: String,
    /// Complete lines before it.
    pub lines: u64,
    /// What was wrong.
    pub problem: ReadProblem,
}

/// What is wrong with a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProblem {
    /// A compressed log ends in the middle.
    Cut(Compression),
    /// A compressed log cannot be decompressed.
    Corrupt(Compression),
    /// The system refused to read.
    Unreadable(ErrorKind),
}

impl fmt::Display for ReadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(compression) => write!(f, "the {compression} file is cut"),
            Self::Corrupt(compression) => write!(f, "the {compression} file is corrupt"),
            Self::Unreadable(kind) => write!(f, "cannot be read ({kind})"),
        }
    }
}

impl<'r> LineReader<'r> {
    /// Opens a log; its first bytes tell whether it is compressed with gzip or zstd. The name stands in warnings. Nothing
    /// fails here: a log that cannot be read has no lines and a warning.
    pub fn open(name: impl Into<String>, input: impl Read + Send + 'r) -> Self {
        let mut reader = Self {
            name: name.into(),
            input: Box::new(io::empty()),
            compression: Compression::None,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            line: 0,
            has_ended: false,
            is_skipping: false,
            broken: BrokenLines::default(),
            warning: None,
        };
        match compression::open(input) {
            Ok((compression, input)) => {
                reader.compression = compression;
                reader.input = input;
            }
            Err(error) => reader.stop(&error),
        }
        reader
    }

    /// The next line. `None` at the end, and where the log cannot be read any more.
    pub fn next_line(&mut self) -> Option<NumberedLine<'_>> {
        let (from, to) = self.find_line()?;
        let bytes = &self.buffer[from..to];
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let mark = if self.line == 1 { BYTE_ORDER_MARK } else { b"" };
        let bytes = bytes.strip_prefix(mark).unwrap_or(bytes);
        Some(NumberedLine { number: self.line, bytes })
    }

    /// Counts the last line as broken.
    pub fn reject(&mut self, error: LineError) {
        self.broken.record(self.line, error);
    }

    /// The lines that were too long or rejected.
    pub fn broken(&self) -> &BrokenLines {
        &self.broken
    }

    /// The number of lines so far.
    pub fn lines(&self) -> u64 {
        self.line
    }

    /// How the log is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Why the log was not read to its end.
    pub fn warning(&self) -> Option<&ReadWarning> {
        self.warning.as_ref()
    }

    /// The range of the next line in the buffer.
    fn find_line(&mut self) -> Option<(usize, usize)> {
        // The index up to which no line end was found, so that no byte is searched twice.
        let mut searched = self.start;
        loop {
            if let Some(at) = memchr(b'\n', &self.buffer[searched..self.end]) {
                let (from, to) = (self.start, searched + at);
                self.start = to + 1;
                if self.takes(to - from, self.buffer[..to].ends_with(b"\r")) {
                    return Some((from, to));
                }
                searched = self.start;
                continue;
            }
            if self.has_ended {
                return self.last_line();
            }
            if self.end - self.start > MAX_LINE + 1 {
                self.is_skipping = true;
                self.start = self.end;
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            searched = self.end;
            self.fill();
        }
    }

    /// What stands behind the last line end. If the log was cut, that is no line.
    fn last_line(&mut self) -> Option<(usize, usize)> {
        let (from, to) = (self.start, self.end);
        self.start = self.end;
        let is_line = (from < to || self.is_skipping) && self.warning.is_none();
        (is_line && self.takes(to - from, self.buffer[..to].ends_with(b"\r"))).then_some((from, to))
    }

    /// Counts a line; whether its length is allowed.
    fn takes(&mut self, length: usize, has_return: bool) -> bool {
        self.line += 1;
        let is_long = self.is_skipping || length > MAX_LINE + usize::from(has_return);
        self.is_skipping = false;
        if is_long {
            self.broken.record(self.line, LineError::TooLong);
        }
        !is_long
    }

    fn fill(&mut self) {
        match self.input.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.has_ended = true,
            Ok(bytes) => self.end += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => self.stop(&error),
        }
    }

    fn stop(&mut self, error: &io::Error) {
        let problem = match (self.compression, error.kind()) {
            (Compression::None, kind) => ReadProblem::Unreadable(kind),
            (compression, ErrorKind::UnexpectedEof) => ReadProblem::Cut(compression),
            (compression, ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::Other) => {
                ReadProblem::Corrupt(compression)
            }
            (_, kind) => ReadProblem::Unreadable(kind),
        };
        let (name, lines) = (self.name.clone(), self.line);
        self.warning = Some(ReadWarning { name, lines, problem });
        self.has_ended = true;
    }
}

impl fmt::Debug for LineReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LineReader");
        debug.field("name", &self.name).field("line", &self.line).finish_non_exhaustive()
    }
}
