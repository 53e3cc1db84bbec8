//! Word boundaries of patterns, in ASCII.
//!
//! A lazy automaton cannot decide a Unicode word boundary next to a byte that is not ASCII: it would have to give the value
//! up. So `\b`, `\B` and their like mean ASCII in the patterns of conditions. Nothing else of a pattern changes.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Capture, Hir, HirKind, Look, Repetition};

/// The pattern with ASCII word boundaries; `None` if it has no others.
///
/// # Errors
/// What is wrong with the pattern, in one line.
pub(super) fn in_ascii(pattern: &str) -> Result<Option<String>, String> {
    // As `regex::bytes` reads it.
    let parsed = ParserBuilder::new().utf8(false).build().parse(pattern);
    let parsed = parsed.map_err(|error| last_line(&error.to_string()))?;
    match parsed.properties().look_set().contains_word_unicode() {
        true => Ok(Some(replaced(parsed).to_string())),
        false => Ok(None),
    }
}

/// An error of the pattern's parser draws the pattern and points into it; the last line says what is wrong.
pub(super) fn last_line(error: &str) -> String {
    error.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Patterns nest at most 250 deep (the default of the parser), which bounds the recursion.
fn replaced(hir: Hir) -> Hir {
    match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(in_ascii_look(look)),
        HirKind::Repetition(repetition) => {
            let sub = Box::new(replaced(*repetition.sub));
            Hir::repetition(Repetition { sub, ..repetition })
        }
        HirKind::Capture(capture) => {
            let sub = Box::new(replaced(*capture.sub));
            Hir::capture(Capture { sub, ..capture })
        }
        HirKind::Concat(parts) => Hir::concat(parts.into_iter().map(replaced).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.into_iter().map(replaced).collect()),
    }
}

const fn in_ascii_look(look: Look) -> Look {
    match look {
        Look::WordUnicode => Look::WordAscii,
        Look::WordUnicodeNegate => Look::WordAsciiNegate,
        Look::WordStartUnicode => Look::WordStartAscii,
        Look::WordEndUnicode => Look::WordEndAscii,
        Look::WordStartHalfUnicode => Look::WordStartHalfAscii,
        Look::WordEndHalfUnicode => Look::WordEndHalfAscii,
        Look::Start
        | Look::End
        | Look::StartLF
        | Look::EndLF
        | Look::StartCRLF
        | Look::EndCRLF
        | Look::WordAscii
        | Look::WordAsciiNegate
        | Look::WordStartAscii
        | Look::WordEndAscii
        | Look::WordStartHalfAscii
        | Look::WordEndHalfAscii => look,
    }
}

#[cfg(test)]
mod tests {
    use regex::bytes::Regex;

    use super::*;

    #[test]
    fn only_word_boundaries_change() {
        assert_eq!(in_ascii("(?i)bot|crawl"), Ok(None));
        assert_eq!(in_ascii(r"(?-u:\b)bot"), Ok(None));
        let patterns = [
            r"(?i)\bbots?\b",
            r"^(\w+)\b{start}x",
            r"\Bé\B",
            r"[^\n]{2,5}?\b(?:a|é|[α-ω])+\b$",
            r"(?s)\b.\b",
            r"(?-u:\xff)\b",
        ];
        for pattern in patterns {
            let ascii = in_ascii(pattern).unwrap().unwrap();
            let (before, after) = (Regex::new(pattern).unwrap(), Regex::new(&ascii).unwrap());
            for value in ["bot", "a BOTS b", "robots", "x1 x", "été", "ab ω ", "-.-", "", "\n"] {
                if value.is_ascii() {
                    let (before, after) =
                        (before.find(value.as_bytes()), after.find(value.as_bytes()));
                    assert_eq!(before, after, "{pattern} {ascii} {value:?}");
                }
            }
        }
        let ascii = in_ascii(r"\bbot\b").unwrap().unwrap();
        assert!(Regex::new(&ascii).unwrap().is_match("ébot".as_bytes()));
        assert!(in_ascii("(").is_err());
    }
}
