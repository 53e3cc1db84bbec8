//! Texts of which every match of a pattern contains one.
//!
//! Most values have none of them, and looking for texts is much faster than following a pattern. That a value has one says
//! nothing.

use regex_automata::util::prefilter::Prefilter;
use regex_automata::{MatchKind, Span};
use regex_syntax::hir::literal::{Extractor, Seq};
use regex_syntax::hir::{Hir, HirKind};

use super::unreadable::Unreadable;
use super::work_budget::{TEXT_BYTES_PER_UNIT, WorkBudget};

/// So many texts are looked for together.
const MAX_TEXTS: usize = 64;

/// Longer texts are cut: a longer one is hardly rarer, but has more spellings.
const MAX_TEXT_BYTES: usize = 6;

/// How many elements of a pattern are tried as the beginning of the texts.
const MAX_STARTS: usize = 64;

/// As many elements give the longest text.
const ELEMENTS_PER_TEXT: usize = 16;

/// The bytes that a search for several texts reads for one unit of work. Where a value is made of their beginnings, each byte
/// is compared with many of them.
const TEXTS_BYTES_PER_UNIT: usize = 1;

/// A search for texts of which every match contains one.
#[derive(Debug)]
pub(super) struct RequiredText {
    search: Prefilter,
    bytes_per_unit: usize,
}

impl RequiredText {
    /// Whether a value contains one of the texts.
    ///
    /// # Errors
    /// The request has no work left.
    pub(super) fn is_in(&self, value: &[u8], budget: &WorkBudget) -> Result<bool, Unreadable> {
        budget.charge(value.len() / self.bytes_per_unit)?;
        Ok(self.search.find(value, Span::from(0..value.len())).is_some())
    }
}

/// A search for the texts; `None` if the pattern requires none.
pub(super) fn search(pattern: &Hir) -> Option<RequiredText> {
    let elements = match pattern.kind() {
        HirKind::Concat(elements) => elements.as_slice(),
        _ => std::slice::from_ref(pattern),
    };
    let starts = 0..elements.len().min(MAX_STARTS);
    let texts = starts.filter_map(|start| {
        let end = elements.len().min(start + ELEMENTS_PER_TEXT);
        let mut extractor = Extractor::new();
        extractor.limit_total(4 * MAX_TEXTS);
        shortened(&extractor.extract(&Hir::concat(elements[start..end].to_vec())))
    });
    let rarest = texts.max_by_key(|texts| {
        let count = texts.len().unwrap_or(usize::MAX);
        (texts.min_literal_len(), std::cmp::Reverse(count))
    })?;
    let texts = rarest.literals()?;
    let bytes_per_unit = if texts.len() == 1 { TEXT_BYTES_PER_UNIT } else { TEXTS_BYTES_PER_UNIT };
    Some(RequiredText { search: Prefilter::new(MatchKind::LeftmostFirst, texts)?, bytes_per_unit })
}

/// The texts, cut until there are few enough.
fn shortened(texts: &Seq) -> Option<Seq> {
    let lengths = (1..=MAX_TEXT_BYTES).rev();
    let mut cut = lengths.map(|length| {
        let mut cut = texts.clone();
        cut.keep_first_bytes(length);
        cut.sort();
        cut.dedup();
        cut
    });
    cut.find(|cut| {
        cut.len().is_some_and(|len| (1..=MAX_TEXTS).contains(&len))
            && cut.min_literal_len().is_some_and(|shortest| shortest > 0)
    })
}
