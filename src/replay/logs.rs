//! Reads the logs of a replay: finds their formats, and merges their requests by time.
//!
//! A log has a bounded sample of lines at its beginning, from which its format and what its lines have is found. What must
//! always hold: a log that cannot be read ends the replay of that log only, and is reported.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderName;

use super::entry::{LogEntry, SourceIndex, Unjudged};
use crate::access_lines::{
    AccessLine, BrokenLines, Format, LineError, LineParser, LineReader, MAX_LINE, ReadWarning,
    Zone, detect, unread_compression,
};
use crate::clock::Nanos;
use crate::policy::Coverage;

/// Lines of a log that are looked at before its first request is judged.
const SAMPLE_LINES: usize = 200;

/// Bytes of a sample.
const SAMPLE_BYTES: usize = 4 * MAX_LINE;

/// Logs of one replay: all are open at once.
pub const MAX_LOGS: usize = 500;

/// How logs are read.
#[derive(Clone, Debug)]
pub struct ReadSettings {
    /// Their format; `None`: each is found by its first lines.
    pub format: Option<Format>,
    /// Where fields stand, as `NAME=PATH`.
    pub fields: Vec<String>,
    /// The zone of times without one.
    pub zone: Zone,
    /// Requests that begin earlier are left out.
    pub from: Option<Nanos>,
    /// Requests that begin then or later are left out.
    pub to: Option<Nanos>,
    /// Which of `User-Agent` and `Referer` no policy reads. They take most of the memory of a line.
    pub unread: Vec<HeaderName>,
}

impl Default for ReadSettings {
    fn default() -> Self {
        Self {
            format: None,
            fields: Vec::new(),
            zone: Zone::UTC,
            from: None,
            to: None,
            unread: Vec::new(),
        }
    }
}

/// Why a log cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error("{}: {error}", file.display())]
    Unopened {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// No format reads its lines.
    #[error(
        "{name}: no known format reads its first lines; name it with --format, or say where the fields of a JSON line stand with --field"
    )]
    UnknownFormat {
        /// The log.
        name: String,
    },
    /// It is compressed in a way that is not read.
    #[error(
        "{name}: only files by gzip and zstd are decompressed here; give standard input what `{command}` makes of it, as \
         {command} LOG | tollgate replay --config FILE -"
    )]
    Compressed {
        /// The log.
        name: String,
        /// What decompresses it.
        command: &'static str,
    },
    /// A field cannot be named in this format.
    #[error("{name}: {error}")]
    Fields {
        /// The log.
        name: String,
        /// What is wrong.
        error: crate::access_lines::FormatError,
    },
}

/// A log that is read.
pub struct Log {
    name: String,
    reader: LineReader<'static>,
    parser: LineParser,
    format: Format,
    sample: std::vec::IntoIter<(u64, Vec<u8>)>,
    coverage: Coverage,
    has_exact_times: bool,
    broken_in_sample: BrokenLines,
    source: SourceIndex,
    settings: ReadSettings,
    unjudged: Vec<(Unjudged, u64)>,
    left_out: u64,
    span: Option<(Nanos, Nanos)>,
}

/// What was found of one log.
#[derive(Clone, Debug)]
pub struct ReadSummary {
    /// Its name.
    pub name: String,
    /// Its format.
    pub format: &'static str,
    /// Lines that were read.
    pub lines: u64,
    /// Lines without a record.
    pub broken: BrokenLines,
    /// Requests that no policy can judge.
    pub unjudged: Vec<(Unjudged, u64)>,
    /// Requests outside the asked time.
    pub left_out: u64,
    /// The first and the last time of all requests.
    pub span: Option<(Nanos, Nanos)>,
    /// Whether times come twice in the zone of the log.
    pub has_doubtful_times: bool,
    /// Why it was not read to its end.
    pub warning: Option<ReadWarning>,
}

