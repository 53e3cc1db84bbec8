//! Patterns of paths: `*` is one segment, `**` is zero or more, `*.png` is a last segment that ends so.
//!
//! A pattern is matched against canonical paths, as request validation makes them, so a pattern that no
//! canonical path can match is refused when the configuration is read.

use std::fmt;

use super::rewrite::PathPrefix;

/// The largest number of segments of a pattern.
pub const MAX_PATH_SEGMENTS: usize = 64;

/// The pattern of one segment, or of several (`**`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SegmentPattern {
    /// A segment with this text.
    Literal(Box<str>),
    /// Any segment that is not empty (`*`).
    Any,
    /// Any segment that ends in this text and is longer (`*.png`); the last one only.
    Suffix(Box<str>),
    /// Zero or more segments (`**`).
    Rest,
}

/// A pattern of paths, for example `/api/*/items/**`. It is case-sensitive. `/api/**` matches `/api`,
/// `/api/` and everything below; `/api/*` does not match `/api/`. A trailing slash of the path is ignored, since
/// many origins ignore it, unless the pattern itself ends in one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    segments: Vec<SegmentPattern>,
    /// The text in the configuration.
    source: Box<str>,
}

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathPatternError {
    /// It does not begin with a slash.
    #[error("a path begins with /")]
    NoSlash,
    /// A segment has `*` and other characters, and is not the last one with `*` at its beginning.
    #[error(
        "* and ** are full segments; only the last segment may begin with * and end in a text (/**/*.png)"
    )]
    PartialStar,
    /// A segment is written in the syntax of another router.
    #[error(
        "{0:?} is no pattern here: write * for one segment, ** for any number of them, or a list of paths"
    )]
    OtherSyntax(Box<str>),
    /// `**` occurs twice, which would make matching slow and match no more paths.
    #[error("** is allowed at most once in a path; write * for single segments")]
    TwoRests,
    /// It has more than [`MAX_PATH_SEGMENTS`] segments.
    #[error("a path has at most {MAX_PATH_SEGMENTS} segments")]
    TooLong,
    /// No canonical path can match it.
    #[error(
        "a path is written as it is matched: no query, no fragment, no ; or \\, no . or .. and no //"
    )]
    NeverMatches,
    /// An escape that is broken, or of a character that has to be written as itself.
    #[error(
        "write %{0} as the character that it stands for; only blanks, ?, #, % and what is not ASCII stay escaped"
    )]
    NeedlessEscape(Box<str>),
}

impl PathPattern {
    /// Parses a pattern from the configuration.
    pub fn parse(source: &str) -> Result<Self, PathPatternError> {
        let rest = source.strip_prefix('/').ok_or(PathPatternError::NoSlash)?;
        if source.contains(['?', '#', '\\', ' ', ';']) || source.contains("//") {
            return Err(PathPatternError::NeverMatches);
        }
        let mut segments = Vec::new();
        let mut segment_texts = rest.split('/').peekable();
        while let Some(segment) = segment_texts.next() {
            let is_last = segment_texts.peek().is_none();
            if is_other_syntax(segment) {
                return Err(PathPatternError::OtherSyntax(segment.into()));
            }
            segments.push(match segment {
                "*" => SegmentPattern::Any,
                "**" => SegmentPattern::Rest,
                "." | ".." => return Err(PathPatternError::NeverMatches),
                text if text.contains('*') => {
                    let suffix = text.strip_prefix('*').filter(|suffix| !suffix.contains('*'));
                    let suffix = suffix.filter(|_| is_last).ok_or(PathPatternError::PartialStar)?;
                    SegmentPattern::Suffix(canonical(suffix)?.into())
                }
                literal => SegmentPattern::Literal(canonical(literal)?.into()),
            });
        }
        if segments.len() > MAX_PATH_SEGMENTS {
            return Err(PathPatternError::TooLong);
        }
        if segments.iter().filter(|segment| **segment == SegmentPattern::Rest).count() > 1 {
            return Err(PathPatternError::TwoRests);
        }
        Ok(Self { segments, source: source.into() })
    }

    /// The pattern of all paths, `/**`.
    pub fn everything() -> Self {
        Self { segments: vec![SegmentPattern::Rest], source: "/**".into() }
    }

