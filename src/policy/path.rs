//! Patterns of paths: `*` is one segment, `**` is zero or more.

use std::fmt;

/// Most segments of a pattern.
const MAX_SEGMENTS: usize = 64;

/// One piece of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Piece {
    /// This very segment.
    Literal(Box<str>),
    /// Any one segment that is not empty.
    One,
    /// Zero or more segments.
    Rest,
}

/// A pattern of paths, for example `/api/*/items/**`. Case counts. `/api/**` matches `/api`,
/// `/api/` and all below; `/api/*` does not match `/api/`. A slash at the end of a path is as good
/// as none, since many origins take it so, unless the pattern ends in one itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    pieces: Vec<Piece>,
    typed: Box<str>,
}

/// Why a pattern cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathPatternError {
    /// It does not begin with a slash.
    #[error("a path begins with /")]
    NoSlash,
    /// `*` stands beside other characters in a segment.
    #[error("* and ** stand alone between slashes")]
    PartialStar,
    /// `**` twice would make matching slow and says no more than once.
    #[error("** stands at most once in a path")]
    TwoRests,
    /// Longer than a path that a request can have.
    #[error("a path has at most {MAX_SEGMENTS} segments")]
    TooLong,
    /// What the gate never lets through cannot be matched.
    #[error(
        "a path is written as it is matched: no query, no fragment, no ; or \\, no . or .. and no //"
    )]
    NeverMatches,
    /// An escape that is broken, or of a character that is written bare.
    #[error(
        "write %{0} as the character that it stands for; only blanks and what is not ASCII stay escaped"
    )]
    NeedlessEscape(Box<str>),
}

impl PathPattern {
    /// Reads a pattern as it is typed.
    pub fn parse(typed: &str) -> Result<Self, PathPatternError> {
        let rest = typed.strip_prefix('/').ok_or(PathPatternError::NoSlash)?;
        if typed.contains(['?', '#', '\\', ' ', ';']) || typed.contains("//") {
            return Err(PathPatternError::NeverMatches);
        }
        let mut pieces = Vec::new();
        for segment in rest.split('/') {
            pieces.push(match segment {
                "*" => Piece::One,
                "**" => Piece::Rest,
                "." | ".." => return Err(PathPatternError::NeverMatches),
                literal if literal.contains('*') => return Err(PathPatternError::PartialStar),
                literal => Piece::Literal(canonical(literal)?.into()),
            });
        }
        if pieces.len() > MAX_SEGMENTS {
            return Err(PathPatternError::TooLong);
        }
        if pieces.iter().filter(|piece| **piece == Piece::Rest).count() > 1 {
            return Err(PathPatternError::TwoRests);
        }
        Ok(Self { pieces, typed: typed.into() })
    }

    /// Whether a canonical path matches.
    pub fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else {
            return false;
        };
        let path = if self.ends_in_slash() { path } else { path.strip_suffix('/').unwrap_or(path) };
        let rest = self.pieces.iter().position(|piece| *piece == Piece::Rest);
        let Some(rest) = rest else {
            let mut segments = path.split('/');
            return self.pieces.iter().all(|p| segments.next().is_some_and(|s| p.takes(s)))
                && segments.next().is_none();
        };
        let (before, after) = (&self.pieces[..rest], &self.pieces[rest + 1..]);
        let mut segments = path.split('/');
        if !before.iter().all(|p| segments.next().is_some_and(|s| p.takes(s))) {
            return false;
        }
        if after.is_empty() {
            return true;
        }
        // What is left after `before`, matched from the right; nothing may be used twice. No more of
        // a long path is looked at than the pattern has pieces.
        let enough = segments.take(after.len()).count() == after.len();
        let mut tail = path.rsplit('/');
        enough && after.iter().rev().all(|p| tail.next().is_some_and(|s| p.takes(s)))
    }

    fn ends_in_slash(&self) -> bool {
        matches!(self.pieces.last(), Some(Piece::Literal(last)) if last.is_empty())
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// A segment as the gate makes it: unreserved characters bare, what cannot stand in a path escaped
/// in upper case. `café`, `caf%c3%a9` and `c%61f%C3%A9` are one.
fn canonical(typed: &str) -> Result<String, PathPatternError> {
    let mut canonical = String::with_capacity(typed.len());
    let mut rest = typed.as_bytes();
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

impl Piece {
    fn takes(&self, segment: &str) -> bool {
        match self {
            Self::Literal(literal) => **literal == *segment,
            Self::One => !segment.is_empty(),
            Self::Rest => true,
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

impl fmt::Debug for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.typed, f)
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
    fn stars_stand_for_segments() {
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
    }

    #[test]
    fn what_cannot_match_is_refused() {
        let error = |typed| PathPattern::parse(typed).unwrap_err();
        assert_eq!(error("api"), PathPatternError::NoSlash);
        assert_eq!(error("/a*"), PathPatternError::PartialStar);
        assert_eq!(error("/**/a/**"), PathPatternError::TwoRests);
        assert_eq!(error("/a/../b"), PathPatternError::NeverMatches);
        assert_eq!(error("/a?b=c"), PathPatternError::NeverMatches);
        assert_eq!(error("/a;b"), PathPatternError::NeverMatches);
        assert_eq!(error("/a%3Ab"), PathPatternError::NeedlessEscape("3A".into()));
        assert_eq!(error("/a%4"), PathPatternError::NeedlessEscape("4".into()));
    }

    #[test]
    fn one_pattern_for_all_spellings() {
        check("/café/%7e%20", &["/caf%C3%A9/~%20"], &["/café/~ "]);
        check("/caf%c3%a9", &["/caf%C3%A9"], &["/caf%c3%a9"]);
    }
}
