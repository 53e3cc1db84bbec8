//! Paths that stand for all paths of a pattern, as far as a set of patterns can tell them apart.
//!
//! For two paths that the same of the patterns match, a router decides alike. So a finite number of paths is enough to
//! know what a pattern leaves to the patterns behind it. The search steps all patterns through the same segments at once
//! and keeps one path for each combination of positions that it reaches.

use std::cell::Cell;
use std::collections::VecDeque;

use hashbrown::HashSet;

use super::path::{PathPattern, SegmentPattern};

/// The most combinations of positions; a policy for which this is not enough is not analysed.
const MAX_COMBINATIONS: usize = 2_000;

/// The most texts of segments that are tried.
const MAX_SEGMENT_TEXTS: usize = 100;

/// A text that no pattern names.
const FRESH: &str = "~other~";

/// What a search may still do, in units of about 50 ns: a segment of one pattern is one unit. When nothing is left, the
/// answer is that it is not known.
#[derive(Debug)]
pub(crate) struct SearchBudget(Cell<u64>);

impl SearchBudget {
    pub(crate) const fn new(units: u64) -> Self {
        Self(Cell::new(units))
    }

    /// Takes units. Returns whether that many were left.
    pub(crate) fn take(&self, units: u64) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(units));
        left >= units
    }
}

/// The positions of a pattern that some sequence of segments has led to; bit N: N segments of the pattern are used.
type Positions = u128;

/// Paths that `pattern` matches: at least one for each subset of `others` that matches a path of the pattern. `None` if
/// there are too many combinations.
pub(crate) fn sample_paths(
    pattern: &PathPattern,
    others: &[&PathPattern],
    budget: &SearchBudget,
) -> Option<Vec<String>> {
    let all: Vec<&PathPattern> = std::iter::once(pattern).chain(others.iter().copied()).collect();
    let texts = segment_texts(&all)?;
    let mut seen: HashSet<Vec<Positions>> = HashSet::new();
    let start: Vec<Positions> = all.iter().map(|pattern| closure(core(pattern), 1)).collect();
    let mut queue = VecDeque::from([(start.clone(), String::new())]);
    seen.insert(start);
    let mut found = Vec::new();
    while let Some((positions, path)) = queue.pop_front() {
        // Whether the pattern needs a slash at the end, and whether others do, is seen by trying both.
        let candidates = [format!("{path}/"), path.clone()];
        let candidates = candidates.into_iter().filter(|path| path.starts_with('/'));
        found.extend(candidates.filter(|path| pattern.matches(path)));
        for text in &texts {
            if !budget.take(all.len() as u64) {
                return None;
            }
            let steps = all.iter().zip(&positions);
            let next: Vec<Positions> =
                steps.map(|(pattern, from)| step(core(pattern), *from, text)).collect();
            // Nothing below matches the pattern.
            if next[0] == 0 || !seen.insert(next.clone()) {
                continue;
            }
            if seen.len() > MAX_COMBINATIONS {
                return None;
            }
            queue.push_back((next, format!("{path}/{text}")));
        }
    }
    Some(found)
}

/// Whether `wider` matches every path that `pattern` matches. `false` also if that is not known.
pub(crate) fn is_within(pattern: &PathPattern, wider: &PathPattern, budget: &SearchBudget) -> bool {
    let paths = sample_paths(pattern, &[wider], budget);
    paths.is_some_and(|paths| paths.iter().all(|path| wider.matches(path)))
}

/// The segments without the empty one of a slash at the end.
fn core(pattern: &PathPattern) -> &[SegmentPattern] {
    match pattern.segments() {
        [before @ .., SegmentPattern::Literal(last)] if last.is_empty() => before,
        segments => segments,
    }
}

