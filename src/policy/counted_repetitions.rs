//! How many states of a pattern are copies that counted repetitions make.
//!
//! `[^;]{0,300}` is compiled as 300 copies of `[^;]`. A value that is made for it keeps many of them in play, and each costs a
//! step at every byte. Without counts, a pattern has hardly more states than letters.

use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Capture, Hir, HirKind, Repetition};

/// The states of a compiled pattern that it would not have if every counted repetition stood there once.
pub(super) fn copies(text: &str, compiled: &NFA) -> usize {
    let parsed = ParserBuilder::new().utf8(false).build().parse(text);
    let config = thompson::Config::new().utf8(false).which_captures(WhichCaptures::None);
    let once = parsed.ok().and_then(|parsed| {
        thompson::Compiler::new().configure(config).build_from_hir(&uncounted(parsed)).ok()
    });
    once.map_or(0, |once| compiled.states().len().saturating_sub(once.states().len()))
}

/// Patterns nest at most 250 deep (the default of the parser), which bounds the recursion.
fn uncounted(hir: Hir) -> Hir {
    match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Repetition(Repetition { min, max, greedy, sub }) => {
            let (min, max) = (min.min(1), max.map(|max| max.min(1)));
            Hir::repetition(Repetition { min, max, greedy, sub: Box::new(uncounted(*sub)) })
        }
        HirKind::Capture(capture) => {
            let sub = Box::new(uncounted(*capture.sub));
            Hir::capture(Capture { sub, ..capture })
        }
        HirKind::Concat(parts) => Hir::concat(parts.into_iter().map(uncounted).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.into_iter().map(uncounted).collect()),
    }
}
