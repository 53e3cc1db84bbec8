//! Lines of JSON. Only the members that say something are decoded; of the others, only the syntax is read.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::draft::{Draft, Meaning};
use super::text::header_name;

use super::path_tree::{KnownMember, PathTree};
use super::record::{AccessLine, LineError};
use super::time_reader::TimeReader;

/// Reads a line. If it is not UTF-8, the wrong bytes become U+FFFD.
pub(super) fn parse<'l>(
    paths: &PathTree,
    has_plain_default: bool,
    line: &'l [u8],
    times: &mut TimeReader,
) -> Result<AccessLine<'l>, LineError> {
    // What syslog or the runtime of a container writes before the object is skipped.
    let start = object_start(line).ok_or(LineError::NotJson)?;
    let line = &line[start..];
    let Ok(text) = std::str::from_utf8(line) else {
        let lossy = String::from_utf8_lossy(line).into_owned();
        return parse_text(paths, has_plain_default, &lossy, times).map(AccessLine::into_owned);
    };
    parse_text(paths, has_plain_default, text, times)
}

/// Where an object begins: a brace, and a name or the end behind it.
fn object_start(line: &[u8]) -> Option<usize> {
    let is_start = |start: &usize| {
        let inner = line[start + 1..].trim_ascii_start();
        inner.starts_with(b"\"")
    };
    memchr::memchr_iter(b'{', line).find(is_start)
}

fn parse_text<'l>(
    paths: &PathTree,
    has_plain_default: bool,
    text: &'l str,
    times: &mut TimeReader,
) -> Result<AccessLine<'l>, LineError> {
    let mut draft = Draft::new();
    let mut json = serde_json::Deserializer::from_str(text);
    let walk = Walk { tree: paths, draft: &mut draft, times };
    walk.deserialize(&mut json).and_then(|()| json.end()).map_err(|_| LineError::NotJson)?;
    if has_plain_default {
        draft.plain_by_default();
    }
    draft.finish(times)
}

/// Reads a value, and takes the members that its tree knows. A value without members is skipped.
struct Walk<'a, 'l> {
    tree: &'a PathTree,
    draft: &'a mut Draft<'l>,
    times: &'a mut TimeReader,
}

impl<'l> DeserializeSeed<'l> for Walk<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for Walk<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(known) = map.next_key_seed(MemberName(self.tree))? {
            match known {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(KnownMember::Says(meaning, tree)) => {
                    let walk = Walk { tree, draft: self.draft, times: self.times };
                    walk.take(meaning, map.next_value()?);
                }
                Some(KnownMember::Inner(tree)) => {
                    map.next_value_seed(Walk { tree, draft: self.draft, times: self.times })?;
                }
                Some(KnownMember::Header(name)) => {
                    header(name, map.next_value()?, self.draft);
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(mut self, mut items: A) -> Result<(), A::Error> {
        if self.tree.has_members() {
            let mut index = 0_usize;
            while let Some(raw) = items.next_element::<&'l RawValue>()? {
                self.take_item(index, raw);
                index += 1;
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

impl<'l> Walk<'_, 'l> {
    /// Takes an item of an array, whose name in a path is its index.
    fn take_item(&mut self, index: usize, raw: &'l RawValue) {
        let known = self.tree.member(&index.to_string());
        let (draft, times) = (&mut *self.draft, &mut *self.times);
        match known {
            Some(KnownMember::Says(meaning, tree)) => {
                Walk { tree, draft, times }.take(meaning, raw)
            }
            Some(KnownMember::Inner(tree)) => Walk { tree, draft, times }.descend(raw),
            Some(KnownMember::Header(_)) | None => {}
        }
    }

    /// Takes the value of a member that says something.
    fn take(self, meaning: &Meaning, raw: &'l RawValue) {
        match meaning {
            Meaning::Own => self.draft.own(raw),
            Meaning::Tls if raw.get().starts_with('{') => self.draft.tls(true),
            Meaning::Headers => {
                for (name, value) in members(raw) {
                    header(header_name(&name), value, self.draft);
                }
                self.descend(raw);
            }
            Meaning::Header(name) if !raw.get().starts_with('{') => {
                header(name.clone(), raw, self.draft)
            }
            other => match scalar(raw) {
                Some(text) => self.draft.set(other, text, self.times),
                None => self.descend(raw),
            },
        }
    }

    fn descend(self, raw: &'l RawValue) {
        if self.tree.has_members() {
            // The syntax was read before, so this does not fail.
            let _ = self.deserialize(raw);
        }
    }
}

/// Reads the name of a member and looks it up, without an allocation.
struct MemberName<'t>(&'t PathTree);

impl<'l, 't> DeserializeSeed<'l> for MemberName<'t> {
    type Value = Option<KnownMember<'t>>;

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'t> Visitor<'_> for MemberName<'t> {
    type Value = Option<KnownMember<'t>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.member(name))
    }
}

/// Takes a header field. An array holds the values of several fields with the same name.
fn header<'l>(name: Cow<'static, str>, raw: &'l RawValue, draft: &mut Draft<'l>) {
    if !raw.get().starts_with('[') {
        if let Some(text) = scalar(raw) {
            draft.header(name, text);
        }
        return;
    }
    for item in serde_json::from_str::<Vec<&'l RawValue>>(raw.get()).unwrap_or_default() {
        if let Some(text) = scalar(item) {
            draft.header(name.clone(), text);
        }
    }
}

/// The members of an object, in its order.
fn members(raw: &RawValue) -> Vec<(String, &RawValue)> {
    struct Members;
    impl<'l> Visitor<'l> for Members {
        type Value = Vec<(String, &'l RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some(member) = map.next_entry()? {
                members.push(member);
            }
            Ok(members)
        }
    }
    raw.deserialize_map(Members).unwrap_or_default()
}

/// The text of a string, a number or a truth value; of an array, that of its first item.
fn scalar(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    match text.as_bytes().first()? {
        b'"' if text.contains('\\') => serde_json::from_str(text).ok().map(Cow::Owned),
        b'"' => Some(Cow::Borrowed(text.get(1..text.len() - 1)?)),
        b'[' => {
            let items = serde_json::from_str::<Vec<&RawValue>>(text).ok()?;
            scalar(items.first()?)
        }
        b'n' | b'{' => None,
        _ => Some(Cow::Borrowed(text)),
    }
}
