//! The report of `tollgate replay`: what was found, and what could not be judged.
//!
//! It is written as text for people, as JSON, and as one HTML page. All three are pure functions of the report. What
//! must always hold: texts of the log are escaped in each of them, and no broken line is shown, because it may hold
//! secrets.

mod format;
mod html;
mod json;
mod sentences;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use format::{counted, grouped, time};
pub use html::PAGE_MARK;

use super::compare::ComparisonSummary;
use super::suggest::PeakMeasure;
use super::tally::Summary;

/// Limits that the text and the page describe each; the JSON describes all.
const MAX_DETAILED_LIMITS: usize = 50;

/// What a replay found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The configuration whose policy judged the requests, as reports call it.
    pub policy: String,
    /// The lines of the logs.
    pub lines: LogLines,
    /// What was counted.
    pub summary: Summary,
    /// Requests that could not be judged, or verdicts that are missing, by reason.
    pub not_judged: BTreeMap<String, u64>,
    /// Requests for which something was assumed that the log does not say, by what it was.
    pub assumed: BTreeMap<String, u64>,
    /// Sentences on what could not be judged and why, each with a cure.
    pub notes: Vec<String>,
    /// The comparison with another policy.
    pub compare: Option<ComparedPolicy>,
    /// Rates that are suggested.
    pub suggestions: Vec<SuggestedRate>,
}

/// The lines that were read.
#[derive(Clone, Debug, Default)]
pub struct LogLines {
    /// All lines.
    pub read: u64,
    /// Lines that are no request in the log's format, by kind.
    pub broken: Vec<BrokenLineKind>,
    /// Lines that came so late that their order could not be restored.
    pub late: u64,
    /// Lines of tollgate's own log that came twice, and were judged once.
    pub repeated: u64,
}

/// Broken lines of one kind. Their text is not kept.
#[derive(Clone, Debug)]
pub struct BrokenLineKind {
    /// What is wrong with them: `no time stamp`.
    pub kind: String,
    /// How many there are.
    pub number: u64,
    /// The first of them.
    pub first: Vec<LineNumber>,
}

/// Where a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineNumber {
    /// The file as it was given.
    pub file: String,
    /// The number of the line, from 1.
    pub line: u64,
}

/// A comparison and its policy.
#[derive(Clone, Debug)]
pub struct ComparedPolicy {
    /// The configuration of the other policy.
    pub other: String,
    /// What changes.
    pub comparison: ComparisonSummary,
}

/// A rate that would refuse no more keys than the operator asked for.
#[derive(Clone, Debug)]
pub struct SuggestedRate {
    /// The limit.
    pub limit: Arc<str>,
    /// The rate: `120/1m`.
    pub rate: String,
    /// The burst, for algorithms that have one.
    pub burst: Option<u64>,
    /// The keys that the rate refuses at least once.
    pub refuses_keys: Share,
    /// What the percentiles and the curve count.
    pub measure: PeakMeasure,
    /// The peaks of keys.
    pub percentiles: Percentiles,
    /// The keys whose peak is above each number, which is ascending.
    pub curve: Vec<(u64, Share)>,
    /// The change as YAML.
    pub yaml: String,
    /// The reason in a sentence.
    pub sentence: String,
}

impl SuggestedRate {
    /// Where the suggestion stands on the curve: it does not, if a bucket keeps its size and gets another rate.
    fn on_curve(&self) -> Option<u64> {
        let count = || self.rate.split(['/', ' ']).next().and_then(|count| count.parse().ok());
        match self.measure {
            PeakMeasure::Burst => self.burst,
            PeakMeasure::Window | PeakMeasure::AtOnce => count(),
        }
    }
}

/// A number out of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The number.
    pub number: u64,
    /// The total.
    pub total: u64,
}

/// The distribution of the peaks of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Half of the keys have at most so many.
    pub p50: u64,
    /// 90 % of them.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p99_9: u64,
    /// All of them.
    pub max: u64,
}

impl LogLines {
    /// All broken lines.
    pub fn broken(&self) -> u64 {
        self.broken.iter().map(|lines| lines.number).sum()
    }
}

impl Report {
    /// As text for a terminal of 100 columns.
    pub fn text(&self) -> String {
        text::report(self)
    }

    /// As a JSON object with a line end.
    pub fn json(&self) -> String {
        json::report(self)
    }

    /// As one HTML page that loads nothing.
    pub fn html(&self) -> String {
        html::page(self)
    }
}
