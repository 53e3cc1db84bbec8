//! Where the fields of a record stand in a JSON object.

use std::borrow::Cow;

use memchr::memchr;

use super::draft::Meaning;
use super::text::header_name;

/// The members of an object that say something, each with those below it.
#[derive(Clone, Debug, Default)]
pub(super) struct PathTree {
    members: Vec<(String, PathTree)>,
    /// What members say whose names begin with a text: header fields, whose names stand behind it.
    header_prefix: Option<String>,
    meaning: Option<Meaning>,
}

/// What a tree knows of a name.
pub(super) enum KnownMember<'t> {
    /// The member says this; if it is an object, its members may say something too.
    Says(&'t Meaning, &'t PathTree),
    /// Its members say something.
    Inner(&'t PathTree),
    /// It is the header field with this name, in lower case.
    Header(Cow<'static, str>),
}

impl PathTree {
    /// Adds a path whose names stand between dots. A `*` at its end stands for the names of header fields.
    pub(super) fn insert(&mut self, path: &str, meaning: Meaning) {
        let mut tree = self;
        for name in path.split('.') {
            if let Some(prefix) = name.strip_suffix('*') {
                tree.header_prefix = Some(prefix.to_owned());
                return;
            }
            let index = tree.index(name).unwrap_or_else(|| {
                tree.members.push((name.to_owned(), Self::default()));
                tree.members.len() - 1
            });
            tree = &mut tree.members[index].1;
        }
        tree.meaning = Some(meaning);
    }

    /// Looks a member up. A name with dots is also taken as a path: `http.request.method` is a single name in some logs.
    pub(super) fn member(&self, name: &str) -> Option<KnownMember<'_>> {
        if let Some(tree) = self.descend(name) {
            return Some(match &tree.meaning {
                Some(meaning) => KnownMember::Says(meaning, tree),
                None => KnownMember::Inner(tree),
            });
        }
        let field = name.strip_prefix(self.header_prefix.as_deref()?)?;
        Some(KnownMember::Header(header_name(field)))
    }

    /// Whether members of an array say something.
    pub(super) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    fn descend(&self, name: &str) -> Option<&Self> {
        if let Some(index) = self.index(name) {
            return self.members.get(index).map(|(_, tree)| tree);
        }
        let dot = memchr(b'.', name.as_bytes())?;
        let (first, rest) = (name.get(..dot)?, name.get(dot + 1..)?);
        self.members.get(self.index(first)?)?.1.descend(rest)
    }

    /// The index of a member. Upper and lower case are the same, as in names of header fields. Names mostly differ in
    /// their length, so going through all is faster than a search.
    fn index(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))
    }
}
