//! Lines by a template: literals, and fields between them.
//!
//! A field ends where the literal behind it begins. Between quotes, a quote that is escaped does not end it. Times have a
//! length of their own, because they contain spaces.

use memchr::memchr;

use super::draft::{Draft, Meaning};
use super::record::{AccessLine, LineError};
use super::text::{Escapes, decode, lossy};
use super::time_pattern::CivilFields;
use super::time_reader::{CLF_LENGTH, TimeForm, TimeReader};
use super::words::closing_quote;

/// A compiled format of lines.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// What stands before the first field.
    lead: Vec<u8>,
    fields: Vec<TemplateField>,
}

#[derive(Clone, Debug)]
struct TemplateField {
    /// As the operator wrote it, for errors.
    name: String,
    meaning: Meaning,
    /// What stands between this field and the next.
    after: Vec<u8>,
    is_quoted: bool,
}

/// Two fields of a template that nothing divides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undivided {
    pub(super) first: String,
    pub(super) second: String,
}

impl Template {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { lead: Vec::new(), fields: Vec::new() }
    }

    /// Whether a field is a time: without one no line has a record.
    pub(super) fn has_time(&self) -> bool {
        let is_time = |field: &TemplateField| {
            matches!(field.meaning, Meaning::Time(..) | Meaning::Pattern(..))
        };
        self.fields.iter().any(is_time)
    }

    /// What its fields say.
    pub(super) fn meanings(&self) -> impl Iterator<Item = &Meaning> {
        self.fields.iter().map(|field| &field.meaning)
    }

    /// Adds text that every line has.
    pub(super) fn literal(&mut self, text: &[u8]) {
        match self.fields.last_mut() {
            Some(field) => field.after.extend_from_slice(text),
            None => self.lead.extend_from_slice(text),
        }
    }

    /// Adds a field.
    pub(super) fn field(&mut self, name: &str, meaning: Meaning) -> Result<(), Undivided> {
        if let Some(last) = self.fields.last_mut()
            && last.after.is_empty()
            && length(&last.meaning, b"").is_none()
        {
            let Some(joined) = join(&last.meaning, &meaning) else {
                return Err(Undivided { first: last.name.clone(), second: name.to_owned() });
            };
            last.meaning = joined;
            last.name.push_str(name);
            return Ok(());
        }
        let before = self.fields.last().map_or(&self.lead, |field| &field.after);
        let is_quoted = before.ends_with(b"\"");
        self.fields.push(TemplateField {
            name: name.to_owned(),
            meaning,
            after: Vec::new(),
            is_quoted,
        });
        Ok(())
    }

    /// Reads a line.
    pub(super) fn parse<'l>(
        &self,
        line: &'l [u8],
        times: &mut TimeReader,
    ) -> Result<AccessLine<'l>, LineError> {
        let mut draft = Draft::new();
        let mut rest = line.strip_prefix(self.lead.as_slice()).ok_or(LineError::WrongShape)?;
        for field in &self.fields {
            let end = field.end(rest).ok_or(LineError::WrongShape)?;
            if field.meaning != Meaning::Ignored {
                let text = match &field.meaning {
                    Meaning::Time(..) | Meaning::Pattern(..) => lossy(&rest[..end]),
                    _ => decode(&rest[..end], Escapes::Backslash),
                };
                draft.set(&field.meaning, text, times);
            }
            rest = rest[end..].strip_prefix(field.after.as_slice()).ok_or(LineError::WrongShape)?;
        }
        draft.finish(times)
    }
}

impl TemplateField {
    /// The bytes of the field at the start of a text.
    fn end(&self, text: &[u8]) -> Option<usize> {
        if let Some(length) = length(&self.meaning, text) {
            return (length <= text.len()).then_some(length);
        }
        if self.after.is_empty() {
            return Some(text.len());
        }
        if self.is_quoted && self.after.starts_with(b"\"") {
            return closing_quote(text);
        }
        let first = self.after[0];
        let mut from = 0;
        loop {
            let end = from + memchr(first, text.get(from..)?)?;
            if text[end..].starts_with(&self.after) && !self.is_in_list(&text[..end], &text[end..])
            {
                return Some(end);
            }
            from = end + 1;
        }
    }

    /// Whether a space stands within a list (`0.001, 0.002 : 0.003`), so that it does not end the field.
    fn is_in_list(&self, before: &[u8], from: &[u8]) -> bool {
        self.after[0] == b' '
            && (before.ends_with(b",") || before.ends_with(b" :") || from.starts_with(b" : "))
    }
}

/// The bytes of a time, which do not depend on what stands behind it. `None` for all other fields. A pattern that does
/// not fit takes nothing.
fn length(meaning: &Meaning, text: &[u8]) -> Option<usize> {
    match meaning {
        Meaning::Time(TimeForm::Clf, _) => Some(CLF_LENGTH),
        Meaning::Pattern(pattern, _) => {
            Some(pattern.read(text, &mut CivilFields::default()).unwrap_or(0))
        }
        _ => None,
    }
}

/// What two fields say together that stand side by side in common formats.
fn join(first: &Meaning, second: &Meaning) -> Option<Meaning> {
    match (first, second) {
        // `%U%q` and `$uri$is_args$args`.
        (Meaning::Path | Meaning::Target, Meaning::Query) => Some(Meaning::Target),
        // `$host$request_uri`.
        (Meaning::Host(_), Meaning::Target | Meaning::Path) => Some(Meaning::HostAndTarget),
        (Meaning::HostAndTarget, Meaning::Query) => Some(Meaning::HostAndTarget),
        _ => None,
    }
}
