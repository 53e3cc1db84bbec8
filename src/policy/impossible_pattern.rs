//! Patterns that match no value, or a part of which matches none, as far as this is cheap to see.
//!
//! It knows no conditions. What must always hold: a pattern that is reported to match nothing matches nothing. Another one may
//! match nothing too.

use regex_syntax::hir::{Hir, HirKind, Look};

/// Whether no value matches: a class without characters, or text before the beginning or behind the end of a value.
pub(super) fn matches_nothing(pattern: &Hir) -> bool {
    match pattern.kind() {
        HirKind::Concat(elements) => elements.iter().any(matches_nothing) || is_beyond(elements),
        HirKind::Alternation(branches) => branches.iter().all(matches_nothing),
        HirKind::Capture(capture) => matches_nothing(&capture.sub),
        HirKind::Repetition(repetition) => repetition.min > 0 && matches_nothing(&repetition.sub),
        HirKind::Class(class) => class.minimum_len().is_none(),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => false,
    }
}

/// Whether a part of a pattern is a blank that stands for itself.
pub(super) fn has_blank(pattern: &Hir) -> bool {
    match pattern.kind() {
        HirKind::Literal(text) => text.0.contains(&b' '),
        HirKind::Concat(elements) | HirKind::Alternation(elements) => {
            elements.iter().any(has_blank)
        }
        HirKind::Capture(capture) => has_blank(&capture.sub),
        HirKind::Repetition(repetition) => repetition.min > 0 && has_blank(&repetition.sub),
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Whether an element must stand at the beginning of a value and has text before it, or at the end and has text behind it.
fn is_beyond(elements: &[Hir]) -> bool {
    let is_text = |element: &Hir| element.properties().minimum_len().is_some_and(|len| len > 0);
    let first = elements.iter().position(is_text).unwrap_or(elements.len());
    let last = elements.iter().rposition(is_text).unwrap_or(0);
    let begins = |element: &Hir| element.properties().look_set_prefix().contains(Look::Start);
    let ends = |element: &Hir| element.properties().look_set_suffix().contains(Look::End);
    elements.iter().skip(first + 1).any(begins) || elements.iter().take(last).any(ends)
}

#[cfg(test)]
mod tests {
    use regex_syntax::ParserBuilder;

    use super::*;

    fn parsed(pattern: &str) -> Hir {
        ParserBuilder::new().utf8(false).build().parse(pattern).unwrap()
    }

    #[test]
    fn patterns_that_match_nothing_are_found() {
        for pattern in [
            "a^b", "a$b", r"[^\s\S]", "a[b&&c]", "(a)(^b)", "a(^b|^c)", "(a^b)+", "a^b|c$d",
            r"\zx", r"x\A", "^a.$b",
        ] {
            assert!(matches_nothing(&parsed(pattern)), "{pattern}");
        }
        for pattern in [
            "a",
            "",
            "^$",
            "^a$",
            "(?m)a\n^b",
            "a*^b",
            "a$b*",
            "(a^b)?",
            "a^b|c",
            "^",
            "(^a|b)",
            "a(^b|c)",
            "a(^b)*",
            r"\ba\b",
            "[a-z]$",
            "^^a",
            "a$$",
        ] {
            assert!(!matches_nothing(&parsed(pattern)), "{pattern}");
        }
    }

    /// No value of the letters of a pattern matches it, if it is reported to match nothing.
    #[test]
    fn what_is_reported_to_match_nothing_matches_nothing() {
        const PIECES: [&str; 14] = [
            "a", "b", "^", "$", "(a|^b)", "(a$|b)", "a?", "b*", "(^)", "($)?", "[b&&c]", "|",
            "(^a)", r"\b",
        ];
        let mut draw = fastrand::Rng::with_seed(9);
        let mut nothing = 0;
        for _ in 0..5_000 {
            let count = draw.usize(1..5);
            let text: String = (0..count).map(|_| PIECES[draw.usize(..PIECES.len())]).collect();
            if !matches_nothing(&parsed(&text)) {
                continue;
            }
            nothing += 1;
            let regex = regex::bytes::Regex::new(&text).unwrap();
            for value in ["", "a", "b", "ab", "ba", "aab", "abab", "a\nb"] {
                assert!(!regex.is_match(value.as_bytes()), "{text} {value:?}");
            }
        }
        assert!(nothing > 300, "{nothing}");
    }

    #[test]
    fn a_blank_is_seen_where_it_must_stand() {
        for (pattern, has) in [
            ("^a b$", true),
            ("(a b|c)", true),
            ("a[ b]", false),
            ("a *b", false),
            (r"a\sb", false),
            ("(?x) a b", false),
            ("a[+]b", false),
        ] {
            assert_eq!(has_blank(&parsed(pattern)), has, "{pattern}");
        }
    }
}