/// The texts that segments of the patterns tell apart, and one that none of them names.
fn segment_texts(patterns: &[&PathPattern]) -> Option<Vec<String>> {
    let mut texts = vec![FRESH.to_owned()];
    for segment in patterns.iter().flat_map(|pattern| core(pattern)) {
        let text = match segment {
            SegmentPattern::Literal(text) => text.to_string(),
            SegmentPattern::Suffix(text) => format!("{FRESH}{text}"),
            SegmentPattern::Any | SegmentPattern::Rest => continue,
        };
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    (texts.len() <= MAX_SEGMENT_TEXTS).then_some(texts)
}

/// Adds the positions that are reached without a segment: past a `**`.
fn closure(segments: &[SegmentPattern], mut positions: Positions) -> Positions {
    for (index, segment) in segments.iter().enumerate() {
        if *segment == SegmentPattern::Rest && positions >> index & 1 == 1 {
            positions |= 1 << (index + 1);
        }
    }
    positions
}

/// The positions after one more segment.
fn step(segments: &[SegmentPattern], from: Positions, text: &str) -> Positions {
    let mut next = 0;
    for (index, segment) in segments.iter().enumerate().filter(|(index, _)| from >> index & 1 == 1)
    {
        match segment {
            SegmentPattern::Rest => next |= 1 << index,
            segment if segment.matches(text) => next |= 1 << (index + 1),
            SegmentPattern::Literal(_) | SegmentPattern::Any | SegmentPattern::Suffix(_) => {}
        }
    }
    closure(segments, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(pattern: &str, wider: &str) -> bool {
        let parse = |text| PathPattern::parse(text).unwrap();
        is_within(&parse(pattern), &parse(wider), &SearchBudget::new(1 << 20))
    }

    #[test]
    fn a_pattern_is_within_a_wider_pattern() {
        for (pattern, wider) in [
            ("/api/login", "/api/**"),
            ("/api", "/api/**"),
            ("/api/", "/api/**"),
            ("/api/*", "/api/**"),
            ("/api/**", "/**"),
            ("/a/b", "/*/b"),
            ("/a/**/z", "/a/**"),
            ("/a/*/z", "/a/**/z"),
            ("/img/*.png", "/img/*"),
            ("/img/a.png", "/img/*.png"),
            ("/**/*.tar.gz", "/**/*.gz"),
            ("/api/", "/api"),
            ("/**", "/**"),
        ] {
            assert!(within(pattern, wider), "{pattern} {wider}");
        }
        for (pattern, other) in [
            ("/api/**", "/api/*"),
            ("/api", "/api/"),
            ("/api/**", "/api/login"),
            ("/*/b", "/a/b"),
            ("/img/*", "/img/*.png"),
            ("/a/**/z", "/a/*/z"),
            ("/**", "/*/**"),
            ("/users", "/users/*"),
        ] {
            assert!(!within(pattern, other), "{pattern} {other}");
        }
    }

    #[test]
    fn every_subset_of_patterns_has_a_path() {
        let parse = |text: &str| PathPattern::parse(text).unwrap();
        let patterns = ["/a/**", "/*/b", "/**/c", "/a/b/*.c", "/x/"].map(parse);
        let others: Vec<&PathPattern> = patterns.iter().collect();
        let found = sample_paths(&parse("/**"), &others, &SearchBudget::new(1 << 20)).unwrap();
        let subset = |path: &str| -> Vec<bool> { others.iter().map(|p| p.matches(path)).collect() };
        let known: HashSet<Vec<bool>> = found.iter().map(|path| subset(path)).collect();
        // Every path of up to four of these segments is like one that was found.
        let texts = ["a", "b", "c", "x", "y", "z.c"];
        let mut paths = vec![String::new()];
        for _ in 0..4 {
            paths = paths
                .iter()
                .flat_map(|path| texts.iter().map(move |text| format!("{path}/{text}")))
                .chain(paths.iter().cloned())
                .collect();
            paths.sort_unstable();
            paths.dedup();
        }
        for path in paths.iter().filter(|path| !path.is_empty()) {
            for path in [path.clone(), format!("{path}/")] {
                assert!(known.contains(&subset(&path)), "{path}");
            }
        }
    }
}