impl Log {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be opened, or its format is not known.
    pub fn open(
        file: &Path,
        source: SourceIndex,
        settings: &ReadSettings,
    ) -> Result<Option<Self>, LogError> {
        if file.as_os_str() == "-" {
            return Self::read("<stdin>", io::stdin(), source, settings);
        }
        let unopened = |error| LogError::Unopened { file: file.to_owned(), error };
        let opened = File::open(file).map_err(unopened)?;
        if opened.metadata().map_err(unopened)?.is_dir() {
            return Err(unopened(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        Self::read(&file.display().to_string(), opened, source, settings)
    }

    /// Reads a log. `None`: it is empty.
    ///
    /// # Errors
    /// Its format is not known.
    pub fn read(
        name: &str,
        input: impl Read + Send + 'static,
        source: SourceIndex,
        settings: &ReadSettings,
    ) -> Result<Option<Self>, LogError> {
        let mut reader = LineReader::open(name, input);
        let mut sample = Vec::new();
        let mut bytes = 0;
        while sample.len() < SAMPLE_LINES && bytes < SAMPLE_BYTES {
            let Some(line) = reader.next_line() else {
                break;
            };
            bytes += line.bytes.len();
            sample.push((line.number, line.bytes.to_vec()));
        }
        let lines: Vec<&[u8]> = sample.iter().map(|(_, line)| line.as_slice()).collect();
        if let Some(command) = lines.first().and_then(|line| unread_compression(line)) {
            return Err(LogError::Compressed { name: name.to_owned(), command });
        }
        let unreadable = |error| LogError::Fields { name: name.to_owned(), error };
        let has_warning = reader.warning().is_some();
        let format = match (&settings.format, lines.is_empty()) {
            (Some(format), _) => format.clone(),
            // A log without a line has any format.
            (None, true) if !has_warning && reader.broken().total() == 0 => return Ok(None),
            // What can be read of it begins with no line: any format will do.
            (None, true) => Format::parse("combined").map_err(unreadable)?,
            (None, false) => match detect(&lines) {
                Some(format) => format,
                // The operator says where the fields of a JSON line stand.
                None if !settings.fields.is_empty() => Format::parse("json").map_err(unreadable)?,
                None => return Err(LogError::UnknownFormat { name: name.to_owned() }),
            },
        };
        let format = format.with_fields(&settings.fields).map_err(unreadable)?;
        let (coverage, has_exact_times) = qualities(&format, &settings.zone, &lines);
        Ok(Some(Self {
            name: name.to_owned(),
            reader,
            parser: LineParser::new(format.clone(), settings.zone.clone()),
            format,
            sample: sample.into_iter(),
            coverage,
            has_exact_times,
            broken_in_sample: BrokenLines::default(),
            source,
            settings: settings.clone(),
            unjudged: Vec::new(),
            left_out: 0,
            span: None,
        }))
    }

    /// Which values its lines have.
    pub fn coverage(&self) -> Arc<Coverage> {
        Arc::new(self.coverage.clone())
    }

    /// Whether its lines have exact times, by the first of them.
    pub const fn has_exact_times(&self) -> bool {
        self.has_exact_times
    }

    /// Whether another server wrote it, or a tollgate that had nothing written for a replay.
    pub fn is_foreign(&self) -> bool {
        self.format.name() != "tollgate"
    }

    /// The next request.
    pub fn next_entry(&mut self) -> Option<Box<LogEntry>> {
        loop {
            let result = match self.sample.next() {
                Some((number, line)) => match self.parser.parse(&line) {
                    Ok(parsed) => LogEntry::of(&parsed, self.source, &self.settings.unread),
                    Err(error) => {
                        self.broken_in_sample.record(number, error);
                        continue;
                    }
                },
                None => {
                    let line = self.reader.next_line()?;
                    match self.parser.parse(line.bytes) {
                        Ok(parsed) => LogEntry::of(&parsed, self.source, &self.settings.unread),
                        Err(error) => {
                            self.reader.reject(error);
                            continue;
                        }
                    }
                }
            };
            match result {
                Ok(entry) => {
                    let at = entry.at.wall;
                    let (first, last) = self.span.unwrap_or((at, at));
                    self.span = Some((first.min(at), last.max(at)));
                    if self.is_wanted(at) {
                        return Some(Box::new(entry));
                    }
                    self.left_out += 1;
                }
                Err(why) => self.note(why),
            }
        }
    }

    fn is_wanted(&self, at: Nanos) -> bool {
        let ReadSettings { from, to, .. } = self.settings;
        from.is_none_or(|from| at >= from) && to.is_none_or(|to| at < to)
    }

    fn note(&mut self, why: Unjudged) {
        match self.unjudged.iter_mut().find(|(other, _)| *other == why) {
            Some((_, count)) => *count += 1,
            None => self.unjudged.push((why, 1)),
        }
    }

    /// What was found of it.
    pub fn summary(&self) -> ReadSummary {
        let mut broken = self.broken_in_sample.clone();
        broken.add(self.reader.broken());
        ReadSummary {
            name: self.name.clone(),
            format: self.format.name(),
            lines: self.reader.lines(),
            broken,
            unjudged: self.unjudged.clone(),
            left_out: self.left_out,
            span: self.span,
            has_doubtful_times: self.parser.has_doubtful_times(),
            warning: self.reader.warning().cloned(),
        }
    }
}

/// What the lines of a log have, and whether their times are exact, by its first lines.
fn qualities(format: &Format, zone: &Zone, lines: &[&[u8]]) -> (Coverage, bool) {
    let mut parser = LineParser::new(format.clone(), zone.clone());
    let mut coverage = Coverage { query: format.name() != "tollgate", ..Coverage::default() };
    for name in format.headers() {
        coverage.add_header(&name);
    }
    let (mut has_record, mut are_exact) = (false, true);
    for line in lines {
        match parser.parse(line) {
            Ok(parsed) => {
                has_record = true;
                are_exact &= parsed.own.is_some() || parsed.is_refused_early;
                learn(&mut coverage, &parsed);
            }
            Err(
                LineError::NoRequest
                | LineError::NoTime
                | LineError::BadTime
                | LineError::NotJson
                | LineError::TooLong
                | LineError::WrongShape,
            ) => {}
        }
    }
    (coverage, has_record && are_exact)
}

fn learn(coverage: &mut Coverage, line: &AccessLine<'_>) {
    coverage.host |= line.host.is_some();
    let known = [("user-agent", line.user_agent.is_some()), ("referer", line.referer.is_some())];
    let known = known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name);
    for name in known.chain(line.headers.iter().map(|(name, _)| &**name)) {
        coverage.add_header(name);
    }
}

/// Requests of several logs, merged by time.
pub struct MergedLogs {
    logs: Vec<Log>,
    /// The next two requests of each log.
    heads: Vec<LogHead>,
    /// The logs that have a next request, the earliest first.
    earliest: BinaryHeap<Reverse<(Nanos, usize)>>,
}

/// The next two requests of a log. A log is as far as the earlier of both, so that one line with a time far ahead does not keep
/// the whole log back.
#[derive(Default)]
struct LogHead {
    next: Option<Box<LogEntry>>,
    second: Option<Box<LogEntry>>,
}

impl LogHead {
    fn at(&self) -> Option<Nanos> {
        let times = [&self.next, &self.second].into_iter().flatten().map(|entry| entry.at.wall);
        times.min()
    }

    /// Takes the next request, and puts another one behind the second.
    fn advance(&mut self, another: Option<Box<LogEntry>>) -> Option<Box<LogEntry>> {
        let second = std::mem::replace(&mut self.second, another);
        std::mem::replace(&mut self.next, second)
    }
}

impl MergedLogs {
    /// Merges logs.
    pub fn new(mut logs: Vec<Log>) -> Self {
        let head = |log: &mut Log| LogHead { next: log.next_entry(), second: log.next_entry() };
        let heads: Vec<LogHead> = logs.iter_mut().map(head).collect();
        let times = heads.iter().enumerate();
        let earliest = times.filter_map(|(index, head)| Some(Reverse((head.at()?, index))));
        Self { logs, earliest: earliest.collect(), heads }
    }

    /// The next request.
    pub fn next_entry(&mut self) -> Option<Box<LogEntry>> {
        let Reverse((_, index)) = self.earliest.pop()?;
        let another = self.logs[index].next_entry();
        let next = self.heads[index].advance(another);
        if let Some(at) = self.heads[index].at() {
            self.earliest.push(Reverse((at, index)));
        }
        next
    }

    /// Lines that were read so far.
    pub fn lines(&self) -> u64 {
        self.logs.iter().map(|log| log.reader.lines()).sum()
    }

    /// What was found of each log.
    pub fn summaries(&self) -> Vec<ReadSummary> {
        self.logs.iter().map(Log::summary).collect()
    }
}