    /// Whether a canonical path matches.
    pub fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else {
            return false;
        };
        let path = if self.ends_in_slash() { path } else { path.strip_suffix('/').unwrap_or(path) };
        let rest = self.segments.iter().position(|segment| *segment == SegmentPattern::Rest);
        let Some(rest) = rest else {
            let mut segments = path.split('/');
            return self.segments.iter().all(|p| segments.next().is_some_and(|s| p.matches(s)))
                && segments.next().is_none();
        };
        let (before, after) = (&self.segments[..rest], &self.segments[rest + 1..]);
        let mut segments = path.split('/');
        if !before.iter().all(|p| segments.next().is_some_and(|s| p.matches(s))) {
            return false;
        }
        if after.is_empty() {
            return true;
        }
        // The segments after `**` are matched from the right. No segment may be matched by two elements of the pattern,
        // so enough of them must be left. Of a long path, no more segments are read than the pattern has.
        let enough = segments.take(after.len()).count() == after.len();
        let mut tail = path.rsplit('/');
        enough && after.iter().rev().all(|p| tail.next().is_some_and(|s| p.matches(s)))
    }

    /// Whether every path that matches begins with these segments.
    pub fn is_below(&self, prefix: &PathPrefix) -> bool {
        let mut own = self.segments.iter();
        prefix.segments().all(|segment| {
            matches!(own.next(), Some(SegmentPattern::Literal(literal)) if **literal == *segment)
        })
    }

    /// The pattern, with what it matches in words where its text does not say it.
    pub fn meaning(&self) -> String {
        let stars =
            self.segments.iter().filter(|segment| !matches!(segment, SegmentPattern::Literal(_)));
        let only_rest = self.segments.as_slice() == [SegmentPattern::Rest];
        let words = match (stars.count(), self.segments.last()) {
            _ if only_rest => "everything".to_owned(),
            (0, _) if &*self.source == "/" => "the root only".to_owned(),
            (0, _) if self.ends_in_slash() => "this path only, with the slash".to_owned(),
            (0, _) => "this path only".to_owned(),
            (1, Some(SegmentPattern::Rest)) => {
                format!("{} and everything below", self.source.trim_end_matches("/**"))
            }
            (_, Some(SegmentPattern::Suffix(_)))
                if self.segments.contains(&SegmentPattern::Rest) =>
            {
                "files at any depth".to_owned()
            }
            (_, Some(SegmentPattern::Suffix(_))) => "files in this folder".to_owned(),
            _ if self.segments.contains(&SegmentPattern::Rest) => {
                "** is any number of segments".to_owned()
            }
            _ => "each * is one segment".to_owned(),
        };
        format!("{} ({words})", self.source)
    }

    fn ends_in_slash(&self) -> bool {
        matches!(self.segments.last(), Some(SegmentPattern::Literal(last)) if last.is_empty())
    }

    pub(super) fn segments(&self) -> &[SegmentPattern] {
        &self.segments
    }
}

/// Whether a segment is written as other routers write a variable or an alternative: `{id}`, `:id`, `<id>`, `v[0-9]+`,
/// `(a|b)`, `^a$`. None of these characters stands in a canonical path, but for a colon, which names begin with nowhere.
fn is_other_syntax(segment: &str) -> bool {
    segment.contains(['{', '}', '[', ']', '<', '>', '|', '^'])
        || segment.strip_prefix(':').is_some_and(|name| !name.is_empty())
        || segment.contains(".*")
        || segment.contains(".+")
        || segment.ends_with('$')
}

