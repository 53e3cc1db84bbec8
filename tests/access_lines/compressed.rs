//! Logs as files: compressed, cut, and with lines that are too long.

use std::io::{self, Read, Write};

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use tollgate::access_lines::{Compression, LineError, LineReader, MAX_LINE, ReadProblem};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    // As the command does.
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The lines of a log with their numbers, and what was wrong with it.
fn read(input: impl Read + Send) -> (Vec<(u64, String)>, Option<ReadProblem>) {
    let mut reader = LineReader::open("access.log", input);
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line() {
        lines.push((line.number, String::from_utf8_lossy(line.bytes).into_owned()));
    }
    assert_eq!(reader.next_line(), None);
    (lines, reader.warning().map(|warning| warning.problem))
}

/// More than zstd puts into one block.
fn long_text() -> String {
    (0..30_000).map(|line| format!("line {} {line}\n", line * 7_919)).collect()
}

fn numbered(lines: &[&str]) -> Vec<(u64, String)> {
    (1..).zip(lines.iter().map(|line| (*line).to_owned())).collect()
}

#[test]
fn line_ends_are_tolerated_in_all_forms() {
    let check = |text: &[u8], expected: &[&str]| {
        assert_eq!(read(text), (numbered(expected), None));
    };
    check(b"", &[]);
    check(b"a\nb\n", &["a", "b"]);
    check(b"a\r\nb\r\n", &["a", "b"]);
    check(b"a\n\nb", &["a", "", "b"]);
    check(b"a\r", &["a"]);
    check(b"\xef\xbb\xbfa\n\xef\xbb\xbfb", &["a", "\u{feff}b"]);
    check(b"\x1f", &["\u{1f}"]);
}

#[test]
fn compressed_logs_are_found_by_their_first_bytes() {
    let check = |file: Vec<u8>, compression, expected: &[&str]| {
        let reader = LineReader::open("log", file.as_slice());
        assert_eq!(reader.compression(), compression);
        assert_eq!(read(file.as_slice()), (numbered(expected), None));
    };
    check(b"a\nb".to_vec(), Compression::None, &["a", "b"]);
    check(gzip(b"a\nb\n"), Compression::Gzip, &["a", "b"]);
    check(zstd(b"a\nb\n"), Compression::Zstd, &["a", "b"]);
    check(gzip(b""), Compression::Gzip, &[]);
    // A line may go on in the next member.
    check([gzip(b"a\nb"), gzip(b"c\n")].concat(), Compression::Gzip, &["a", "bc"]);
    check([zstd(b"a\nb"), zstd(b"c\n")].concat(), Compression::Zstd, &["a", "bc"]);
}

#[test]
fn a_file_that_is_cut_anywhere_gives_what_was_readable() {
    let text = long_text();
    let all = read(text.as_bytes()).0;
    let files = [
        (gzip(text.as_bytes()), 2, Compression::Gzip),
        (zstd(text.as_bytes()), 4, Compression::Zstd),
    ];
    for (file, magic, compression) in files {
        let mut largest = 0;
        for end in (magic..file.len()).step_by(9_001).chain(magic..20).chain([file.len() - 1]) {
            let (lines, problem) = read(&file[..end]);
            assert_eq!(problem, Some(ReadProblem::Cut(compression)), "cut at {end}");
            assert_eq!(lines, all[..lines.len()], "cut at {end}");
            largest = largest.max(lines.len());
        }
        assert!(largest > all.len() / 2, "{compression}: only {largest} lines were readable");
    }
}

#[test]
fn a_corrupt_file_gives_a_warning_that_names_it() {
    let text = long_text();
    for (mut file, compression) in
        [(gzip(text.as_bytes()), Compression::Gzip), (zstd(text.as_bytes()), Compression::Zstd)]
    {
        let middle = file.len() / 2;
        file[middle..middle + 8].fill(0xff);
        let mut reader = LineReader::open("old.log", file.as_slice());
        while reader.next_line().is_some() {}
        let warning = reader.warning().unwrap();
        assert_eq!((warning.name.as_str(), warning.lines), ("old.log", reader.lines()));
        assert_eq!(
            warning.to_string(),
            format!(
                "old.log: the {compression} file is corrupt after line {}; the lines before it were read",
                warning.lines
            )
        );
    }
}

#[test]
fn garbage_behind_a_compressed_log_is_a_warning() {
    let (lines, problem) =
        read([gzip(b"a\nb\n"), b"garbage behind the last member".to_vec()].concat().as_slice());
    assert_eq!(lines, numbered(&["a", "b"]));
    assert_eq!(problem, Some(ReadProblem::Corrupt(Compression::Gzip)));
}

/// Gives some lines, then fails; in between, it is interrupted.
struct Failing(u32);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0 += 1;
        match self.0 {
            1 => Err(io::ErrorKind::Interrupted.into()),
            2..=6 => {
                buffer[..2].copy_from_slice(b"a\n");
                Ok(2)
            }
            7 => Err(io::ErrorKind::Interrupted.into()),
            8 => {
                buffer[0] = b'b';
                Ok(1)
            }
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

#[test]
fn a_log_that_cannot_be_read_any_more_ends_with_a_warning() {
    let (lines, problem) = read(Failing(0));
    assert_eq!(lines, numbered(&["a"; 5]));
    assert_eq!(problem, Some(ReadProblem::Unreadable(io::ErrorKind::PermissionDenied)));
}

#[test]
fn a_long_line_is_counted_and_skipped() {
    for (length, is_read) in [
        (MAX_LINE - 1, true),
        (MAX_LINE, true),
        (MAX_LINE + 1, false),
        (MAX_LINE + 2, false),
        (2 * MAX_LINE, false),
        (10 * MAX_LINE + 3, false),
    ] {
        for end in ["\n", "\r\n"] {
            for last in ["b\n", "b", ""] {
                let long = "x".repeat(length);
                let text = format!("a\n{long}{end}{last}");
                let mut reader = LineReader::open("log", text.as_bytes());
                let mut read = Vec::new();
                while let Some(line) = reader.next_line() {
                    read.push((line.number, line.bytes.len()));
                }
                let mut expected = vec![(1, 1)];
                expected.extend(is_read.then_some((2, length)));
                expected.extend((!last.is_empty()).then_some((3, 1)));
                assert_eq!(read, expected, "{length}");
                let broken = reader.broken().of(LineError::TooLong);
                let numbers: &[u64] = if is_read { &[] } else { &[2] };
                assert_eq!(broken.first_lines, numbers);
            }
        }
    }
}

#[test]
fn a_file_that_unpacks_to_one_long_line_takes_no_memory() {
    let zeros = gzip(&vec![b'x'; 16 * 1_024 * 1_024]);
    let mut reader = LineReader::open("bomb", zeros.as_slice());
    assert_eq!(reader.next_line(), None);
    assert_eq!((reader.broken().total(), reader.lines()), (1, 1));
}

#[test]
fn broken_lines_are_counted_by_kind_with_their_first_numbers() {
    let text = "x\n".repeat(20);
    let mut reader = LineReader::open("log", text.as_bytes());
    while let Some(line) = reader.next_line() {
        let is_even = line.number.is_multiple_of(2);
        reader.reject(if is_even { LineError::WrongShape } else { LineError::NoRequest });
    }
    assert_eq!(reader.broken().total(), 10);
    assert_eq!(reader.broken().of(LineError::WrongShape).first_lines, [2, 4, 6, 8, 10]);
    let kinds: Vec<_> = reader.broken().iter().map(|(kind, lines)| (kind, lines.count)).collect();
    assert_eq!(kinds, [(LineError::WrongShape, 10)]);
}
