//! The path that an origin is asked for, where it differs from the path that the client asked for.
//!
//! Routes, keys and the log see the client's path; only the origin sees the rewritten one. What must always hold: whatever
//! an origin reads in the rewritten path is the rewritten form of a path that was matched. So the prefix is cut where every
//! reading of the path has it, and a path that could climb out of what is left is refused.

use super::facts::Facts;

/// The largest prefix, in bytes.
const MAX_PREFIX: usize = 1024;

/// Cuts a prefix off a path and puts another one before the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Empty, or segments that begin with `/` each.
    strip: PathPrefix,
    add: PathPrefix,
}

/// Segments that begin with `/` each and are their own canonical form; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathPrefix(Box<str>);

impl PathPrefix {
    /// Reads a prefix such as `/api/v1`.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_plain = |segment: &str| {
            let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            !segment.is_empty() && !matches!(segment, "." | "..") && segment.bytes().all(usual)
        };
        let segments = text.strip_prefix('/').filter(|_| text.len() <= MAX_PREFIX);
        match segments.is_some_and(|rest| rest.split('/').all(is_plain)) {
            true => Ok(Self(text.into())),
            false => Err(format!(
                "{text:?} is not a prefix; write /api or /api/v1, without a slash at the end, of letters, digits and -._~"
            )),
        }
    }

    /// The segments.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').skip(1)
    }
}

impl Rewrite {
    /// A rewrite that cuts `strip` and adds `add`.
    pub const fn new(strip: PathPrefix, add: PathPrefix) -> Self {
        Self { strip, add }
    }

    /// The prefix that is cut.
    pub const fn strip(&self) -> &PathPrefix {
        &self.strip
    }

    /// The path for the origin. `None` if the path does not have the prefix, or is no path (`OPTIONS *`).
    pub fn forwarded(&self, path: &str) -> Option<String> {
        let rest = self.stripped(path)?;
        Some(format!("{}{}", self.add.0, if rest.is_empty() { "/" } else { rest }))
    }

    /// A path that is forwarded as this one. `None` if no path is.
    pub(crate) fn source(&self, forwarded: &str) -> Option<String> {
        let rest = forwarded.strip_prefix(&*self.add.0)?;
        rest.starts_with('/').then(|| format!("{}{rest}", self.strip.0))
    }

    /// Whether an origin reads in the rewritten path only what was matched: under every reading of the path, the prefix is
    /// there, no segment is `.` or `..`, and the rest does not begin with two slashes, which would name a host.
    pub fn admits(&self, facts: &Facts<'_>) -> bool {
        if !facts.path.starts_with('/') {
            return true;
        }
        if facts.readings.is_empty() {
            return self.stripped(facts.path).is_some();
        }
        let mut all = std::iter::once(facts.path).chain(facts.readings.iter().map(String::as_str));
        all.all(|path| {
            let rest = self.stripped(path);
            rest.is_some_and(|rest| !begins_empty(rest)) && !has_dot_segment(path)
        })
    }

    /// The path by which a key counts: the prefix with and without a slash behind it is one path to the origin.
    pub(crate) fn key_path<'p>(&self, path: &'p str) -> &'p str {
        match self.stripped(path) {
            Some("/") if !self.strip.0.is_empty() => &path[..self.strip.0.len()],
            Some(_) | None => path,
        }
    }

    /// Whether a path has the prefix that is taken off.
    pub(crate) fn strips(&self, path: &str) -> bool {
        self.stripped(path).is_some()
    }

    /// What is left behind the prefix: nothing, or a path.
    fn stripped<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(&*self.strip.0)?;
        (rest.starts_with('/') || rest.is_empty() && path.starts_with('/')).then_some(rest)
    }
}

/// Whether the first segment is empty and others follow.
fn begins_empty(rest: &str) -> bool {
    matches!(rest.as_bytes().get(1), Some(b'/' | b'\\'))
}

/// Whether any reader may take a segment for `.` or `..`. A reading in which dots are already resolved has none, so it is
/// asked of the readings in which they are not; those are among all readings of a path.
fn has_dot_segment(path: &str) -> bool {
    path.split(['/', '\\']).any(|segment| {
        let end = segment.find([';', '%']).unwrap_or(segment.len());
        matches!(&segment[..end], "." | "..")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(strip: &str, add: &str) -> Rewrite {
        let prefix = |text: &str| match text {
            "" => PathPrefix::default(),
            text => PathPrefix::parse(text).unwrap(),
        };
        Rewrite::new(prefix(strip), prefix(add))
    }

    #[test]
    fn a_prefix_is_cut_at_segments() {
        for (strip, add, path, expected) in [
            ("/api", "", "/api", Some("/")),
            ("/api", "", "/api/", Some("/")),
            ("/api", "", "/api/a/b", Some("/a/b")),
            ("/api", "", "/apix", None),
            ("/api", "", "/API/x", None),
            ("/api", "", "*", None),
            ("/a/b", "/c", "/a/b/x", Some("/c/x")),
            ("/a/b", "/c", "/a/b", Some("/c/")),
            ("", "/v2", "/x", Some("/v2/x")),
            ("", "/v2", "/", Some("/v2/")),
            ("", "/v2", "*", None),
        ] {
            let forwarded = rewrite(strip, add).forwarded(path);
            assert_eq!(forwarded.as_deref(), expected, "{strip} {add} {path}");
        }
    }

    #[test]
    fn a_prefix_is_plain() {
        for text in ["/api", "/api/v1", "/.well-known/x", "/~a"] {
            assert!(PathPrefix::parse(text).is_ok(), "{text}");
        }
        let long = format!("/{}", "a".repeat(MAX_PREFIX));
        for text in
            ["", "/", "api", "/api/", "//a", "/a//b", "/a/..", "/.", "/a b", "/a%20", "/a;b"]
                .into_iter()
                .chain([long.as_str()])
        {
            assert!(PathPrefix::parse(text).is_err(), "{text}");
        }
    }
}