/// A segment in canonical form: unreserved characters unescaped, characters that a path cannot contain escaped in
/// upper case. `café`, `caf%c3%a9` and `c%61f%C3%A9` are equal.
fn canonical(segment: &str) -> Result<String, PathPatternError> {
    let mut canonical = String::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let byte = match byte {
            b'%' => {
                let digits = after.get(..2).unwrap_or(after);
                let text = String::from_utf8_lossy(digits).into_owned();
                let decoded = u8::from_str_radix(&text, 16).ok().filter(|_| digits.len() == 2);
                let wrong = || PathPatternError::NeedlessEscape(text.into());
                let decoded = decoded.ok_or_else(wrong.clone())?;
                let unreserved = decoded.is_ascii_alphanumeric() || b"-._~".contains(&decoded);
                if decoded.is_ascii_graphic() && !unreserved && !b"?#%".contains(&decoded) {
                    return Err(wrong());
                }
                rest = &after[2..];
                if !unreserved {
                    canonical.push_str(&format!("%{decoded:02X}"));
                    continue;
                }
                decoded
            }
            byte => byte,
        };
        if byte.is_ascii() {
            canonical.push(char::from(byte));
        } else {
            canonical.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(canonical)
}

impl SegmentPattern {
    pub(super) fn matches(&self, segment: &str) -> bool {
        match self {
            Self::Literal(literal) => **literal == *segment,
            Self::Any => !segment.is_empty(),
            Self::Suffix(suffix) => segment.len() > suffix.len() && segment.ends_with(&**suffix),
            Self::Rest => true,
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl fmt::Debug for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let parsed = PathPattern::parse(pattern).unwrap();
        for path in matching {
            assert!(parsed.matches(path), "{pattern} should match {path}");
        }
        for path in others {
            assert!(!parsed.matches(path), "{pattern} should not match {path}");
        }
    }

    #[test]
    fn stars_match_segments() {
        check("/", &["/"], &["/a", ""]);
        check(
            "/api/track",
            &["/api/track", "/api/track/"],
            &["/api/track//", "/api/Track", "/api", "/api/track/x"],
        );
        check("/api/track/", &["/api/track/"], &["/api/track"]);
        check("/api/*", &["/api/a", "/api/a/"], &["/api", "/api/", "/api/a/b", "/apia"]);
        check("/api/**", &["/api", "/api/", "/api/a", "/api/a/b"], &["/ap", "/apia", "/x/api"]);
        check("/**", &["/", "/a", "/a/b/c"], &[]);
        check("/a/**/z", &["/a/z/"], &["/a/z//"]);
        check("/*/b", &["/a/b"], &["/b", "/a/b/c", "//b"]);
        check("/a/**/z", &["/a/z", "/a/b/z", "/a/b/c/z"], &["/a", "/z", "/a/zz", "/a/z/b"]);
        check("/a/**/a", &["/a/a", "/a/b/a"], &["/a"]);
        check(
            "/**/*.png",
            &["/a.png", "/a/b.png", "/a/b.png/"],
            &["/.png", "/a/b.PNG", "/a.png/b", "/png"],
        );
        check("/img/*.png", &["/img/a.png"], &["/img/a/b.png", "/img/.png"]);
        check("/a/*-x", &["/a/b-x"], &["/a/-x", "/a/b"]);
    }

    #[test]
    fn a_pattern_that_cannot_match_is_refused() {
        let error = |source| PathPattern::parse(source).unwrap_err();
        assert_eq!(error("api"), PathPatternError::NoSlash);
        for partial in ["/a*", "/*a/b", "/*a*", "/**.png", "/a*b"] {
            assert_eq!(error(partial), PathPatternError::PartialStar);
        }
        for (path, other) in [
            ("/users/{id}", "{id}"),
            ("/users/:id/x", ":id"),
            ("/v[0-9]+/x", "v[0-9]+"),
            ("/(a|b)", "(a|b)"),
            ("/a/.*", ".*"),
            ("/<id>", "<id>"),
            ("/a$", "a$"),
        ] {
            assert_eq!(error(path), PathPatternError::OtherSyntax(other.into()));
        }
        assert_eq!(error("/**/a/**"), PathPatternError::TwoRests);
        assert_eq!(error("/a/../b"), PathPatternError::NeverMatches);
        assert_eq!(error("/a?b=c"), PathPatternError::NeverMatches);
        assert_eq!(error("/a;b"), PathPatternError::NeverMatches);
        assert_eq!(error("/a%3Ab"), PathPatternError::NeedlessEscape("3A".into()));
        assert_eq!(error("/a%4"), PathPatternError::NeedlessEscape("4".into()));
    }

    #[test]
    fn a_pattern_says_what_it_matches() {
        for (pattern, meaning) in [
            ("/", "/ (the root only)"),
            ("/users", "/users (this path only)"),
            ("/users/", "/users/ (this path only, with the slash)"),
            ("/users/*", "/users/* (each * is one segment)"),
            ("/api/**", "/api/** (/api and everything below)"),
            ("/**", "/** (everything)"),
            ("/a/**/z", "/a/**/z (** is any number of segments)"),
            ("/*/a/**", "/*/a/** (** is any number of segments)"),
            ("/**/*.png", "/**/*.png (files at any depth)"),
            ("/img/*.png", "/img/*.png (files in this folder)"),
        ] {
            assert_eq!(PathPattern::parse(pattern).unwrap().meaning(), meaning);
        }
    }

    #[test]
    fn spellings_of_a_path_are_equal() {
        check("/café/%7e%20", &["/caf%C3%A9/~%20"], &["/café/~ "]);
        check("/caf%c3%a9", &["/caf%C3%A9"], &["/caf%c3%a9"]);
    }
}
