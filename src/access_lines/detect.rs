//! Finds the format of a log by its first lines.

use super::format::Format;
use super::line_parser::LineParser;
use super::record::LineError;
use super::zone::Zone;

/// Lines that are tried; more do not make the answer better.
const MAX_SAMPLE: usize = 100;

/// The format that reads the largest number of lines, and of those with equally many the one that fills the most fields.
/// `None` if no format reads at least half of the lines. The formats `nginx: ..` and `apache: ..` cannot be detected.
pub fn detect(sample: &[&[u8]]) -> Option<Format> {
    let sample = &sample[..sample.len().min(MAX_SAMPLE)];
    let mut best: Option<(Score, Format)> = None;
    for format in Format::candidates() {
        let score = score(&format, sample);
        let is_better = best.as_ref().is_none_or(|(known, _)| score > *known);
        if score.lines > 0 && score.lines >= score.refused && is_better {
            best = Some((score, format));
        }
    }
    best.map(|(_, format)| format)
}

/// How well a format fits: compared by lines first, then by fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    lines: usize,
    fields: usize,
    refused: usize,
}

fn score(format: &Format, sample: &[&[u8]]) -> Score {
    let mut parser = LineParser::new(format.clone(), Zone::UTC);
    let mut score = Score::default();
    for line in sample {
        match parser.parse(line) {
            // Every line of tollgate's own has a decision: others have the same names of other members.
            Ok(record) if format.name() == "tollgate" && !record.is_own => score.refused += 1,
            Ok(record) => {
                score.lines += 1;
                score.fields += record.filled();
            }
            Err(LineError::NoRequest) => {}
            Err(
                LineError::NoTime
                | LineError::BadTime
                | LineError::NotJson
                | LineError::TooLong
                | LineError::WrongShape,
            ) => score.refused += 1,
        }
    }
    score
}
